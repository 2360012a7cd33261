"""Coarsening: consecutive units in a topological order are merged into one.

A *boundary* p lies between the units at positions p − 1 and p of the order; coarse units are what
lies between boundaries. Their edges run forward along the order, so they close no cycle, and a
contiguous split of coarse units is a contiguous split of the units.
"""

from __future__ import annotations

import math

import numpy as np

from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.common.arrays import Bools, Floats, Ints

#: Part of an even share by which a boundary may move to where less data crosses.
SHIFT = 0.3

#: Per device, coarse units of the first plan, and stretches that are interleaved; part of the
#: memory that these fill.
PER_DEVICE, FILLED = 16, 0.8

#: Growth factor of coarse units with their distance from the end of a stage.
GROWTH = 1.5


def crossing(graph: Hypergraph, weight: Floats, order: Ints) -> Floats:
    """Return the weight of the nets with pins on both sides of each boundary, shape (U + 1,)."""
    rank = np.empty(graph.size, np.int64)
    rank[order] = np.arange(graph.size)
    change = np.zeros(graph.size + 1)
    at, starts = rank[graph.incidence.net_pins], graph.incidence.net_ptr[:-1]
    np.add.at(change, np.minimum.reduceat(at, starts) + 1, weight)
    np.add.at(change, np.maximum.reduceat(at, starts) + 1, -weight)
    return np.cumsum(change)


def touching(graph: Hypergraph, weight: Floats) -> Floats:
    """Return the total weight of the nets of each unit, shape (U,)."""
    ptr, pins, _, _ = graph.incidence
    found = np.bincount(pins, np.repeat(weight, np.diff(ptr)), graph.size)
    return found.astype(np.float64)


def even(work: Floats, crosses: Floats, count: int) -> Ints:
    """Return boundaries of about `count` coarse units of similar work, where little data crosses.

    They increase from 0 to U; `work` and `crosses` are along an order.
    """
    size = len(work)
    done = np.concatenate([[0.0], np.cumsum(work)])
    share = done[-1] / count
    found = [0]
    for i in range(1, count):
        low = int(np.searchsorted(done, (i - SHIFT) * share))
        high = int(np.searchsorted(done, (i + SHIFT) * share, side="right"))
        low, high = max(low, found[-1] + 1), min(high, size)
        if low < high:
            found.append(low + int(crosses[low:high].argmin()))
        elif low < size:
            found.append(low)
    return np.array(sorted({*found, size}), np.int64)


def around(stage: Ints, alone: Bools) -> Ints:
    """Return boundaries that keep units single near the ends of stages, and merge them inside.

    They increase from 0 to U. Units that are `alone` are not merged at all; coarse units grow
    with the distance from either end of their stage.
    """
    size = len(stage)
    ends = np.flatnonzero(np.diff(stage, prepend=-1, append=-1))
    most = math.ceil(math.log(max(size, 2), GROWTH))
    steps = np.unique((GROWTH ** np.arange(most)).astype(np.int64).cumsum())
    single = np.flatnonzero(alone)
    found = {0, size, *single.tolist(), *(single + 1).tolist()}
    for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        inner = steps[steps <= (b - a) // 2].tolist()
        found |= {a, b, *(a + s for s in inner), *(b - s for s in inner)}
    return np.array(sorted(found), np.int64)


def balanced(
    order: Ints, work: Floats, crosses: Floats, memory_bytes: Floats, room: float, devices: int
) -> Ints:
    """Return an order whose even shares fit into memory, if those of the given one do not.

    There are `room` bytes on each of `devices`. Stretches come first from the end of the order that
    has more memory per work; whenever they fill the devices that can do their work, one from the
    other end comes between. So a share is two intervals of the order.
    """
    shares = even(work[order], crosses, devices)
    if np.add.reduceat(memory_bytes[order], shares[:-1]).max() <= room:
        return order
    ends = even(work[order], crosses, PER_DEVICE * devices)
    done, held = (np.add.reduceat(x[order], ends[:-1]) for x in (work, memory_bytes))
    half = int(np.searchsorted(np.cumsum(done), done.sum() / 2))
    heavy = list(range(len(done)))
    if held[:half].sum() < held.sum() / 2:
        heavy.reverse()
    most = FILLED * room * devices / max(float(done.sum()), np.finfo(float).tiny)
    taken, full = [], 0.0
    while heavy:
        taken.append(heavy.pop(0 if full <= 0 else -1))
        full += held[taken[-1]] - most * done[taken[-1]]
    return np.concatenate([order[ends[i] : ends[i + 1]] for i in taken])


def labels(order: Ints, boundaries: Ints) -> Ints:
    """Return the coarse unit of each unit, shape (U,)."""
    merged = np.empty(len(order), np.int64)
    merged[order] = np.searchsorted(boundaries, np.arange(len(order)), side="right") - 1
    return merged
