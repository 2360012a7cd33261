"""Exact mapping to at most 16 devices: sets of devices as bits.

The least longest link of a ring through each set of R devices comes from a DP over sets (bottleneck
travelling salesman). At a target T, stages are placed one after the other; a state is the set of
devices used and the set of the last stage, and a state that failed is not tried again. The least
T is found by bisection between bound and incumbent, each success moving the incumbent down to a
mapping's own value, so that the answer is exact.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numba import njit, types
from numba.typed import Dict

from ..formulations.mapping import MappingCosts, stage_times
from ..formulations.mapping_bound import WIDTH
from ..instances.arrays import Floats, Ints
from .mapping_layouts import matched
from .search import Stoppable

MAX_DEVICES = 16
#: States per slice, between two looks at the clock: some tenths of a second.
SLICE = 20_000


def exact(
    costs: MappingCosts, low: float, high: float, clock: Stoppable
) -> tuple[float, tuple[Ints, Ints] | None, bool]:
    """Search the least max stage time between `low` and `high`.

    Parameters
    ----------
    low
        No mapping is better.
    high
        Value of a known mapping.

    Returns
    -------
    bound, mapping, finished
        The proved bound, the best mapping below `high` (None if there is none), and whether the
        search came to its end.
    """
    sets = np.array(
        [sum(1 << d for d in c) for c in combinations(range(costs.size), costs.replicas)], np.int64
    )
    rings = np.zeros((costs.stages, len(sets)))
    known: dict[tuple[float, float], Floats] = {}
    for s in range(costs.stages):
        key = (float(costs.ring[s, 0]), float(costs.ring[s, 1]))
        if key != (0.0, 0.0):
            if key not in known:
                if clock.should_stop():
                    return low, None, False
                known[key] = _rings(costs.ring_costs(s), sets)
            # a set may do without a ring: then the bound holds, but a mapping may not reach it
            rings[s] = np.minimum(known[key], costs.detour[s])
    pairs = np.array([costs.boundary_costs(s) for s in range(costs.stages)])
    best: tuple[Ints, Ints] | None = None
    target = high * (1 - WIDTH)
    rings_only = bool(np.isinf(costs.detour).all())
    while low < high * (1 - WIDTH):
        found = _decide(costs, sets, rings, pairs, target, clock)
        if found is None:
            return low, best, False
        if len(found):
            slots = np.array([_ring(costs, s, int(mask)) for s, mask in enumerate(found)])
            best = slots, matched(costs, slots)
            high = float(stage_times(costs, *best).max()) if rings_only else target
        else:
            low = target
        # below a first success the optimum is anywhere; near it, one refutation ends the search
        target = high * (1 - WIDTH) if high - low < 0.02 * high else (low + high) / 2
    return low, best, True


def _decide(
    costs: MappingCosts,
    sets: Ints,
    rings: Floats,
    pairs: Floats,
    target: float,
    clock: Stoppable,
) -> Ints | None:
    """Return a set of devices per stage with T_s ≤ target, [] if none exists, None if stopped."""
    room = target - costs.base
    failed = Dict.empty(types.int64, types.boolean)
    path = np.zeros(costs.stages, np.int64)
    at = np.zeros(costs.stages, np.int64)
    level = np.zeros(1, np.int64)
    near = np.zeros((costs.stages, costs.size + 1), np.int64)
    while True:
        if clock.should_stop():
            return None
        end = _place(sets, rings, pairs, room, failed, path, at, level, near, SLICE, costs.replicas)
        if end >= 0:
            return path if end == 1 else np.zeros(0, np.int64)


@njit(cache=True)
def _place(sets, rings, pairs, room, failed, path, at, level, near, steps, replicas):  # type: ignore[no-untyped-def]
    """Depth-first search from where it stood: 1 found, 0 refuted, −1 out of steps.

    near[s, d] is the set of devices that device d of stage s may send to, near[s, −1] their union.
    """
    stages = len(path)
    size = near.shape[1] - 1
    s = level[0]
    for _ in range(steps):
        used = 0
        for k in range(s):
            used |= path[k]
        placed = False
        for index in range(at[s], len(sets)):
            mask = sets[index]
            if used & mask or rings[s, index] > room[s]:
                continue
            if s > 0:
                if mask & ~near[s - 1, size]:
                    continue
                if not _matches(path[s - 1], mask, near[s - 1], size):
                    continue
            if (used | mask) << 16 | mask in failed:
                continue
            path[s] = mask
            at[s] = index + 1
            placed = True
            break
        if placed:
            if s + 1 == stages:
                return 1
            # the ring is paid; what is left is for the messages
            cap = (room[s] - rings[s, at[s] - 1]) * (1 + 1e-12)
            near[s, size] = 0
            for a in range(size):
                near[s, a] = 0
                if path[s] >> a & 1:
                    for b in range(size):
                        if a != b and pairs[s, a, b] <= cap:
                            near[s, a] |= 1 << b
                    near[s, size] |= near[s, a]
            s += 1
            at[s] = 0
        else:
            if s == 0:
                return 0
            s -= 1
            failed[(used << 16) | path[s]] = True
        level[0] = s
    return -1


@njit(cache=True)
def _matches(left, right, near, size):  # type: ignore[no-untyped-def]
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
def _augment(a, right, near, mate, seen):  # type: ignore[no-untyped-def]
    able = near[a] & right
    for b in range(len(mate)):
        if able >> b & 1 and not seen[0] >> b & 1:
            seen[0] |= 1 << b
            if mate[b] < 0 or _augment(mate[b], right, near, mate, seen):
                mate[b] = a
                return True
    return False


@njit(cache=True)
def _paths(cost, size):  # type: ignore[no-untyped-def]
    """least[set, v]: least largest link of a path through the set from its lowest device to v."""
    least = np.full((1 << size, size), np.inf)
    for d in range(size):
        least[1 << d, d] = 0.0
    for mask in range(1, 1 << size):
        low = 0
        while not mask >> low & 1:
            low += 1
        for v in range(low, size):
            here = least[mask, v]
            if here == np.inf:
                continue
            for w in range(low + 1, size):
                if not mask >> w & 1:
                    value = max(here, cost[v, w])
                    if value < least[mask | 1 << w, w]:
                        least[mask | 1 << w, w] = value
    return least


@njit(cache=True)
def _rings(cost, sets):  # type: ignore[no-untyped-def]
    """Least largest link of a ring through each set; 0 for sets of one device."""
    size = len(cost)
    least = _paths(cost, size)
    out = np.zeros(len(sets))
    for k in range(len(sets)):
        mask = sets[k]
        low = 0
        while not mask >> low & 1:
            low += 1
        if mask == 1 << low:
            continue
        best = np.inf
        for v in range(low + 1, size):
            if mask >> v & 1:
                best = min(best, max(least[mask, v], cost[v, low]))
        out[k] = best
    return out


def _ring(costs: MappingCosts, s: int, mask: int) -> Ints:
    """Return the devices of a set in the order of their best ring in stage s."""
    members = [d for d in range(costs.size) if mask >> d & 1]
    if not costs.ring[s].any() or len(members) < 4:
        return np.array(members)
    cost = costs.ring_costs(s)[np.ix_(members, members)]
    least = _paths(cost, len(members))
    left = (1 << len(members)) - 1
    closing = [max(least[left, v], cost[v, 0]) for v in range(1, len(members))]
    v = int(np.argmin(closing)) + 1
    limit = closing[v - 1]
    order = [v]
    while v:
        left ^= 1 << v
        v = next(
            w
            for w in range(len(members))
            if left >> w & 1 and least[left, w] <= limit and cost[w, v] <= limit
        )
        order.append(v)
    return np.array([members[i] for i in order])
