"""Best rings of small sets of devices: the bottleneck travelling salesman, by a DP over sets."""

from __future__ import annotations

import numpy as np

from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Ints
from ....instances.common.kernel import kernel


@kernel
def _paths(cost, size):
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


@kernel
def set_rings(cost, replicas):
    """Least largest link of a ring through each set of R devices; shape (2^D,)."""
    size = len(cost)
    least = _paths(cost, size)
    out = np.zeros(1 << size)
    for mask in range(1, 1 << size):
        count, low = 0, -1
        for d in range(size):
            if mask >> d & 1:
                count += 1
                if low < 0:
                    low = d
        if count != replicas or count == 1:
            continue
        best = np.inf
        for v in range(low + 1, size):
            if mask >> v & 1:
                best = min(best, max(least[mask, v], cost[v, low]))
        out[mask] = best
    return out


def best_ring(costs: MappingCosts, s: int, mask: int) -> Ints:
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
