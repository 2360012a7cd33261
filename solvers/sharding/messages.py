"""Message passing, and elimination over the choices left, for large programs and meshes.

Sweeps visit the operators in order and back. Each raises the potentials of its uses as far as (6)
allows, and gives the reduced costs of its choices above the least to the uses ahead: the bound (7)
never falls. Choices whose bound (8) is above the cost of the best known plan are excluded. Over the
choices whose bound (8) is at most δ above (7), elimination finds an optimum; the best plan costs as
much, or at least bound + δ. While δ is small, so are the tables.

See V. Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", 2006.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ...formulations.sharding.costs import ShardingCosts, sharding_costs
from ...formulations.sharding.relaxation import (
    MARGIN,
    Potentials,
    ShardingRows,
    evidence,
    flatten,
    leave_out,
    no_potentials,
    proved_bound,
)
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ...instances.common.arrays import Bools, Ints
from ...instances.formats.plan_json import PASSED
from ..core.search import Clock, Search
from .baselines import first_plans
from .elimination import cheapest_of_few
from .message_kernel import sweep
from .mixtures import is_too_small, minimise_sums

#: Passes there and back between two looks at the bound.
STEP = 8

#: Part of the gap that `STEP` passes, and a round, must close to be followed by another; and the
#: gap, relative to that of the search, to which a mixture is minimised.
PROGRESS = 0.02

#: First δ, relative to the bound, and the divisor of a δ whose tables are too large; the first is
#: also the gap to which the plan at a price of memory is sought.
FIRST, SMALLER = 1e-5, 4.0

#: Pairs of choices, of operators that share a tensor, up to which elimination is tried.
MOST_PAIRS = 200_000

#: Entries of all tables up to which elimination is tried over the choices left.
MOST_ENTRIES = 20_000_000

#: Largest relative excess of a bound by rounding.
ROUNDING = 1e-10


def messages(task: Task[Sharding], search: Search[Solution]) -> None:
    """Plan by message passing; a limit of memory counts only when plans are judged."""
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    with search.phase("first plans"):
        first_plans(costs, search)
    minimise_sums(costs, search, better_by_messages)


def better_by_messages(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Raise the bound and improve the incumbent until optimal, or nothing closes the gap.

    Returns the best choices found, of costs that are a sum, or None.
    """
    chosen, offered = None, None
    with search.phase("message passing"):
        # of a mixture no more is asked than helps to choose the next one
        enough = PROGRESS * min(search.gap, 1.0) if costs.mixture else 0.0
        for bound, chosen in approach(costs, search, enough=enough):
            below = bound - MARGIN * abs(bound)
            if below > search.bound:
                search.raise_bound(below, PASSED, evidence(costs, below))
            if chosen is not None and chosen is not offered:
                search.offer(TensorSharding(costs.signature(chosen)))
                offered = chosen
            if search.should_stop():
                break
    return chosen


def approach(
    costs: ShardingCosts, search: Clock, start: Ints | None = None, enough: float = 0.0
) -> Iterator[tuple[float, Ints | None]]:
    """Yield ever better bounds, without a limit of memory, and ever better choices.

    It ends at a relative gap of `enough`, or where rounds close too little of the gap.
    """
    flat = flatten(costs)
    left = _MessageState(costs, flat, no_potentials(flat), start)
    while True:
        before = left.gap
        left.passed(search)
        yield left.bound, left.chosen
        near = enough * abs(left.bound)
        if left.gap > near:
            left.eliminated(search)
            yield left.bound, left.chosen
        if left.gap <= near or search.should_stop():
            return
        if not before - left.gap >= PROGRESS * left.gap:  # nor where no plan is known
            return
        leave_out(flat, left.at, left.within(left.gap))


def choices_left(costs: ShardingCosts, search: Clock, most: float) -> list[Ints]:
    """Return the choices of each operator in plans of cost `most` at most, one each at least."""
    flat = flatten(costs)
    left = _MessageState(costs, flat, no_potentials(flat), None)
    left.passed(search)
    kept, first = left.within(most - left.bound), flat.first.tolist()
    return [np.flatnonzero(kept[a:b]) for a, b in itertools.pairwise(first)]


class _MessageState:
    """The state of message passing: potentials, their bound, the choices left, the best plan."""

    def __init__(
        self, costs: ShardingCosts, flat: ShardingRows, at: Potentials, chosen: Ints | None
    ) -> None:
        self.costs, self.flat, self.at = costs, flat, at
        self.bound = -math.inf
        self.chosen: Ints | None = None
        self.value, self.known = math.inf, -math.inf
        self._take(chosen)

    @property
    def gap(self) -> float:
        """Cost of the best choices known above the bound."""
        return self.value - self.bound

    def _take(self, chosen: Ints | None) -> None:
        if chosen is not None and (value := self.costs.objective(chosen)) < self.value:
            self.chosen, self.value = chosen, value

    def passed(self, search: Clock) -> None:
        """Sweep over the operators while that closes the gap."""
        flat = self.flat
        most = int(max(np.diff(flat.first).max(), flat.rows.max(initial=0),
                       flat.width.max(initial=0)))  # fmt: skip
        room = np.zeros(most), np.zeros(most)
        gained = math.inf
        while gained > 0 and not search.should_stop():
            before = self.known
            for k in range(2 * STEP):
                self.known = sweep(flat, self.at, k % 2 == 0, self.known, *room)
            scale = abs(self.known)
            gap = min(self.value - self.known, 0.1 * scale)
            gained = self.known - before - max(PROGRESS * gap, ROUNDING * scale)
        proved = proved_bound(flat, self.at)
        self.bound = max(self.bound, proved - ROUNDING * abs(proved))

    def within(self, delta: float) -> Bools:
        """Return the mask of choices in plans of cost ≤ bound + δ, at least one per operator."""
        least, first = self.at.least, self.flat.first
        cheapest_each = np.minimum.reduceat(least, first[:-1])
        slack = 10 * ROUNDING * abs(self.bound)
        kept = least <= np.maximum(
            self.bound + delta + slack, np.repeat(cheapest_each, np.diff(first))
        )
        return np.asarray(kept, np.bool_)

    def eliminated(self, search: Clock) -> None:
        """Find the best plan of cost at most bound + δ, for the largest δ with small tables."""
        base, done, delta = self.bound, 0.0, FIRST * abs(self.bound)
        if self._best_within(delta, search):
            done = delta
        delta = self.value - base
        while math.isfinite(delta) and delta > SMALLER * done and not search.should_stop():
            if self._best_within(delta, search):
                return
            delta /= SMALLER

    def _best_within(self, delta: float, search: Clock) -> bool:
        """Find the best plan of cost at most bound + δ; False if the tables are too large."""
        base, first = self.bound, self.flat.first
        kept = self.within(delta)
        count = np.add.reduceat(kept, first[:-1], dtype=np.int64)
        if int(count[self.flat.maker] @ count[self.flat.reader]) > MOST_PAIRS:
            return False
        left = [np.flatnonzero(kept[a:b]) for a, b in itertools.pairwise(first.tolist())]
        found = cheapest_of_few(self.costs.only(left), search, MOST_ENTRIES)
        if found is None:
            return False
        self._take(np.array([k[one] for k, one in zip(left, found, strict=True)], np.int64))
        self.bound = max(base, min(self.value, base + delta))
        return True
