"""Kernels of mappings: times of all-reduces, and conditions on graphs of admitted pairs.

The conditions say whether a graph may hold a ring of R devices, or R disjoint pairs, and which
devices fit which stages at a threshold; see `bound` for their use.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...instances.common.arrays import Bools, Ints
from ...instances.common.kernel import kernel

#: Steps of the search for a ring of exactly R devices, before it is taken to exist.
CYCLE_STEPS = 300_000

#: Steps of the search for a ring that is spread over blocks, times the number of devices.
SPREAD_STEPS = 8_000_000


@kernel
def allreduce_time(latency, inverse, island, row, size, scratch):
    """Return the seconds of an all-reduce of `size` bytes among the devices `row`; O(R) time.

    Device i's parent in the tree is device ⌊(i−1)/2⌋. Hierarchical rings need as many devices in
    each island: the j-th of all islands form a ring. `scratch` has shape (2R,).
    """
    replicas = len(row)
    if replicas == 1 or size == 0:
        return 0.0
    ring, tree, depth = 0.0, 0.0, 0
    for i in range(replicas):
        a, b = row[i], row[(i + 1) % replicas]
        ring = max(ring, latency[a, b] + size / replicas * inverse[a, b])
        if i > 0:
            b = row[(i - 1) // 2]
            tree = max(tree, latency[a, b] + size * inverse[a, b])
    while 2 << depth <= replicas:
        depth += 1
    best = min(2 * (replicas - 1) * ring, 2 * depth * tree)
    k = 0
    for d in row:
        if island[d] == island[row[0]]:
            k += 1
    if k == 1 or k == replicas or replicas % k:
        return best
    g = replicas // k
    for group in range(g):  # scratch: the devices of each island, then how many there are
        scratch[replicas + group] = 0
    count = 0
    for d in row:
        group = 0
        while group < count and island[scratch[group * k]] != island[d]:
            group += 1
        if group == g or scratch[replicas + group] == k:
            return best
        scratch[group * k + scratch[replicas + group]] = d
        scratch[replicas + group] += 1
        count = max(count, group + 1)
    inside, across = 0.0, 0.0
    for group in range(g):
        for j in range(k):
            a, b = scratch[group * k + j], scratch[group * k + (j + 1) % k]
            c = scratch[(group + 1) % g * k + j]
            inside = max(inside, latency[a, b] + size / k * inverse[a, b])
            across = max(across, latency[a, c] + size / (k * g) * inverse[a, c])
    return min(best, 2 * (k - 1) * inside + 2 * (g - 1) * across)


def has_ring(admitted: Bools, replicas: int) -> bool:
    """Whether a ring of exactly R devices may exist among those of a symmetric matrix.

    False is certain; True may be wrong for large ones, whose search is cut off.
    """
    alive = np.ones(len(admitted), np.bool_)
    enough = bool(ring_core(admitted, min(2, replicas - 1), replicas, alive))
    if enough and replicas > 2:
        block = np.zeros(len(alive), np.int64)
        return bool(_has_cycle(admitted, alive, replicas, CYCLE_STEPS, block, np.array([replicas])))
    return enough


def has_spread_ring(admitted: Bools, block: Ints, most: Ints, replicas: int) -> bool:
    """Whether a ring of exactly R devices may exist with at most `most[b]` of them in block b.

    As in `has_ring`, False is certain.
    """
    alone = most[block] <= 1
    inside = block[:, None] == block[None, :]
    admitted = admitted & ~(inside & alone[:, None])
    alive = most[block] > 0
    enough = bool(ring_core(admitted, min(2, replicas - 1), replicas, alive))
    if enough and replicas > 2:
        steps = SPREAD_STEPS // len(block)
        return bool(_has_cycle(admitted, alive, replicas, steps, block, most))
    return enough


def matching_size(admitted: Bools) -> int:
    """Return the size of a maximum matching between rows and columns.

    For a symmetric matrix this is twice the largest fractional matching of the graph.
    """
    return int((maximum_bipartite_matching(csr_array(admitted), perm_type="column") >= 0).sum())


@kernel
def ring_core(admitted, degree, replicas, alive):
    """Shrink `alive` to components of at least R devices with `degree` neighbours each."""
    size = len(alive)
    changed = True
    while changed:
        changed = False
        for d in range(size):
            if alive[d]:
                found = 0
                for e in range(size):
                    if alive[e] and admitted[d, e]:
                        found += 1
                        if found == degree:
                            break
                if found < degree:
                    alive[d] = False
                    changed = True
        label = np.full(size, -1, np.int64)
        stack = np.empty(size, np.int64)
        for d in range(size):
            if not alive[d] or label[d] >= 0:
                continue
            label[d] = d
            stack[0] = d
            top, count = 1, 1
            while top > 0:
                top -= 1
                u = stack[top]
                for e in range(size):
                    if alive[e] and label[e] < 0 and admitted[u, e]:
                        label[e] = d
                        stack[top] = e
                        top += 1
                        count += 1
            if count < replicas:
                for e in range(size):
                    if label[e] == d:
                        alive[e] = False
    return alive.any()


@kernel
def _has_cycle(admitted, alive, length, steps, block, most):
    """Whether there is a cycle of exactly `length`; True if `steps` do not decide it.

    Of block b it has at most `most[b]` devices.
    """
    on_path_in = np.zeros(len(most), np.int64)
    size = len(alive)
    path = np.empty(length, np.int64)
    tried = np.empty(length, np.int64)
    on_path = np.zeros(size, np.bool_)
    open_ = alive.copy()
    for root in range(size):
        # cycles through `root`, of devices that were not roots before
        if not open_[root]:
            continue
        path[0] = root
        on_path[root] = True
        on_path_in[block[root]] += 1
        tried[0] = 0
        top = 0
        while top >= 0:
            steps -= 1
            if steps < 0:
                return True
            u = path[top]
            found = -1
            if top == length - 1:
                if admitted[u, root]:
                    return True
            else:
                for w in range(tried[top], size):
                    fits = on_path_in[block[w]] < most[block[w]]
                    if fits and open_[w] and not on_path[w] and admitted[u, w]:
                        found = w
                        break
            if found >= 0:
                tried[top] = found + 1
                top += 1
                path[top] = found
                on_path[found] = True
                on_path_in[block[found]] += 1
                tried[top] = 0
            else:
                on_path[u] = False
                on_path_in[block[u]] -= 1
                top -= 1
        open_[root] = False
    return False


@kernel
def fit_stages(latency, inverse, boundary, ring, on_boundary, on_ring, fits, replicas):
    """Remove devices that conditions 1 and 2 exclude from `fits`; whether R are left per stage."""
    stages, size = fits.shape
    admitted = np.empty((size, size), np.bool_)
    changed = True
    while changed:
        changed = False
        for s in range(stages):
            before = s > 0 and (boundary[s - 1, 0] > 0 or boundary[s - 1, 1] > 0)
            after = boundary[s, 0] > 0 or boundary[s, 1] > 0
            around = (ring[s, 0] > 0 or ring[s, 1] > 0) and on_ring[s] < np.inf
            on_circle = min(2, replicas - 1) if around else 0
            need = int(before) + int(after) + on_circle
            for d in range(size):
                if not fits[s, d]:
                    continue
                has_before, has_after, has_ring, different = False, False, 0, 0
                ok = need == 0
                for e in range(size):
                    if ok:
                        break
                    if e == d:
                        continue
                    one = False
                    if before and fits[s - 1, e]:
                        cost = boundary[s - 1, 0] * latency[e, d]
                        if cost + boundary[s - 1, 1] * inverse[e, d] <= on_boundary[s - 1]:
                            has_before = True
                            one = True
                    if after and fits[s + 1, e]:
                        cost = boundary[s, 0] * latency[d, e] + boundary[s, 1] * inverse[d, e]
                        if cost <= on_boundary[s]:
                            has_after = True
                            one = True
                    if around and fits[s, e]:
                        cost = ring[s, 0] * latency[d, e] + ring[s, 1] * inverse[d, e]
                        if cost <= on_ring[s]:
                            has_ring += 1
                            one = True
                    different += int(one)
                    ok = (
                        (has_before or not before)
                        and (has_after or not after)
                        and has_ring >= on_circle
                        and different >= need
                    )
                if not ok:
                    fits[s, d] = False
                    changed = True
            if around:
                count = fits[s].sum()
                for d in range(size):
                    for e in range(size):
                        cost = ring[s, 0] * latency[d, e] + ring[s, 1] * inverse[d, e]
                        admitted[d, e] = d != e and cost <= on_ring[s]
                ring_core(admitted, on_circle, replicas, fits[s])
                if fits[s].sum() < count:
                    changed = True
            if fits[s].sum() < replicas:
                return False
    return True


@kernel
def least_across(latency, inverse, block, factors, across):
    """Least cost of a pair across blocks, or inside, for each row of factors; `inf` without one."""
    least = np.full(len(factors), np.inf)
    for d in range(len(block)):
        for e in range(len(block)):
            if d != e and (block[d] != block[e]) == across:
                for k in range(len(factors)):
                    cost = factors[k, 0] * latency[d, e] + factors[k, 1] * inverse[d, e]
                    least[k] = min(least[k], cost)
    return least
