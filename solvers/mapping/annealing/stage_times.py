"""Descents on the stage times themselves: for all-reduces other than rings, and to break ties.

Of mappings with one longest stage the least sum of stage times is sought, as the objective says
nothing about the others: a step of that descent is kept if the sum falls and no stage exceeds its
upper bound.
"""

from __future__ import annotations

import numpy as np

from ....formulations.mapping.costs import MappingCosts, mapping_costs, stage_times
from ....formulations.task import Task
from ....instances import DeviceMapping, ReplicaPlacement, Solution, stage_costs
from ....instances.common.arrays import Floats, Ints
from ...core.search import Search
from ..parameters import COOLING, TIE_MESSAGES, TIE_PATIENCE, TIE_STEPS, TIME_POWER
from .anneal_kernel import anneal
from .stage_times_kernel import StageTimes
from .state_kernel import State, state_of


def stage_times_cost(
    costs: MappingCosts,
    scale: float,
    *,
    power: int = TIME_POWER,
    upper_bound: Floats | None = None,
    orders_only: bool = False,
) -> StageTimes:
    """Return Σ_s (T_s / scale)^power as a cost for `anneal`.

    Parameters
    ----------
    scale
        In seconds.
    upper_bound
        Shape (S,): no stage may take longer, in seconds; default: no limit.
    orders_only
        Whether each stage keeps its devices and their messages, and only their order may change.
    """
    stages = costs.stages
    return StageTimes(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        costs.base,
        costs.island,
        np.array([costs.reduced_bytes(s) for s in range(stages)]),
        bool(np.isinf(costs.non_ring_lower_bound).all()),
        np.full(stages, np.inf) if upper_bound is None else upper_bound,
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
    """Return a mapping of shorter stages; O(steps · R) time.

    Parameters
    ----------
    slots, sends_to
        Shapes (S, R) and (S−1, R): the mapping to begin with.
    hot
        Temperature to begin with, in the unit of the longest stage's power.
    orders_only
        Whether each stage keeps its devices and their messages, and only their order may change.
    """
    state = state_of(costs, slots, sends_to)
    scale = float(stage_times(costs, slots, sends_to).max())
    cost = stage_times_cost(costs, scale, orders_only=orders_only)
    anneal(cost, state, steps, seed, hot, hot * COOLING)
    return state.slots(), state.sends_to[:-1].copy()


def break_ties(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Lower the sum of the incumbent's stage times while there is time; its maximum stays."""
    best, problem = search.best, task.problem
    if not isinstance(best, ReplicaPlacement) or best.slots.size < 2:
        return
    with search.phase("ties"):
        costs = mapping_costs(stage_costs(task.workload, best.stage, problem.stages), problem)
        state = state_of(costs, costs.numbers(best.slots), best.sends_to)
        cost = stage_times_cost(costs, 1.0, power=1)
        steps = 1000 + min(TIE_MESSAGES // problem.replicas, TIE_STEPS * best.slots.size)
        total = _lower_sum(state, cost, 0, 0)
        cost.upper_bound[:] = cost.current.max()
        idle, turn = 0, 0
        while idle < TIE_PATIENCE and search.seconds_left > 0.2 and search.overdue() <= 0:
            seed = (search.limits.seed * 7919 + turn) % 2**31
            least = _lower_sum(state, cost, steps, seed)
            turn += 1
            idle = idle + 1 if least >= total * (1 - 1e-4) else 0
            total = least
            search.offer(costs.read_back(best.stage, state.slots(), state.sends_to[:-1].copy()))


def _lower_sum(state: State, cost: StageTimes, steps: int, seed: int) -> float:
    """Descend `state` in place; return the sum of its stage times in seconds."""
    anneal(cost, state, steps, seed, 0.0, 0.0)
    return float(cost.current.sum())
