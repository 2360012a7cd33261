"""Plans with P stages: what is known of them, and the cheapest chain at prices of actions.

Where each stage has a price of its own at each position, that is found by a dynamic program: with
price_s,κ(I', I) of the stage I ∖ I' as stage s on a device of kind κ, and s_κ devices of each kind
used,

    dp[0][∅] = 0,   dp[(s_1, …, s_K)][I] = min over κ with s_κ ≥ 1 and stages (I', I) of
                                           dp[… s_κ − 1 …][I'] + price_s,κ(I', I),  s = Σ s_κ − 1;

or, for the least largest price, with the maximum of the two in place of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ....formulations.job.iteration_bounds import divide
from ....formulations.job.line import Line
from ....formulations.job.orders import Chain
from ....formulations.task import Task
from ....instances import PipelineJob, PipelinePlacement, Solution
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.lattice import Lattice
from ...core.search import Clock, Search
from .stage_list import StageList, StagePaths


@dataclass(frozen=True, eq=False)
class Run:
    """A search for chains on a lattice of ideals."""

    task: Task[PipelineJob]
    line: Line
    search: Search[Solution]
    lattice: Lattice

    def aim(self, gap: float | None = None) -> float:
        """Return the makespan below which plans are asked for, `inf` without incumbent.

        It is a gap below the incumbent, by default the search's next one.
        """
        gap = self.search.next_gap if gap is None else gap
        return self.search.objective * (1 - max(gap * (1 - SLACK), SLACK))

    def offer(self, paths: StagePaths, found: Cheapest, makespan: float) -> None:
        """Offer a chain, if equation 1 does not show that it is no better."""
        if makespan < self.search.objective and paths.fits(
            np.array(found.stages), np.array(found.kinds)
        ):
            self.offer_ideals(ideals_of(paths.stages, found), found.kinds, makespan)

    def offer_ideals(self, ideals: Ints, kinds: tuple[int, ...], makespan: float) -> None:
        """Offer a chain that fits into memory, if equation 1 does not show that it is no better."""
        if makespan < self.search.objective:
            placement = self.placement(ideals, kinds)
            if placement is not None:
                self.search.offer(placement)

    def placement(self, ideals: Ints, kinds: tuple[int, ...]) -> PipelinePlacement | None:
        """Return the plan of a chain; None if the stages of a device have different kinds."""
        where = self.line.problem.devices_of(len(kinds))
        kind_of = dict(zip(where, kinds, strict=True))
        if kinds != tuple(kind_of[p] for p in where):
            return None
        free = [np.flatnonzero(self.task.costs.kind_of == k).tolist() for k in self.line.kinds]
        used = list(kind_of.values())
        if any(used.count(k) > len(free[k]) for k in range(len(free))):
            return None
        devices = {p: free[kind_of[p]].pop(0) for p in sorted(kind_of)}
        stage_of = np.zeros(self.line.graph.size, np.int64)
        for s, (start, end) in enumerate(pairwise(ideals.tolist())):
            inside = np.setdiff1d(
                self.lattice.units(end), self.lattice.units(start), assume_unique=True
            )
            stage_of[self.lattice.order[inside]] = s
        return PipelinePlacement(self.line.graph.expand(stage_of), tuple(devices[p] for p in where))


#: Price of each stage of the list at a position and on a kind of device, shape (R,); `inf`: none.
Price = Callable[[int, int], Floats]


#: How many devices of each kind are used.
Used = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cheapest:
    """A chain with its price; `inf` if there is none."""

    price: float
    #: Numbers in the list, and kinds of devices, first to last; () without chain.
    stages: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()


#: How far above the least worst stage the stages of candidates may be.
ROOMS = (0.0, 0.003, 0.01, 0.03, 0.1)


#: Prices by which a chain costs the sum of its stages' times: W is a part of B in a whole backward.
TIME = np.array([1.0, 0.0, 1.0, 1.0])


#: Relative slack for rounding of sums.
SLACK = 1e-9


@dataclass
class Sized:
    """What is known of plans with P stages."""

    #: Bounds by stage.
    paths: StagePaths
    #: No plan with P stages has a smaller makespan.
    bound: float
    #: Prices of actions that gave bounds, shape (P, 4) each, the newest last; at first those of
    #: divisible work.
    pool: list[Floats]

    @property
    def size(self) -> int:
        """P."""
        return self.paths.chain.order.stages

    @property
    def chain(self) -> Chain:
        """The order of P stages."""
        return self.paths.chain


def sized(paths: StagePaths, enough: float) -> Sized:
    """Return what divisible work says of plans with P stages; of more than `enough` just that."""
    forward, compute = paths.stages.ahead[:, -1].tolist()
    divided = divide(paths.chain, forward, compute, enough=enough)
    return Sized(paths, divided.bound * (1 - SLACK), [divided.prices])


def durations_of(paths: StagePaths, chain: Cheapest) -> Floats:
    """Return the durations of a chain's actions, shape (P, 4)."""
    stages = paths.stages
    number, kind = list(chain.stages), list(chain.kinds)
    return paths.chain.durations(
        stages.forward[kind, number], stages.backward[kind, number], stages.compute[kind, number]
    )


