"""What tree and hierarchical all-reduce take on each set of devices, sets as bits."""

from __future__ import annotations

import numpy as np

from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import inner, kernel
from .set_trees import best_tree, set_trees


def tree_times(costs: MappingCosts, s: int) -> Floats:
    """Return the least time of a tree all-reduce of stage s in each set of devices, shape (2^D,).

    `inf` for sets that are not of R devices.
    """
    return 2 * (costs.replicas.bit_length() - 1) * set_trees(_messages(costs, s), costs.replicas)


def tree_order(costs: MappingCosts, s: int, members: Ints) -> Ints:
    """Return the devices of stage s in the order of their best tree."""
    return members[best_tree(_messages(costs, s)[np.ix_(members, members)])]


def hierarchical_bounds(costs: MappingCosts, s: int) -> Floats:
    """Return a lower bound of a hierarchical all-reduce of stage s in each set, shape (2^D,).

    Its rings give each device its two best neighbours (one in a ring of two) at least. `inf` for
    sets that have none.
    """
    size = costs.reduced_bytes(s)
    found: Floats = _bounds(costs.latency, costs.inverse, costs.island, costs.replicas, size)
    return found


def by_island(costs: MappingCosts, members: Ints) -> Ints:
    """Return devices in the order in which a hierarchical all-reduce uses them."""
    return members[np.argsort(costs.island[members], kind="stable")]


def _messages(costs: MappingCosts, s: int) -> Floats:
    """Shape (D, D): what a message of all that stage s reduces takes."""
    return costs.latency + costs.reduced_bytes(s) * costs.inverse


@kernel
def _bounds(latency, inverse, island, replicas, size):
    """Lower bound of the hierarchical all-reduce of each set of R devices; shape (2^D,)."""
    devices = len(latency)
    out = np.full(1 << devices, np.inf)
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
        k = 0
        for d in members:
            if island[d] == island[members[0]]:
                k += 1
        if k == 1 or k == replicas or replicas % k:
            continue
        g = replicas // k
        inside = _neighbours(latency, inverse, island, members, size / k, k, True)
        across = _neighbours(latency, inverse, island, members, size / (k * g), g, False)
        out[mask] = 2 * (k - 1) * inside + 2 * (g - 1) * across
    return out


@inner
def _neighbours(latency, inverse, island, members, size, length, inside):
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
