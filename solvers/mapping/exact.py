"""Exact mapping to at most 16 devices: sets of devices as bits.

The least longest link of a ring through each set of R devices comes from a DP over sets (bottleneck
travelling salesman). At a target T, stages are placed one after the other; a state is the set of
devices used and the set of the last stage, and a state that failed is not tried again. T is just
below the incumbent: a success makes the mapping found the incumbent, a failure proves it optimal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.typed import Dict
from numpy.typing import NDArray

from ...formulations.mapping.bound import BISECTION_WIDTH, LowerBounds, fitting
from ...formulations.mapping.costs import MappingCosts, stage_times
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import kernel
from ..core.search import Stoppable
from . import layouts
from .parameters import EXACT_SLICE, REMEMBERED_PAIRS
from .set_tables_kernel import (
    best_ring,
    by_island,
    hierarchical_bounds,
    set_rings,
    tree_order,
    tree_times,
)


class Tables(NamedTuple):
    """What is known of sets of devices at a target; sets are bits, 2^D of them.

    C sets have R devices.
    """

    rings: Floats  # (S, 2^D) least all-reduce
    pairs: Floats  # (S, D, D) cost of a message
    slack: Floats  # (S,)
    allowed: Ints  # (S,) devices that fit the stage
    holds: Bools  # (S, 2^D) may be the stage
    later: Bools  # (S, 2^D) contain a set that may be the stage
    rank: NDArray[np.int32]  # (2^D,) number of a set of R devices
    matched: NDArray[np.int8]  # (S, C, C) whether two sets match, −1 where not known; or empty


class Walk(NamedTuple):
    """Where the search stands: the stages placed, and what is left to try."""

    path: Ints  # (S,) set of each stage
    free: Ints  # (S,) devices for the stage
    at: Ints  # (S,) subset of those, to be tried next
    level: Ints  # (1,) stage to be placed
    near: Ints  # (S, D) devices to which each device of a stage may send


def exact(
    costs: MappingCosts, lower_bounds: LowerBounds, low: float, high: float, clock: Stoppable
) -> tuple[float, list[tuple[Ints, Ints]], bool]:
    """Search the least max stage time between `low` and `high`.

    Parameters
    ----------
    least
        Lower bounds of both terms of each stage.
    low
        No mapping is better.
    high
        Value of a known mapping.

    Returns
    -------
    bound, mappings, finished
        The proved bound, the mappings below `high` in the order in which they were found, and
        whether the search came to its end.
    """
    rings = np.zeros((costs.stages, 1 << costs.size))
    trees, across = np.full_like(rings, np.inf), np.full_like(rings, np.inf)
    known: dict[tuple[float, float], int] = {}
    for s in range(costs.stages):
        key = (float(costs.ring[s, 0]), float(costs.ring[s, 1]))
        if key == (0.0, 0.0):
            continue
        if key in known:
            rings[s], trees[s], across[s] = (each[known[key]] for each in (rings, trees, across))
            continue
        if clock.should_stop():
            return low, [], False
        known[key] = s
        rings[s] = set_rings(costs.ring_costs(s), costs.replicas)
        if np.isfinite(costs.non_ring_lower_bound[s]):
            # hierarchical rings have bounds only, which a mapping may not reach
            trees[s], across[s] = tree_times(costs, s), hierarchical_bounds(costs, s)
            rings[s] = np.minimum(rings[s], np.minimum(trees[s], across[s]))
    pairs = np.array([costs.boundary_costs(s) for s in range(costs.stages)])
    mappings: list[tuple[Ints, Ints]] = []
    target = high * (1 - BISECTION_WIDTH)
    while low < high * (1 - BISECTION_WIDTH):
        found = _decide(costs, lower_bounds, rings, pairs, target, clock)
        if found is None:
            return low, mappings, False
        if len(found):
            slots = np.array([best_ring(costs, s, int(mask)) for s, mask in enumerate(found)])
            for s, mask in enumerate(found.tolist()):
                if trees[s, mask] == rings[s, mask]:
                    slots[s] = tree_order(costs, s, slots[s])
                elif across[s, mask] == rings[s, mask]:
                    slots[s] = by_island(costs, slots[s])
            mappings.append((slots, layouts.matched(costs, slots)))
            high = _value(costs, rings, found, *mappings[-1])
        else:
            return target, mappings, True
        target = high * (1 - BISECTION_WIDTH)
    return low, mappings, True


def _value(costs: MappingCosts, rings: Floats, masks: Ints, slots: Ints, sends_to: Ints) -> float:
    """Return the max stage time, each all-reduce at the least that `rings` knows of its set."""
    around = np.array([rings[s, mask] for s, mask in enumerate(masks.tolist())])
    sends = stage_times(replace(costs, ring=np.zeros_like(costs.ring)), slots, sends_to)
    return float((sends + around).max())


def _decide(
    costs: MappingCosts,
    lower_bounds: LowerBounds,
    rings: Floats,
    pairs: Floats,
    target: float,
    clock: Stoppable,
) -> Ints | None:
    """Return a set of devices per stage with T_s ≤ target, [] if none exists, None if stopped."""
    nothing = np.zeros(0, np.int64)
    fits = fitting(costs, lower_bounds, target)
    if fits is None:
        return nothing
    allowed = (fits * (1 << np.arange(costs.size))).sum(axis=1)
    slack = (target - costs.base) * (1 + 1e-12)
    holds = np.zeros((costs.stages, 1 << costs.size), np.bool_)
    for s in range(costs.stages):
        before = slack[s - 1] - lower_bounds.allreduce[s - 1] if s else np.inf
        holds[s] = _alone(rings[s], pairs[s], pairs[s - 1], slack[s], before, costs.replicas)
    later = np.array([_within(holds[s], costs.size) for s in range(costs.stages)])
    rank = np.zeros(1 << costs.size, np.int32)
    sets = [mask for mask in range(1 << costs.size) if mask.bit_count() == costs.replicas]
    rank[sets] = np.arange(len(sets))
    # whether two sets match along a boundary is looked up many times: −1 where not known
    remembered = costs.stages * len(sets) ** 2 <= REMEMBERED_PAIRS
    shape = (costs.stages, len(sets), len(sets)) if remembered else (0, 0, 0)
    matched = np.full(shape, -1, np.int8)
    failed = Dict.empty(types.int64, types.boolean)
    none = np.zeros(costs.stages, np.int64)
    near = np.zeros((costs.stages, costs.size), np.int64)
    tables = Tables(rings, pairs, slack, allowed, holds, later, rank, matched)
    walk = Walk(none.copy(), none.copy(), none.copy(), np.zeros(1, np.int64), near)
    walk.free[0] = allowed[0]
    walk.at[0] = (1 << costs.replicas) - 1
    while True:
        if clock.should_stop():
            return None
        end = _place(tables, walk, failed, EXACT_SLICE, costs.replicas)
        if end >= 0:
            return walk.path if end == 1 else nothing


@kernel
def _alone(rings, pairs, pairs_before, slack, before, replicas):
    """Which sets of R devices may be a stage, by its ring and the best neighbours of each device.

    Neighbours are outside the set; `before` bounds the messages from the stage before.
    """
    size = len(pairs)
    found = np.zeros(1 << size, np.bool_)
    for mask in range(1 << size):
        if rings[mask] > slack:
            continue
        count = 0
        for d in range(size):
            count += mask >> d & 1
        if count != replicas:
            continue
        ok = True
        for d in range(size):
            if not ok:
                break
            if mask >> d & 1:
                out, into = np.inf, np.inf
                for e in range(size):
                    if not mask >> e & 1:
                        out = min(out, pairs[d, e])
                        into = min(into, pairs_before[e, d])
                ok = rings[mask] + (0.0 if out == np.inf else out) <= slack
                ok &= before == np.inf or into <= before
        found[mask] = ok
    return found


@kernel
def _within(holds, size):
    """Which sets contain one of those given."""
    found = holds.copy()
    for d in range(size):
        for mask in range(1 << size):
            if mask >> d & 1 and found[mask ^ (1 << d)]:
                found[mask] = True
    return found


@njit(cache=True)
def _place(tables, walk, failed, steps, replicas):
    """Depth-first search from where it stood: 1 found, 0 refuted, −1 out of steps.

    Stage s takes a set of R devices out of free[s]: at[s] runs over the R-subsets of as many bits,
    in increasing order.
    """
    rings, pairs, slack, allowed, holds, later, rank, matched = tables
    path, free, at, level, near = walk
    stages, size = len(path), pairs.shape[1]
    members = np.empty(size, np.int64)
    s = level[0]
    while steps > 0:
        used = 0
        for k in range(s):
            used |= path[k]
        count = 0
        for d in range(size):
            if free[s] >> d & 1:
                members[count] = d
                count += 1
        placed = False
        while at[s] < 1 << count:
            steps -= 1
            bits = at[s]
            mask = 0
            for k in range(count):
                if bits >> k & 1:
                    mask |= 1 << members[k]
            at[s] = _next_subset(bits)
            if not holds[s, mask] or not _leaves_room(later, s, (1 << size) - 1 & ~(used | mask)):
                continue
            if s > 0:
                known = -1
                if len(matched):
                    known = matched[s, rank[path[s - 1]], rank[mask]]
                if known < 0:
                    known = int(_matches(path[s - 1], mask, near[s - 1], size))
                    if len(matched):
                        matched[s, rank[path[s - 1]], rank[mask]] = known
                if known == 0:
                    continue
            if (used | mask) << 16 | mask in failed:
                continue
            path[s] = mask
            placed = True
            break
        if placed:
            if s + 1 == stages:
                return 1
            # the ring is paid; what is left is for the messages
            reach = _receivers(path[s], pairs[s], slack[s] - rings[s, path[s]], near[s])
            free[s + 1] = allowed[s + 1] & reach & ~(used | path[s])
            s += 1
            at[s] = (1 << replicas) - 1
        else:
            if s == 0:
                return 0
            s -= 1
            failed[(used << 16) | path[s]] = True
        level[0] = s
    return -1


@njit(cache=True)
def _next_subset(bits):
    """The next larger number with as many bits."""
    lowest = bits & -bits
    ripple = bits + lowest
    return ripple | (((bits ^ ripple) >> 2) // lowest)


@njit(cache=True)
def _leaves_room(later, s, left):
    """Whether each stage after s may be a set of the devices left."""
    t = s + 1
    while t < len(later) and later[t, left]:
        t += 1
    return t == len(later)


@njit(cache=True)
def _receivers(mask, pairs, upper_bound, near):
    """Write the devices to which each of a set may send to `near`, shape (D,); return the union."""
    reach = 0
    for a in range(len(near)):
        near[a] = 0
        if mask >> a & 1:
            for b in range(len(near)):
                if a != b and pairs[a, b] <= upper_bound:
                    near[a] |= 1 << b
            reach |= near[a]
    return reach


@njit(cache=True)
def _matches(left, right, near, size):
    """Whether the devices of two sets can be paired along `near`."""
    for a in range(size):
        if left >> a & 1 and near[a] & right == 0:
            return False
    mate = np.full(size, -1, np.int64)
    seen = np.zeros(1, np.int64)
    for a in range(size):
        if left >> a & 1:
            seen[0] = 0
            if not _augment(a, right, near, mate, seen):
                return False
    return True


@njit(cache=True)
def _augment(a, right, near, mate, seen):
    """Whether an augmenting path from device a enlarges the matching `mate`; sets are bits."""
    able = near[a] & right
    for b in range(len(mate)):
        if able >> b & 1 and not seen[0] >> b & 1:
            seen[0] |= 1 << b
            if mate[b] < 0 or _augment(mate[b], right, near, mate, seen):
                mate[b] = a
                return True
    return False
