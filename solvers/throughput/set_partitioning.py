"""Non-contiguous splits by annealing, and their bounds by column generation, in turn.

Rounds of both grow while they bring nothing. The targets of the bound follow the best split known.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.certificate import Prices, certificate
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Solution, Throughput
from ...instances.common.arrays import Ints
from ...instances.common.kernel import NotCompiled, compiled_only_if
from ..core.search import OPTIMAL_GAP, Clock, Search
from .annealing import Annealing
from .baselines import greedy
from .column_generation.column_generation import DualState, Outcome, boxstep
from .column_generation.frontier import orders
from .column_generation.pricing_problem import first_prices, pricing_problem
from .dp import contracted_dp
from .packing import packing

ORIGIN = "set partitioning"

#: Name of the strategy that improves splits in a process of its own; bounds are then left here.
SPLITS = "splits"

#: Pricings of the first round; rounds grow up to so many times the first.
PRICINGS, GROWTH = 20, 64

#: Part of the gap that a round's bound must close for the next round to leave out annealing that
#: has found nothing.
CLOSING = 0.1

#: Bounds wait while rounds find better splits, up to this round: the nearer a target is to the
#: bound, the fewer sets are in question.
ROUNDS_BEFORE_BOUND = 12

#: Most of the time left that splits take before the first bound, and that one round's pricings
#: take.
SPLIT_SHARE, BOUND_SHARE = 0.15, 0.4

#: Rounds without progress after which a search without a deadline, or without patience, ends.
MOST_IDLE = 12

#: Orders of small frontier that are cut into segments, one for each device, as first splits.
ORDERS = 3

#: Parts of the way from the bound to the largest useful target that are tried as load limits.
LIMIT_PARTS = (1.0, 0.7, 0.4, 0.2, 0.1)

#: By how much, relatively, the largest useful target must fall for prices to start anew below it.
RESTART = 1e-2

#: Gap up to which sets are priced by value: prices near the work close it.
BY_VALUE_GAP = 0.015

#: Inverse part of the gap that a target leaves, and the first gap aimed for.
STRIDE, FIRST_GAP = 4, 0.01

#: How often a target is tried before one halfway to it is.
TRIES = 2

#: A target that differs from a hopeless one by less than this, relatively, is hopeless too.
RESOLUTION = 1e-5


def set_partitioning(
    task: Task[Throughput],
    search: Search[Solution],
    *,
    patient: bool = True,
    part: float = 1.0,
    rounds: float = np.inf,
) -> None:
    """Find a non-contiguous split and a bound with its certificate, until the gap or a limit.

    Unless `patient`, it ends when nothing gets better for long. Under GPipe's objective and with
    overlap, splits are sought by the sums of compute and transfers; what is found is judged by the
    objective asked for, and the bound holds for it. `part` is that of the time left which splits
    and bounds take in turn; `rounds` and `limits.nodes` count rounds.
    """
    graph = hypergraph(task)
    reason = why_infeasible(task, graph)
    if reason is not None:
        search.prove_infeasible(reason)
        return
    tried = _start(task, graph, search)
    if search.best is not None and not search.done:
        alternation = _Alternation(task, graph, tried, search, search.part(part))
        alternation.run(rounds, patient=patient)


def splits(task: Task[Throughput], search: Search[Solution]) -> None:
    """Improve the split alone, until a limit, in a process beside `set_partitioning`."""
    graph = hypergraph(task)
    if why_infeasible(task, graph) is not None:
        return
    if search.best is None:
        _start(task, graph, search)
    annealing = Annealing(task, graph, search)
    rounds = idle = 0
    most_idle = MOST_IDLE if search.limits.seconds is None else np.inf
    while search.best is not None and not search.should_stop() and idle < most_idle:
        if search.gap <= OPTIMAL_GAP or rounds == search.limits.nodes:
            return
        rounds += 1
        idle = 0 if annealing.improve(search) else idle + 1


def _start(task: Task[Throughput], graph: Hypergraph, search: Search[Solution]) -> list[Ints]:
    """Offer first splits: greedy's, and orders of small frontier cut; return those orders."""
    with search.phase("start"):
        tried = orders(graph)
        greedy(task, search)
        for order in tried[:ORDERS]:
            if search.should_stop():
                break
            place = np.argsort(order)
            contracted_dp(task, search, place[graph.unit_of], any_order=True)
    if search.best is None:
        with search.phase("packing"):
            packing(task, graph, search)
    return tried


