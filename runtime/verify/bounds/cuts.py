"""The least load of a set of blocks with some of them in it and others not, by a minimum cut.

A set S of a device costs Σ p over S, and c_u for each node u of which some, not all, of u and its
readers are in S.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....instances import Workload
from ....instances.common.arrays import Floats, Ints

#: Flows that are added up, and what there can be of each in whole numbers.
ROUNDS, WHOLE = 3, float(1 << 30)


@dataclass(frozen=True, eq=False)
class Nets:
    """What may have to be moved; E nets.

    Parameters
    ----------
    node
        Shape (E,): whose output it is.
    block
        The blocks of the node and its readers, net by net.
    first
        Shape (E,): where those of each begin.
    """

    node: Ints
    block: Ints
    first: Ints


def nets_of(workload: Workload, block: Ints) -> Nets:
    """Return what may have to be moved, given the block of each node."""
    node: list[int] = []
    of: list[int] = []
    first: list[int] = []
    for u, readers in enumerate(workload.successors):
        touched = {int(block[v]) for v in (u, *readers)}
        if len(touched) > 1:
            node.append(u)
            first.append(len(of))
            of += sorted(touched)
    return Nets(*(np.array(values, np.int64) for values in (node, of, first)))


def least_cut(side: Ints, compute: Floats, transfer: Floats, nets: Nets) -> float:
    """Return the least load of a set with given blocks in (1) and out (−1) of it; `inf` for none.

    Parameters
    ----------
    side
        Shape (B,).
    compute, transfer
        Shapes (B,) and (n,): p of blocks, `inf` where they cannot be and less than 0 where they
        are worth more than they take, and c ≥ 0 of nodes.
    """
    side = np.where((side == 0) & np.isinf(compute), -1, side)
    open_ = np.flatnonzero(side == 0)
    own = compute[open_]
    known = float(compute[side > 0].sum()) + float(own[own < 0].sum())
    if not len(nets.node):
        return known
    inside, outside, free = (np.logical_or.reduceat(test[nets.block], nets.first) for test in (
        side > 0, side < 0, side == 0))  # fmt: skip
    weight = transfer[nets.node]
    known += float(weight[inside & outside].sum())
    left = np.flatnonzero(free & ~(inside & outside) & (weight > 0))
    if not np.isfinite(known) or not len(open_):
        return known
    place = np.where(side > 0, 0, 1)  # 0 is in the set, 1 is not
    place[open_] = 2 + np.arange(len(open_))
    pins = np.diff(nets.first, append=len(nets.block))
    some = np.full(
        len(pins), -1
    )  # reached if some of it is in the set, and what follows if not all
    some[left] = 2 + len(open_) + 2 * np.arange(len(left))
    enters = np.repeat(some, pins)
    at, enters = place[nets.block[enters >= 0]], enters[enters >= 0]
    never = np.full(len(at), np.inf)
    arcs = (
        (np.where(own < 0, 0, place[open_]), np.where(own < 0, place[open_], 1), np.abs(own)),
        (at, enters, never),
        (some[left], some[left] + 1, weight[left]),
        (enters + 1, at, never),
    )
    start, end, capacity = (np.concatenate(column) for column in zip(*arcs, strict=True))
    return known + _most_flow(start, end, capacity, 2 + len(open_) + 2 * len(left))


def _most_flow(start: Ints, end: Ints, capacity: Floats, size: int) -> float:
    """Return a flow from 0 to 1, the largest but for rounding.

    SciPy knows whole numbers below 2^31 alone, so that after a first flow in units of a part of all
    capacities what is left of them gets another one, in smaller units.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

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
        limit = unit * len(start)
    return flow
