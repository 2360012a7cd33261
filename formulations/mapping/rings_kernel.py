"""Whether a graph of admitted pairs may hold a ring of R devices, or R disjoint pairs."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...instances.common.arrays import Bools, Ints
from ...instances.common.kernel import kernel

#: Steps of the search for a ring of exactly R devices, before it is taken to exist.
CYCLE_STEPS = 300_000
#: Likewise for one that is spread over blocks, times the number of devices.
SPREAD_STEPS = 8_000_000


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
