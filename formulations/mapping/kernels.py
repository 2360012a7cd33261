"""Kernels of mappings: times of all-reduces, and conditions on graphs of admitted pairs.

The conditions say whether a graph may hold a ring of R devices, or R disjoint pairs (`bound`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

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
    one = np.zeros(len(alive), np.int64)
    return _has_ring(admitted, alive, replicas, CYCLE_STEPS, one, np.array([replicas]))


def has_spread_ring(admitted: Bools, block: Ints, most: Ints, replicas: int) -> bool:
    """Whether a ring of exactly R devices may exist with at most `most[b]` of them in block b.

    As in `has_ring`, False is certain.
    """
    alone = most[block] <= 1
    inside = block[:, None] == block[None, :]
    admitted = admitted & ~(inside & alone[:, None])
    steps = SPREAD_STEPS // len(block)
    return _has_ring(admitted, most[block] > 0, replicas, steps, block, most)


def _has_ring(
    admitted: Bools, alive: Bools, replicas: int, steps: int, block: Ints, most: Ints
) -> bool:
    alive = ring_core(admitted, min(2, replicas - 1), replicas, alive)
    found = alive.any() and (
        replicas < 3 or _has_cycle(admitted, alive, replicas, steps, block, most)
    )
    return bool(found)


def matching_size(admitted: Bools) -> int:
    """Return the size of a maximum matching between rows and columns.

    For a symmetric matrix this is twice the largest fractional matching of the graph.
    """
    return int((maximum_bipartite_matching(csr_array(admitted), perm_type="column") >= 0).sum())


def ring_core(admitted: Bools, degree: int, replicas: int, alive: Bools) -> Bools:
    """Return those of the devices `alive` that may be on a ring of R, shape (D,).

    They are in components of at least R devices with `degree` neighbours each.
    """
    while True:
        inside = admitted & alive & alive[:, None]
        kept = alive & (inside.sum(axis=1) >= degree)
        if (kept == alive).all():
            pairs: Any = csr_array(inside)
            _, component = connected_components(pairs, directed=False)
            kept = alive & (np.bincount(component, alive)[component] >= replicas)
            if (kept == alive).all():
                return kept
        alive = kept


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
