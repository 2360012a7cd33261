"""What an all-reduce takes on each set of a few devices, sets as bits: rings, trees, hierarchical.

*Rings*: the bottleneck travelling salesman, by a DP over sets. *Trees*: the bottleneck binary tree
that is complete, its last level filled from the left; a subtree is told by its size, and with the
tables of its two children's sizes a set's best tree is a split of the set into root, left and right
subtree. *Hierarchical rings* have lower bounds only.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.costs import MappingCosts
from ...instances.common.arrays import Floats, Ints
from ...instances.common.kernel import inner, kernel


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


def set_trees(cost: Floats, replicas: int) -> Floats:
    """Return the least largest link of a tree over each set of R devices; shape (2^D,).

    O(D · 2^D · 2^R) time at worst, `inf` for other sets.
    """
    _, _, best = _tables(cost, *_shapes(replicas))
    found: Floats = best.min(axis=1)
    return found


def best_tree(cost: Floats) -> Ints:
    """Return the order of all devices in which their tree has the least largest link.

    The parent of position i is position ⌊(i−1)/2⌋.
    """
    sizes, left, right = _shapes(len(cost))
    links, halves, best = _tables(cost, sizes, left, right)
    order = np.empty(len(cost), np.int64)

    def place(position: int, k: int, mask: int, root: int) -> None:
        order[position] = root
        if sizes[k] == 1:
            return
        low = int(halves[k, mask, root])
        parts = [(left[k], low), (right[k], mask ^ low ^ 1 << root)]
        for side, (child, part) in enumerate(parts[: 1 if right[k] < 0 else 2]):
            place(2 * position + 1 + side, child, part, int(links[child, part, root]))

    full = (1 << len(cost)) - 1
    place(0, len(sizes) - 1, full, int(best[full].argmin()))
    return order


def _shapes(replicas: int) -> tuple[Ints, Ints, Ints]:
    """Sizes of all subtrees, increasing, and which of them each one's children are; −1 for none."""
    children: dict[int, tuple[int, int]] = {}
    todo = [replicas]
    while todo:
        n = todo.pop()
        if n in children:
            continue
        half = 1 << max(0, n.bit_length() - 2)  # devices on a full last level of the left subtree
        low = half - 1 + min(half, n - (2 * half - 1)) if n > 1 else 0
        children[n] = low, max(0, n - 1 - low)
        todo += [part for part in children[n] if part]
    sizes = sorted(children)
    at = {n: k for k, n in enumerate(sizes)} | {0: -1}
    sides = [[at[children[n][side]] for n in sizes] for side in (0, 1)]
    return np.array(sizes), np.array(sides[0]), np.array(sides[1])


@kernel
def _tables(cost, sizes, left, right):
    """Tables over sizes, sets and devices outside or in the set.

    Returns for a device outside of the set the root to which it should be linked, for a root the
    set of its left subtree, and for the last size the least largest link with each root.
    """
    size, count = len(cost), len(sizes)
    links = np.full((count, 1 << size, size), -1, np.int8)
    linked = np.full((count, 1 << size, size), np.inf)
    halves = np.zeros((count, 1 << size, size), np.int32)
    bits = np.zeros(1 << size, np.int8)
    for mask in range(1, 1 << size):
        bits[mask] = bits[mask >> 1] + (mask & 1)
    best = np.full((1 << size, size), np.inf)
    for k in range(count):
        best[:] = np.inf
        for mask in range(1, 1 << size):
            if bits[mask] != sizes[k]:
                continue
            for root in range(size):
                if not mask >> root & 1:
                    continue
                if sizes[k] == 1:
                    best[mask, root] = 0.0
                    continue
                rest = mask ^ 1 << root
                part = rest
                while part:
                    if bits[part] == sizes[left[k]]:
                        value = linked[left[k], part, root]
                        if right[k] >= 0:
                            value = max(value, linked[right[k], rest ^ part, root])
                        if value < best[mask, root]:
                            best[mask, root] = value
                            halves[k, mask, root] = part
                    part = (part - 1) & rest
            for v in range(size):
                if mask >> v & 1:
                    continue
                for root in range(size):
                    if mask >> root & 1:
                        value = max(cost[v, root], best[mask, root])
                        if value < linked[k, mask, v]:
                            linked[k, mask, v] = value
                            links[k, mask, v] = root
    return links, halves, best
