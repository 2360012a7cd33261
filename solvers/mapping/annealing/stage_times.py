"""Descents on the stage times themselves: for all-reduces other than rings, and to break ties."""

from __future__ import annotations

import numpy as np

from ....formulations.mapping.costs import MappingCosts, stage_times
from ....instances.common.arrays import Floats, Ints
from ..parameters import COOLING, TIME_POWER
from .anneal_kernel import anneal
from .stage_times_kernel import StageTimes
from .state import State, new_moves, state_of


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
        np.zeros(stages),
        np.zeros(stages),
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
    anneal(cost, state, new_moves(state), steps, seed, hot, hot * COOLING)
    return state.slots(), state.sends_to[:-1].copy()


def lower_sum(state: State, cost: StageTimes, steps: int, seed: int) -> float:
    """Descend `state` in place; return the sum of its stage times in seconds."""
    anneal(cost, state, new_moves(state), steps, seed, 0.0, 0.0)
    return float(cost.times.sum())
