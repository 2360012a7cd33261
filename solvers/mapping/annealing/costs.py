"""The costs of a mapping that annealing minimises, and the descents that need no target.

*Violations* of a target time (`violations_kernel`): the messages above the upper bounds of a split
of each stage's slack; a mapping without any has stage times of at most the target.

*Stage times* (`stage_times_kernel`), with all-reduces of any kind: `descend` lowers a power sum of
them, which the longest rule, and `break_ties` lowers their sum while the longest stays, as the
objective says nothing about the other stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts, stage_times
from ....formulations.mapping.memory import costs_of_cut
from ....formulations.task import Task
from ....instances import DeviceMapping, ReplicaPlacement, Solution
from ....instances.common.arrays import Floats, Ints
from ...core.search import Search
from ..parameters import (
    SHUFFLE_RATE,
    SPLITS,
    TIME_POWER,
    VIOLATION_SCALE,
)
from . import violations_kernel as kernel
from .anneal_kernel import State, anneal, for_cost, state_of
from .stage_times_kernel import StageTimes
from .violations_kernel import Violations, propose

for_cost(
    Violations,
    begin=kernel.begin,
    finished=kernel.finished,
    propose=propose,
    make=kernel.make,
    change_left=kernel.change_left,
)


def violations(
    costs: MappingCosts,
    order: NDArray[np.int32],
    block: Ints,
    upper_bounds: tuple[Floats, Floats],
    target: float,
    *,
    keeps_counts: bool = False,
    exchange_rate: float = 0.0,
) -> Violations:
    """Return the violations of a target by a mapping's messages, as a cost for `anneal`.

    `order` has the other devices of each, by `best_routes`; upper bounds of messages and ring
    messages in each split are in seconds, shape (S, Q) both, and violations are scaled by `target`
    seconds. With `keeps_counts`, steps keep the number of devices of each block in each stage, or
    exchange, with probability `exchange_rate`, all devices of two blocks of one size.
    """
    messages, rings = upper_bounds
    members = np.argsort(block, kind="stable")
    return Violations(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        costs.fits,
        order,
        messages,
        rings,
        VIOLATION_SCALE / max(target, 1e-300),  # stages may take no time at all
        block,
        members,
        np.searchsorted(block[members], np.arange(int(block.max()) + 2)),
        keeps_counts,
        exchange_rate,
        SHUFFLE_RATE,
        np.zeros(messages.shape),
        np.zeros(messages.shape),
        np.zeros(costs.stages, np.bool_),
        np.zeros(costs.stages + 1, np.int64),
        np.zeros(max(16, costs.replicas + 1), np.int64),
    )


def violation_left(cost: Violations) -> float:
    """Return the sum over stages of the violation of the best split, 0 for none."""
    left = float(cost.current.min(axis=1).sum())
    return left if left >= 0.5 else 0.0


def best_routes(costs: MappingCosts) -> NDArray[np.int32]:
    """Return the other devices of each, shape (D, D−1), by descending bandwidth, then latency."""
    order = np.empty((costs.size, costs.size - 1), np.int32)
    for d in range(costs.size):
        row = np.lexsort((costs.latency[d], costs.inverse[d]))
        order[d] = row[row != d]
    return order


def sampled_splits(
    costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
) -> tuple[Floats, Floats]:
    """Return the upper bounds in seconds of messages and ring messages by split; shape (S, Q) both.

    Where a stage has both terms, splits are at quantiles of the costs of pairs of devices: half of
    them of messages, half of the slack less ring messages.
    """
    slack = (threshold - costs.base) * (1 + 1e-12)
    has_both = costs.boundary.any(axis=1) & costs.ring.any(axis=1)
    count = SPLITS if has_both.any() else 1
    messages, rings = np.repeat(slack[:, None], count, 1), np.repeat(slack[:, None], count, 1)
    rows = np.linspace(0, costs.size - 1, min(costs.size, 64)).astype(np.int64)
    latency, inverse = costs.latency[rows], costs.inverse[rows]
    for s in np.flatnonzero(has_both).tolist():
        low, high = float(lower_bounds.transfer[s]), float(slack[s] - lower_bounds.allreduce[s])
        (alpha, beta), (gamma, delta) = costs.boundary[s], costs.ring[s]
        sent = (alpha * latency + beta * inverse).ravel()
        left = (slack[s] - gamma * latency - delta * inverse).ravel()
        values = [v[(v > low) & (v < high)] for v in (sent, left)]
        marks = np.linspace(0, 1, count // 2)
        spread = [np.quantile(v, marks) if len(v) else np.linspace(low, high, 12) for v in values]
        messages[s] = np.sort(np.concatenate(spread))[::-1]
        messages[s, 0], messages[s, -1] = high, low
        rings[s] = slack[s] - messages[s]
    return messages, rings


def stage_times_cost(
    costs: MappingCosts,
    scale: float,
    *,
    power: int = TIME_POWER,
    orders_only: bool = False,
) -> StageTimes:
    """Return Σ_s (T_s / scale)^power as a cost for `anneal`.

    Scale is in seconds. `orders_only`: each stage keeps its devices and their messages, and only
    their order may change.
    """
    stages = costs.stages
    return StageTimes(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        costs.base,
        costs.own,
        costs.overlap,
        costs.fits,
        costs.island,
        np.array([costs.reduced_bytes(s) for s in range(stages)]),
        bool(np.isinf(costs.non_ring_lower_bound).all()),
        np.full(stages, np.inf),
        scale if scale > 0 else 1.0,
        power,
        orders_only,
        np.zeros((stages, 1)),
        np.zeros((stages, 1)),
        np.zeros(stages, np.bool_),
        np.zeros(stages + 1, np.int64),
        np.zeros(max(16, costs.replicas + 1), np.int64),
        np.zeros(2 * costs.replicas, np.int64),
    )


def descend(
    costs: MappingCosts,
    slots: Ints,
    sends_to: Ints,
    steps: int,
    seed: int,
    *,
    hot: float = 0.0,
    orders_only: bool = False,
) -> tuple[Ints, Ints]:
    """Return slots and receivers with a lower power sum of stage times; O(steps · R) time.

    `hot` is the temperature to begin with, in the unit of the longest stage's power. `orders_only`:
    each stage keeps its devices and their messages, and only their order may change.
    """
    state = state_of(costs, slots, sends_to)
    scale = float(stage_times(costs, slots, sends_to).max())
    cost = stage_times_cost(costs, scale, orders_only=orders_only)
    anneal(cost, state, steps, seed, hot, hot * 0.01)
    return state.slots(), state.sends_to[:-1].copy()


def break_ties(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Lower the sum of the incumbent's stage times while there is time; its maximum stays."""
    best, problem = search.best, task.problem
    if not isinstance(best, ReplicaPlacement) or best.slots.size < 2:
        return
    with search.phase("ties"):
        costs = costs_of_cut(task, best.stage)
        state = state_of(costs, costs.numbers(best.slots), best.sends_to)
        cost = stage_times_cost(costs, 1.0, power=1)
        # some tenths of a second between two looks at the clock: a step reads up to R messages
        steps = 1000 + min(2_000_000 // problem.replicas, 500 * best.slots.size)
        total = _lower_sum(state, cost, 0, 0)
        cost.upper_bound[:] = cost.current.max()
        idle, turn = 0, 0
        while idle < 3 and search.seconds_left > 0.2 and search.overdue() <= 0:
            seed = (search.limits.seed * 7919 + turn) % 2**31
            least = _lower_sum(state, cost, steps, seed)
            turn += 1
            idle = idle + 1 if least >= total * (1 - 1e-4) else 0
            total = least
            search.offer(costs.read_back(best.stage, state.slots(), state.sends_to[:-1].copy()))


def _lower_sum(state: State, cost: StageTimes, steps: int, seed: int) -> float:
    """Lower the sum of stage times of `state` in place; return it in seconds."""
    anneal(cost, state, steps, seed, 0.0, 0.0)
    return float(cost.current.sum())
