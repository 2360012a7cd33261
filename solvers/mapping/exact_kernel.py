"""The search over sets of devices, as bits: see `exact`."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel, load_numba

njit = load_numba().njit


@kernel
def able_alone(rings, pairs, pairs_before, slack, before, replicas):
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
def containing(holds, size):
    """Which sets contain one of those given."""
    found = holds.copy()
    for d in range(size):
        for mask in range(1 << size):
            if mask >> d & 1 and found[mask ^ (1 << d)]:
                found[mask] = True
    return found


@njit(cache=True)
def place_stages(tables, walk, failed, steps, replicas):
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
