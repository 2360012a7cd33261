"""Kernels of the exact search: depth-first search over sets of devices, and their all-reduces.

Sets are bits. The least time of an all-reduce on each set is found by kind. *Rings*: the bottleneck
travelling salesman, by a DP over sets. *Trees*: the bottleneck binary tree that is complete, its
last level filled from the left; a subtree is given by its size, and a set's best tree is a split of
the set into root, left and right subtree, by the tables of the two sizes. *Hierarchical rings* have
lower bounds only.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.costs import MappingCosts
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import kernel, load_numba

njit = load_numba().njit


def sets_of(size: int, replicas: int) -> tuple[Ints, Bools]:
    """Return all sets of R devices as bits, ascending, and which devices are in each; (C, D)."""
    every = np.arange(1 << size)
    inside = (every[:, None] >> np.arange(size) & 1).astype(np.bool_)
    of_size = inside.sum(axis=1) == replicas
    return every[of_size], inside[of_size]


def able_alone(
    rings: Floats, pairs: Floats, pairs_before: Floats, slack: float, before: float, replicas: int
) -> Bools:
    """Return which sets of R devices may serve a stage, by ring and best neighbours; (2^D,).

    Neighbours are outside the set; `before` bounds the messages from the stage before.
    """
    sets, inside = sets_of(len(pairs), replicas)
    out, into = (
        np.where(inside[:, None, :], np.inf, cost[None]).min(axis=2)
        for cost in (pairs, pairs_before.T)
    )
    out[np.isinf(out)] = 0.0  # the last stage has all that are left
    able = (rings[sets, None] + out <= slack) & (into <= before)
    found = np.zeros(len(rings), np.bool_)
    found[sets] = (able | ~inside).all(axis=1)
    return found


def containing(holds: Bools, size: int) -> Bools:
    """Return which sets contain a set of `holds`; shape (2^D,) both."""
    found = holds.copy()
    for d in range(size):
        pairs = found.reshape(-1, 2, 1 << d)  # sets without device d, and with it
        pairs[:, 1] |= pairs[:, 0]
    return found


@njit(cache=True)
def place_stages(tables, walk, failed, steps, replicas):
    """Continue the depth-first search: 1 found, 0 refuted, −1 out of steps.

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
            # the slack that the ring leaves is for the messages
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


def set_rings(cost: Floats, replicas: int) -> Floats:
    """Return the least largest link of a ring through each set of R devices; shape (2^D,)."""
    out = np.zeros(1 << len(cost))
    if replicas > 1:
        sets, inside = sets_of(len(cost), replicas)
        first = inside.argmax(axis=1)
        closed = np.maximum(_paths(cost, len(cost))[sets], cost[:, first].T)
        inside[np.arange(len(sets)), first] = False
        out[sets] = closed.min(axis=1, where=inside, initial=np.inf)
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
    r, size, island = costs.replicas, costs.reduced_bytes(s), costs.island
    sets, inside = sets_of(costs.size, r)
    near = island[:, None] == island[None, :]
    others = near & ~np.eye(len(near), dtype=np.bool_)
    together = (inside & near[inside.argmax(axis=1)]).sum(axis=1)
    out = np.full(1 << costs.size, np.inf)
    for k in range(2, r):
        if r % k == 0 and (together == k).any():
            some = inside[together == k]
            within = _neighbours(costs, some, size / k, k, others)
            across = _neighbours(costs, some, size / r, r // k, ~near)
            out[sets[together == k]] = 2 * (k - 1) * within + 2 * (r // k - 1) * across
    return out


def _neighbours(costs: MappingCosts, sets: Bools, size: float, length: int, among: Bools) -> Floats:
    """Return the longest message that rings over pairs `among` need in each set, shape (C,)."""
    message = np.where(among, costs.latency + size * costs.inverse, np.inf)
    able = np.where(sets[:, None, :], message[None], np.inf)
    last = min(1, length - 2)
    needed = np.partition(able, last, axis=2)[:, :, last]
    longest: Floats = needed.max(axis=1, where=sets, initial=0.0)
    return longest


def by_island(costs: MappingCosts, members: Ints) -> Ints:
    """Return devices in the order in which a hierarchical all-reduce uses them."""
    return members[np.argsort(costs.island[members], kind="stable")]


def _messages(costs: MappingCosts, s: int) -> Floats:
    """Shape (D, D): seconds of a message of all bytes that stage s reduces."""
    return costs.latency + costs.reduced_bytes(s) * costs.inverse


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
    """Sizes of all subtrees, ascending, and the numbers of each one's children; −1 for none."""
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
