"""Kernels of the exact search: depth-first search over sets of devices, and their all-reduces.

Sets are bits. The least time of a ring on each set is that of the bottleneck travelling salesman,
by a DP over sets. Trees and hierarchical rings have lower bounds only.
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


@njit(cache=True)
def place_stages(tables, walk, failed, steps, replicas):
    """Continue the depth-first search: 1 found, 0 refuted, −1 out of steps.

    Stage s takes a set of R devices out of free[s]: at[s] runs over the R-subsets of as many bits,
    in increasing order.
    """
    rings, pairs, slack, allowed, holds, rank, matched = tables
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
            if not holds[s, mask]:
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


def tree_bounds(costs: MappingCosts, s: int) -> Floats:
    """Return a lower bound of a tree all-reduce of stage s in each set of devices, shape (2^D,).

    Its tree spans the set; the largest link of a spanning tree is least where each further device
    is linked to its nearest one. `inf` for sets that are not of R devices.
    """
    cost = costs.latency + costs.reduced_bytes(s) * costs.inverse
    least = np.full(1 << costs.size, np.inf)
    sets, inside = sets_of(costs.size, 1)
    least[sets] = 0.0
    for count in range(2, costs.replicas + 1):
        sets, inside = sets_of(costs.size, count)
        for d in range(costs.size):  # as the last one
            own, others = sets[inside[:, d]], inside[inside[:, d]]
            others[:, d] = False
            link = np.where(others, cost[d], np.inf).min(axis=1)
            least[own] = np.minimum(least[own], np.maximum(least[own ^ 1 << d], link))
    out = np.full_like(least, np.inf)
    out[sets] = 2 * (costs.replicas.bit_length() - 1) * least[sets]
    return out


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
