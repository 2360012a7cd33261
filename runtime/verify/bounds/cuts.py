"""The least load of a set of blocks with some of them in it and others not, by a minimum cut.

A set S of a device costs Σ p over S, and c_u for each node u of which some, not all, of u and its
readers are in S.
"""

from __future__ import annotations

import numpy as np

from ....instances import Workload
from ....instances.common.arrays import Floats, Ints

#: Flows that are added up, and what there can be of each in whole numbers.
ROUNDS, WHOLE = 3, float(1 << 30)

#: Nodes whose outputs other blocks read, and the blocks of node and readers.
Nets = list[tuple[int, list[int]]]


def nets_of(workload: Workload, block: Ints) -> Nets:
    """Return what may have to be moved, given the block of each node."""
    found = []
    for u, readers in enumerate(workload.successors):
        touched = sorted({int(block[v]) for v in (u, *readers)})
        if len(touched) > 1:
            found.append((u, touched))
    return found


def least_cut(side: Ints, compute: Floats, transfer: Floats, nets: Nets) -> float:
    """Return the least load of a set with given blocks in (1) and out (−1) of it; `inf` for none.

    Parameters
    ----------
    side
        Shape (B,).
    compute, transfer
        Shapes (B,) and (n,): p of blocks, `inf` where they cannot be, and c of nodes.
    """
    known = float(compute[side > 0].sum())
    open_ = np.flatnonzero((side == 0) & (compute < np.inf))
    place = {int(b): i + 2 for i, b in enumerate(open_.tolist())}  # 0 is in the set, 1 is not
    for b in np.flatnonzero((side == 0) & (compute == np.inf)).tolist():
        place[b] = 1
    arcs: list[tuple[int, int, float]] = [(place[b], 1, float(compute[b])) for b in open_.tolist()]
    size = len(open_) + 2
    for u, touched in nets:
        weight = float(transfer[u])
        ends = {0 if side[b] > 0 else 1 if side[b] < 0 else place[b] for b in touched}
        if ends >= {0, 1}:
            known += weight
        elif len(ends) > 1 and weight > 0:
            arcs += [(at, size, np.inf) for at in sorted(ends)]  # some of it in the set
            arcs.append((size, size + 1, weight))
            arcs += [(size + 1, at, np.inf) for at in sorted(ends)]  # all of it
            size += 2
    if not np.isfinite(known) or size == 2:
        return known
    return known + _most_flow(arcs, size)


def _most_flow(arcs: list[tuple[int, int, float]], size: int) -> float:
    """Return a flow from 0 to 1, the largest but for rounding.

    SciPy knows whole numbers below 2^31 alone, so that after a first flow in units of a part of all
    capacities what is left of them gets another one, in smaller units.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    start, end, capacity = (np.array(column) for column in zip(*arcs, strict=True))
    limit = float(capacity[np.isfinite(capacity)].sum())
    capacity = np.where(np.isinf(capacity), 2 * limit, capacity)
    left = coo_array((capacity, (start, end)), shape=(size, size)).tocsr()
    flow = 0.0
    for _ in range(ROUNDS):
        unit = limit / WHOLE
        if unit == 0.0:
            break
        whole = left.copy()
        whole.data = np.floor(np.minimum(left.data, limit) / unit).astype(np.int32)
        found = maximum_flow(whole, 0, 1)
        flow += float(found.flow_value) * unit
        left = left - found.flow * unit
        left.data = np.maximum(left.data, 0.0)
        limit = unit * len(arcs)
    return flow
