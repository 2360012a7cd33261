"""Plans with P stages: candidates, and a bound, by prices of paths.

With a target below which a plan is asked for, a stage that alone brings every plan to the target is
left out (`stage_paths`). Over the chains of the stages that are left, the game

    max over mixtures of paths  min over chains  Σ_s (mixture of the paths' counts)_s · durations_s

is a bound for plans below the target: each mixture prices the actions, and the cheapest chain at
these prices (`chain_dp`) costs no more than any plan's makespan. The mixture is found by adding, in
turn, the cheapest chain and the longest path of the best mixture of chains so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ...formulations.iteration.chain import Chain
from ...formulations.iteration.divisible import divide
from ...formulations.iteration.paths_lp import mix
from ...instances.common.arrays import Bools, Floats
from ..core.search import Clock
from .chain_dp import Cheapest, cheapest_chain
from .stage_paths import StagePaths

#: Rounds of the game at most, and of its inner linear program.
ROUNDS, INNER = 60, 40
#: How close bound and value of the game must be.
CLOSE = 2e-4
#: How far above the least worst stage the stages of candidates may be.
ROOMS = (0.0, 0.003, 0.01, 0.03, 0.1)
#: Prices by which a chain costs the sum of its stages' times: W is a part of B in a whole backward.
TIME = np.array([1.0, 0.0, 1.0, 1.0])
#: Relative slack for rounding of sums.
SLACK = 1e-9


@dataclass
class Sized:
    """What is known of plans with P stages.

    Parameters
    ----------
    paths
        Bounds by stage.
    bound
        No plan with P stages has a smaller makespan.
    prices
        Shape (P, 4): of the best bound so far.
    rows, columns
        Paths, counts of shape (P, 4), and durations of chains, shape (P, 4).
    pool
        Prices that gave bounds, the newest last.
    mixed
        Paths of the best mixture over pairs of stages that was found last, shape (., P, 4).
    """

    paths: StagePaths
    bound: float
    prices: Floats
    rows: list[Floats] = field(default_factory=list)
    columns: list[Floats] = field(default_factory=list)
    pool: list[Floats] = field(default_factory=list)
    mixed: list[Floats] = field(default_factory=list)

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
    return Sized(paths, divided.bound * (1 - SLACK), divided.prices)


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
        chain = _priced_chain(plans, masks, TIME)
        if np.isfinite(chain.price):
            yield chain


def refute(plans: Sized, target: float, search: Clock) -> Iterator[tuple[float, Cheapest]]:
    """Raise the bound of plans with P stages, to the target at most.

    Yields
    ------
    tuple
        A chain that was met on the way, and its makespan by equation 1; one a round.
    """
    paths = plans.paths
    masks = paths.allowed(target)
    least = _priced_chain(plans, masks, TIME)
    if np.isfinite(least.price):
        masks = paths.allowed(target, least.price * (1 - SLACK))
    for _ in range(ROUNDS):
        found = _priced_chain(plans, masks, plans.prices)
        if not np.isfinite(found.price):
            plans.bound = max(plans.bound, target)
            return
        plans.bound = max(plans.bound, min(target, found.price * (1 - SLACK)))
        plans.pool.append(plans.prices)
        duration = durations_of(paths, found)
        makespan, counts = paths.chain.longest_path(duration)
        plans.columns.append(duration)
        plans.rows.append(counts)
        yield makespan, found
        if plans.bound >= target or search.should_stop():
            return
        value = _mix(plans, makespan)
        if value is None or found.price >= value * (1 - CLOSE):
            return


def _priced_chain(plans: Sized, masks: tuple[tuple[Bools, ...], ...], prices: Floats) -> Cheapest:
    """Return the cheapest chain of allowed stages at prices of shape (P, 4) or (4,)."""
    paths = plans.paths
    table = np.broadcast_to(prices, (plans.size, 4))
    durations = [paths.durations(k) for k in range(len(paths.line.kinds))]

    def price(s: int, k: int) -> Floats:
        allowed = masks[s][k]
        cost = np.full(paths.stages.size, np.inf)
        cost[allowed] = table[s] @ durations[k][:, allowed]
        return cost

    count = paths.line.count * paths.line.problem.chunks_per_device
    return cheapest_chain(paths.stages, count, plans.size, price)


def _mix(plans: Sized, scale: float) -> float | None:
    """Set the prices to those of the game over the chains so far; return its value."""
    if scale <= 0:
        return None
    columns = np.array(plans.columns)
    value = None
    for _ in range(INNER):
        rows = np.tensordot(np.array(plans.rows), columns, axes=([1, 2], [1, 2])) / scale
        mixed = mix(rows, np.ones((1, len(columns))))
        value = mixed.value * scale
        plans.prices = np.tensordot(mixed.weights, np.array(plans.rows), axes=1)
        makespan, counts = plans.paths.chain.longest_path(
            np.tensordot(mixed.solution, columns, axes=1)
        )
        if makespan <= value * (1 + CLOSE / 2):
            return value
        plans.rows.append(counts)
    return value
