"""Exact search for mappings to at most 16 devices, with sets of devices as bits.

The least longest link of a ring through each set of R devices comes from a DP over sets (bottleneck
travelling salesman). At a target T, stages are placed one after the other; a state is the set of
devices used and the set of the last stage, and a state that failed is not tried again. T is just
below the incumbent: a success makes the mapping found the incumbent, a failure proves it optimal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import types
from numba.typed import Dict
from numpy.typing import NDArray

from ...formulations.mapping.bound import BISECTION_WIDTH, LowerBounds, Verdict, fitting
from ...formulations.mapping.costs import MappingCosts, stage_times
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.search import Clock
from . import layouts
from .exact_kernels import (
    able_alone,
    best_ring,
    by_island,
    hierarchical_bounds,
    place_stages,
    set_rings,
    sets_of,
    tree_bounds,
)


class Tables(NamedTuple):
    """Tables over the 2^D sets of devices at a target time; C of the sets have R devices."""

    rings: Floats  # (S, 2^D) least all-reduce, without overlap plus `own` of the slowest device
    pairs: Floats  # (S, D, D) cost of a message
    slack: Floats  # (S,)
    allowed: Ints  # (S,) devices that fit the stage
    holds: Bools  # (S, 2^D) whether the set may serve the stage
    rank: NDArray[np.int32]  # (2^D,) number of a set of R devices
    matched: NDArray[np.int8]  # (S, C, C) whether two sets match, −1 where not known; or empty


class Walk(NamedTuple):
    """Position of the depth-first search: sets of the stages placed, and those to be tried next."""

    path: Ints  # (S,) set of each stage
    free: Ints  # (S,) devices for the stage
    at: Ints  # (S,) subset of those, to be tried next
    level: Ints  # (1,) stage to be placed
    near: Ints  # (S, D) devices to which each device of a stage may send


def exact(
    costs: MappingCosts, lower_bounds: LowerBounds, low: float, high: float, clock: Clock
) -> tuple[float, list[tuple[Ints, Ints]], bool]:
    """Minimise the longest stage time between a bound and that of a known mapping, in seconds.

    Returns the proved bound, the mappings below `high` in the order in which they were found, and
    whether the search came to its end.
    """
    rings = np.zeros((costs.stages, 1 << costs.size))
    across = np.full_like(rings, np.inf)
    known: dict[tuple[float, float], int] = {}
    for s in range(costs.stages):
        key = (float(costs.ring[s, 0]), float(costs.ring[s, 1]))
        if key == (0.0, 0.0):
            continue
        if key in known:
            rings[s], across[s] = rings[known[key]], across[known[key]]
            continue
        if clock.should_stop():
            return low, [], False
        known[key] = s
        rings[s] = set_rings(costs.ring_costs(s), costs.replicas)
        if np.isfinite(costs.non_ring_lower_bound[s]):
            # trees and hierarchical rings have bounds only, which a mapping may not reach
            across[s] = hierarchical_bounds(costs, s)
            rings[s] = np.minimum(rings[s], np.minimum(tree_bounds(costs, s), across[s]))
    slowest = np.zeros_like(rings)
    for s in range(costs.stages if costs.unlike else 0):
        for d in range(costs.size):  # sets whose last device is d
            slowest[s, 1 << d : 2 << d] = np.maximum(slowest[s, : 1 << d], costs.own[s, d])
    if not costs.overlap:  # it counts like an all-reduce
        rings, across = rings + slowest, across + slowest
    pairs = np.array([costs.boundary_costs(s) for s in range(costs.stages)])
    mappings: list[tuple[Ints, Ints]] = []
    target = high * (1 - BISECTION_WIDTH)
    while low < high * (1 - BISECTION_WIDTH):
        verdict, found = _decide(costs, lower_bounds, rings, pairs, target, clock)
        if verdict is Verdict.UNKNOWN:
            return low, mappings, False
        if verdict is Verdict.FEASIBLE:
            slots = np.array([best_ring(costs, s, int(mask)) for s, mask in enumerate(found)])
            for s, mask in enumerate(found.tolist()):
                if across[s, mask] == rings[s, mask]:
                    slots[s] = by_island(costs, slots[s])
            mappings.append((slots, layouts.matched(costs, slots)))
            high = _value(costs, rings, slowest, found, *mappings[-1])
        else:
            return target, mappings, True
        target = high * (1 - BISECTION_WIDTH)
    return low, mappings, True


def _value(
    costs: MappingCosts, rings: Floats, slowest: Floats, masks: Ints, slots: Ints, sends_to: Ints
) -> float:
    """Return the longest stage time in seconds, with the all-reduces of sets in `rings`."""
    around, own = (of[np.arange(costs.stages), masks] for of in (rings, slowest))
    rest = replace(costs, ring=np.zeros_like(costs.ring), own=np.zeros_like(costs.own))
    times = stage_times(rest, slots, sends_to) + around
    return float((np.maximum(times, own) if costs.overlap else times).max())


def _decide(
    costs: MappingCosts,
    lower_bounds: LowerBounds,
    rings: Floats,
    pairs: Floats,
    target: float,
    clock: Clock,
) -> tuple[Verdict, Ints]:
    """Test a target in seconds; return the set of devices per stage, shape (S,), if feasible."""
    nothing = np.zeros(0, np.int64)
    fits = fitting(costs, lower_bounds, target)
    if fits is None:
        return Verdict.INFEASIBLE, nothing
    allowed = (fits * (1 << np.arange(costs.size))).sum(axis=1)
    slack = (target - costs.base) * (1 + 1e-12)
    holds = np.zeros((costs.stages, 1 << costs.size), np.bool_)
    for s in range(costs.stages):
        before = slack[s - 1] - lower_bounds.allreduce[s - 1] if s else np.inf
        holds[s] = able_alone(rings[s], pairs[s], pairs[s - 1], slack[s], before, costs.replicas)
    rank = np.zeros(1 << costs.size, np.int32)
    sets, _ = sets_of(costs.size, costs.replicas)
    rank[sets] = np.arange(len(sets))
    # whether two sets match along a boundary is looked up many times; a byte each, 32 MiB at most
    remembered = costs.stages * len(sets) ** 2 <= 1 << 25
    shape = (costs.stages, len(sets), len(sets)) if remembered else (0, 0, 0)
    matched = np.full(shape, -1, np.int8)
    failed = Dict.empty(types.int64, types.boolean)
    none = np.zeros(costs.stages, np.int64)
    near = np.zeros((costs.stages, costs.size), np.int64)
    tables = Tables(rings, pairs, slack, allowed, holds, rank, matched)
    walk = Walk(none.copy(), none.copy(), none.copy(), np.zeros(1, np.int64), near)
    walk.free[0] = allowed[0]
    walk.at[0] = (1 << costs.replicas) - 1
    while True:
        if clock.should_stop():
            return Verdict.UNKNOWN, nothing
        # half a million sets take some tenths of a second between two looks at the clock
        end = place_stages(tables, walk, failed, 500_000, costs.replicas)
        if end >= 0:
            return (Verdict.FEASIBLE, walk.path) if end else (Verdict.INFEASIBLE, nothing)