class _Alternation:
    """Rounds of annealing and column generation in turn."""

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        orders: list[Ints],
        search: Search[Solution],
        clock: Clock,
    ) -> None:
        self._search, self._clock = search, clock
        self._annealing = Annealing(task, graph, search)
        self._targets = _Targets(search)
        self._prover = _Prover(task, graph, orders, search, clock)
        self._split_first = clock.part(SPLIT_SHARE)
        self._rounds, self._pricings = 0, PRICINGS

    def run(self, most_rounds: float, *, patient: bool) -> None:
        """Make rounds until the gap is closed, a limit is reached, or nothing improves for long.

        A round ends before the bound while the first rounds find better splits; it leaves out
        annealing while that finds nothing and the bound closes the gap.
        """
        search, idle, closing = self._search, 0, False
        while not self._clock.should_stop() and search.gap > OPTIMAL_GAP:
            if self._rounds >= most_rounds:
                return
            if search.limits.nodes is not None and self._rounds >= search.limits.nodes:
                search.stop_for("nodes")
                return
            self._rounds += 1
            bound = search.bound
            better = not closing and self._improve_split()
            early = self._rounds < ROUNDS_BEFORE_BOUND and not self._split_first.should_stop()
            if better and early:
                continue
            target = self._raise_bound()
            gained = search.bound - bound
            closing = not better and gained > CLOSING * (search.objective - bound)
            idle = 0 if better or gained > 0 or target is not None else idle + 1
            if idle >= MOST_IDLE and not (patient and search.limits.seconds is not None):
                search.note("column-generation: neither split nor bound got better for long")
                return
            self._pricings = min(2 * self._pricings, GROWTH * PRICINGS)

    def _improve_split(self) -> bool:
        """Return whether annealing found a better split.

        The first round compiles nothing for it, as the first bound may end the search.
        """
        search = self._search
        if search.beside and self._targets.next() is not None:
            return False
        compiling = self._rounds > 1 or search.limits.nodes is not None
        with search.phase("split"), suppress(NotCompiled), compiled_only_if(lambda: compiling):
            return self._annealing.improve(self._clock)
        return False

    def _raise_bound(self) -> float | None:
        """Try to prove the next target, and return it; None if none is left."""
        target = self._targets.next()
        if target is not None and not self._clock.should_stop():
            self._targets.record(*self._prover.prove(target, self._targets.most, self._pricings))
        return target


class _Prover:
    """Proofs of targets by column generation, over sets of a load within a limit.

    The limit is the largest useful target at which the frontier is exact, or a part of the way to
    it: low limits leave fewer states. It rises once it is proved. Memory gets a price once prices
    without one stall.
    """

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        orders: list[Ints],
        search: Search[Solution],
        clock: Clock,
    ) -> None:
        self._task, self._graph, self._orders = task, graph, orders
        self._search, self._clock = search, clock
        self._limit, self._by_value = -np.inf, True

    def prove(self, target: float, most: float, pricings: int) -> tuple[float, Outcome]:
        """Try to prove that no split has a max-load of `target`; return the target tried.

        It is at most `target`, and comes with the outcome; `most` is the largest useful one.
        """
        if self._limit <= self._search.bound or self._limit > most * (1 + RESTART):
            with self._search.phase("frontier"):
                self._begin(most)
        target = min(target, self._limit)
        if self._search.bound >= target:
            return target, "proved"
        with self._search.phase("bound"):
            clock = self._clock.part(BOUND_SHARE)
            outcome = boxstep(self._state, self._pricing, target, self._raise, clock, pricings)
        if outcome == "stalled" and self._pricing.without_memory:
            self._limit, self._by_value = -np.inf, False
            return target, "stopped"
        return target, outcome

    def _begin(self, most: float) -> None:
        """Choose the limit, and start with new prices."""
        task, search, stop = self._task, self._search, self._clock.should_stop
        low = max(0.0, search.bound)
        by_value = self._by_value and low > most * (1 - BY_VALUE_GAP)
        for part in (*LIMIT_PARTS, 1.0):
            self._limit = low + part * (most - low)
            self._pricing = pricing_problem(
                task, self._graph, self._limit, self._orders, by_value=by_value
            )
            if all(states.exact for states in self._pricing.states) or stop():
                break
        prices = first_prices(self._pricing, self._graph, task.costs.host)
        self._state = DualState(prices, first=1 - low / most)

    def _raise(self, bound: float, prices: Prices) -> None:
        if bound > self._search.bound:
            order, parts = self._pricing.states[0].order, self._pricing.parts
            evidence = certificate(self._task, self._graph, prices, bound, order, parts)
            self._search.raise_bound(bound, ORIGIN, evidence)


class _Targets:
    """Sequence of targets for the bound, each a part of the way from the bound to the incumbent."""

    def __init__(self, search: Search[Solution]) -> None:
        self._search = search
        self._target: float | None = None
        self._hopeless, self._stopped = np.inf, 0

    @property
    def most(self) -> float:
        """Largest useful target: at it, the gap asked for is closed."""
        return self._search.objective * (1 - self._asked_gap)

    @property
    def _asked_gap(self) -> float:
        return max(self._search.next_gap * (1 - 1e-6), OPTIMAL_GAP / 2)

    def next(self) -> float | None:
        """Return the next target; None if no target that could be proved is left."""
        objective, bound = self._search.objective, max(0.0, self._search.bound)
        if self._target is None or self._target > self.most or self._target <= bound:
            gap = (objective - bound) / objective
            self._target = objective * (1 - max(self._asked_gap, min(gap / STRIDE, FIRST_GAP)))
        if self._target >= self._hopeless * (1 - RESOLUTION):
            if self._hopeless - bound < 2 * RESOLUTION * objective:
                return None
            self._target = (bound + self._hopeless) / 2
        return self._target

    def record(self, target: float, outcome: Outcome) -> None:
        """Record the outcome of an attempt at a target.

        After a stall, targets from `target` up are hopeless; after `TRIES` stops in a row, the next
        target is halfway between bound and target.
        """
        if outcome == "stalled":
            self._hopeless = min(self._hopeless, target)
        self._stopped = self._stopped + 1 if outcome == "stopped" else 0
        if self._stopped >= TRIES:
            self._target, self._stopped = (max(0.0, self._search.bound) + target) / 2, 0
