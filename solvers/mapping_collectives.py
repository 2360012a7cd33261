"""What tree and hierarchical all-reduce take at least on each set of devices, sets as bits."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..formulations.mapping import MappingCosts
from ..instances.arrays import Floats, Ints


def other_collectives(costs: MappingCosts, s: int) -> Floats:
    """Return a lower bound of an all-reduce of stage s that is no ring, shape (2^D,).

    A tree spans the set, so it has a message as long as the longest of a bottleneck spanning tree.
    Hierarchical rings give each device its two best neighbours (one in a ring of two) at least.
    `inf` for sets that are not of R devices, and for all where only rings are allowed.
    """
    if np.isinf(costs.detour[s]):
        return np.full(1 << costs.size, np.inf)
    steps, by_bytes = costs.ring[s]
    size = float(by_bytes / steps * costs.replicas)
    found: Floats = _bounds(costs.latency, costs.inverse, costs.island, costs.replicas, size)
    return found


def by_island(costs: MappingCosts, members: Ints) -> Ints:
    """Return devices in the order in which a hierarchical all-reduce uses them."""
    return members[np.argsort(costs.island[members], kind="stable")]


@njit(cache=True)
def _bounds(latency, inverse, island, replicas, size):  # type: ignore[no-untyped-def]
    devices = len(latency)
    out = np.full(1 << devices, np.inf)
    depth = 0
    while 2 << depth <= replicas:
        depth += 1
    members = np.empty(replicas, np.int64)
    for mask in range(1, 1 << devices):
        count = 0
        for d in range(devices):
            if mask >> d & 1:
                if count < replicas:
                    members[count] = d
                count += 1
        if count != replicas:
            continue
        out[mask] = 2 * depth * _widest_tree(latency, inverse, members, size)
        k = 0
        for d in members:
            if island[d] == island[members[0]]:
                k += 1
        if k == 1 or k == replicas or replicas % k:
            continue
        g = replicas // k
        inside = _neighbours(latency, inverse, island, members, size / k, k, True)
        across = _neighbours(latency, inverse, island, members, size / (k * g), g, False)
        out[mask] = min(out[mask], 2 * (k - 1) * inside + 2 * (g - 1) * across)
    return out


@njit(cache=True)
def _widest_tree(latency, inverse, members, size):  # type: ignore[no-untyped-def]
    """Longest message of a spanning tree whose longest message is shortest."""
    count = len(members)
    near = np.full(count, np.inf)
    done = np.zeros(count, np.bool_)
    near[0] = 0.0
    longest = 0.0
    for _ in range(count):
        best = -1
        for i in range(count):
            if not done[i] and (best < 0 or near[i] < near[best]):
                best = i
        done[best] = True
        longest = max(longest, near[best])
        for i in range(count):
            cost = latency[members[best], members[i]] + size * inverse[members[best], members[i]]
            if not done[i] and cost < near[i]:
                near[i] = cost
    return longest


@njit(cache=True)
def _neighbours(latency, inverse, island, members, size, length, inside):  # type: ignore[no-untyped-def]
    """Longest of the messages that every device needs in a ring of `length`, inside or across."""
    longest = 0.0
    for a in members:
        first, second = np.inf, np.inf
        for b in members:
            if a == b or (island[a] == island[b]) != inside:
                continue
            cost = latency[a, b] + size * inverse[a, b]
            if cost < first:
                first, second = cost, first
            elif cost < second:
                second = cost
        longest = max(longest, first if length == 2 else second)
    return longest
