"""Tie-breaking: lower the sum of the stage times while the longest stage stays as it is.

The objective says nothing about stages shorter than the longest. A step of this descent is kept if
the sum falls and no stage exceeds its upper bound.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.costs import mapping_costs
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution, stage_costs
from ..core.search import Search
from .annealing.stage_times import lower_sum, stage_times_cost
from .annealing.state import state_of
from .parameters import TIE_MESSAGES, TIE_PATIENCE, TIE_STEPS


def break_ties(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Lower the sum of the incumbent's stage times while there is time; its maximum stays."""
    best, problem = search.best, task.problem
    if not isinstance(best, ReplicaPlacement) or best.slots.size < 2:
        return
    with search.phase("ties"):
        costs = mapping_costs(stage_costs(task.workload, best.stage, problem.stages), problem)
        state = state_of(costs, costs.numbers(best.slots), best.sends_to)
        cost = stage_times_cost(costs, 1.0, power=1, upper_bound=np.zeros(costs.stages))
        steps = 1000 + min(TIE_MESSAGES // problem.replicas, TIE_STEPS * best.slots.size)
        total = lower_sum(state, cost, 0, 0)
        cost.upper_bound[:] = cost.times.max()
        idle, turn = 0, 0
        while idle < TIE_PATIENCE and search.seconds_left > 0.2 and search.overdue() <= 0:
            seed = (search.limits.seed * 7919 + turn) % 2**31
            least = lower_sum(state, cost, steps, seed)
            turn += 1
            idle = idle + 1 if least >= total * (1 - 1e-4) else 0
            total = least
            search.offer(costs.read_back(best.stage, state.slots(), state.sends_to[:-1].copy()))