def leave_out(plans: Sized, objective: float) -> None:
    """Leave out the stages that no plan below `objective` has at any position."""
    paths = plans.paths
    kept = np.zeros(paths.stages.size, np.bool_)
    for row in paths.allowed(objective):
        for mask in row:
            kept |= mask
    if kept.any() and not kept.all():
        plans.paths = replace(paths, stages=paths.stages.keep(kept))


def candidates(plans: Sized, search: Clock) -> Iterator[Cheapest]:
    """Yield chains that are good, and raise the bound to what the worst stage of any must cost.

    The first has the least largest bound of a stage; the others, with a little more than that, the
    least sum of times.
    """
    paths = plans.paths
    kinds = range(len(paths.line.kinds))
    bounds = [[paths.least_makespan(s, k) for k in kinds] for s in range(plans.size)]
    count = paths.line.count * paths.line.problem.chunks_per_device
    found = cheapest_chain(paths.stages, count, plans.size, lambda s, k: bounds[s][k], largest=True)
    plans.bound = max(plans.bound, found.price * (1 - SLACK))
    if not np.isfinite(found.price):
        return
    yield found
    for room in ROOMS:
        if search.should_stop():
            return
        most = max(found.price, plans.bound) * (1 + room)
        masks = tuple(tuple(bound <= most for bound in row) for row in bounds)
        chain = _quickest_chain(plans, masks)
        if np.isfinite(chain.price):
            yield chain


def _quickest_chain(plans: Sized, masks: tuple[tuple[Bools, ...], ...]) -> Cheapest:
    """Return the chain of allowed stages with the least sum of times."""
    paths = plans.paths
    durations = [paths.durations(k) for k in range(len(paths.line.kinds))]

    def price(s: int, k: int) -> Floats:
        allowed = masks[s][k]
        cost = np.full(paths.stages.size, np.inf)
        cost[allowed] = TIME @ durations[k][:, allowed]
        return cost

    count = paths.line.count * paths.line.problem.chunks_per_device
    return cheapest_chain(paths.stages, count, plans.size, price)


def cheapest_chain(
    stages: StageList, count: Ints, positions: int, price: Price, *, largest: bool = False
) -> Cheapest:
    """Return the cheapest chain of so many stages, which are sorted by their end.

    `count` says how many of them the devices of each kind can take together. With `largest` a
    chain's largest price counts, in place of the sum. O(positions · R) for one kind of device.
    """
    size, kinds = stages.lattice.size, len(count)
    combine = np.maximum if largest else np.add
    first = np.flatnonzero(np.diff(stages.end, prepend=-1))
    ends = stages.end[first]
    none = (0,) * kinds
    value: dict[Used, Floats] = {none: np.full(size, np.inf)}
    value[none][0] = 0.0
    layer = [none]
    for s in range(positions):
        prices = [price(s, k) for k in range(kinds)]
        following: dict[Used, Floats] = {}
        for used in layer:
            before = value[used][stages.start]
            for k in range(kinds):
                if used[k] >= count[k]:
                    continue
                then = (*used[:k], used[k] + 1, *used[k + 1 :])
                reached = following.setdefault(then, np.full(size, np.inf))
                least = np.minimum.reduceat(combine(before, prices[k]), first)
                reached[ends] = np.minimum(reached[ends], least)
        value |= following
        layer = list(following)
    last = min(layer, key=lambda used: value[used][-1], default=none)
    total = float(value[last][-1]) if positions else np.inf
    if not np.isfinite(total):
        return Cheapest(np.inf)
    return Cheapest(total, *_read_back(stages, value, last, price, largest))


def _read_back(
    stages: StageList, value: dict[Used, Floats], used: Used, price: Price, largest: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Follow the cheapest chain from its end."""
    chosen: list[tuple[int, int]] = []
    ideal = stages.lattice.size - 1
    while sum(used):
        low, high = np.searchsorted(stages.end, [ideal, ideal + 1])
        best = (np.inf, -1, -1)
        for k in range(len(used)):
            before = (*used[:k], used[k] - 1, *used[k + 1 :])
            if used[k] and before in value:
                reached = value[before][stages.start[low:high]]
                added = price(sum(before), k)[low:high]
                own = np.maximum(reached, added) if largest else reached + added
                at = int(own.argmin())
                best = min(best, (float(own[at]), low + at, k))
        _, number, k = best
        chosen.append((number, k))
        ideal, used = int(stages.start[number]), (*used[:k], used[k] - 1, *used[k + 1 :])
    return tuple(n for n, _ in reversed(chosen)), tuple(k for _, k in reversed(chosen))


def ideals_of(stages: StageList, found: Cheapest) -> Ints:
    """Return the ideals that a chain passes, the empty and the full one included."""
    return np.append(stages.start[list(found.stages)], stages.lattice.size - 1)
