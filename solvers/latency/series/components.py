"""Divisions of a region whose units fall into components that only the separators connect.

What the calls compute and move adds up over components, and so do bytes; the time between the
calls is the longest of any. So for each limit on that time, the divisions of components within it
are added cell by cell of a grid of memory. Bytes are rounded down, which is right for bounds: for
plans the same divisions are counted anew.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np

from ....instances.common.arrays import Floats, Ints
from .arrays import RegionArrays, compressed
from .divisions_kernel import combine, divisions

#: Divisions of a component that are listed at most.
MOST = 60_000
#: Limits on the time between the calls that are tried.
LIMITS = 48


class Parts(NamedTuple):
    """The divisions of one component: its units, where they go, and values as of `divisions`."""

    units: Ints
    levels: Ints
    value: Floats


def by_components(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float, cells: int
) -> tuple[Floats, Ints] | None:
    """Return divisions of a region by cells of a grid; None if it has components too large.

    Returns
    -------
    value
        Shape (D, 3): bytes of both calls, rounded down; no more than the least time in the cell.
    levels
        Shape (D, n): where the units go in a division that is about as good.
    """
    parts = _parts(arrays, ends, begins, capacity)
    if parts is None:
        return None
    found, always = parts
    size = len(arrays.compute) - 2
    if not found:
        return np.array([[0.0, 0.0, always]]), np.ones((1, size), np.int64)
    if not all(len(part.value) for part in found):
        return np.zeros((0, 3)), np.ones((0, size), np.int64)
    shape = (cells, cells) if ends and begins else ((cells**2, 1) if ends else (1, cells**2))
    whole = float(arrays.memory.sum())
    width = np.array([min(capacity, whole) * (1 + 1e-9) / count for count in shape])
    width = np.maximum(width, 1e-300)
    least = np.full(shape, np.inf)
    rows = np.full((*shape, len(found)), -1)
    limits = np.unique(np.concatenate([part.value[:, 3] for part in found]))
    uppers = limits[np.unique(np.linspace(0, len(limits) - 1, LIMITS).astype(int))]
    lower = -np.inf
    for upper in uppers.tolist():
        between = float(limits[np.searchsorted(limits, lower, "right")])
        total, picks = _sum(found, upper, width, shape)
        better = total + between < least
        least[better] = (total + between)[better]
        rows[better] = picks[better]
        lower = upper
    at = np.argwhere(np.isfinite(least))
    value = np.column_stack([at * width, least[tuple(at.T)] + always])
    levels = np.ones((len(at), size), np.int64)
    for part, column in zip(found, rows[tuple(at.T)].T, strict=True):
        levels[:, part.units - 1] = part.levels[column]
    return value, levels


def _sum(
    found: list[Parts], upper: float, width: Floats, shape: tuple[int, int]
) -> tuple[Floats, Ints]:
    """The least sums over the divisions within a limit, and the row of each component in them."""
    total: Floats = np.full(shape, np.inf)
    total[0, 0] = 0.0
    steps = []
    for part in found:
        own, row = _grid(part, upper, width, shape)
        new: Floats = np.empty(shape)
        choice = np.empty(shape, np.int64)
        combine(total, own, new, choice)
        steps.append((choice, row))
        total = new
    picks = np.full((*shape, len(found)), -1)
    cells = np.argwhere(np.isfinite(total))
    at = cells.copy()
    for i in reversed(range(len(found))):
        choice, row = steps[i]
        taken = np.column_stack(np.divmod(choice[tuple(at.T)], shape[1]))
        picks[(*cells.T, i)] = row[tuple(taken.T)]
        at = at - taken
    return total, picks


def _grid(part: Parts, upper: float, width: Floats, shape: tuple[int, int]) -> tuple[Floats, Ints]:
    """What a component computes and moves at least in each cell, and in which division."""
    rows = np.flatnonzero(part.value[:, 3] <= upper)
    time = part.value[rows, 2] - part.value[rows, 3]
    cell = np.minimum((part.value[rows, :2] / width).astype(np.int64), np.array(shape) - 1)
    order = np.argsort(-time, kind="stable")  # the last that is written stays
    least, row = np.full(shape, np.inf), np.full(shape, -1)
    at = tuple(cell[order].T)
    least[at], row[at] = time[order], rows[order]
    return least, row


def _parts(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float
) -> tuple[list[Parts], float] | None:
    """The divisions of each component, and the transfers that come whatever they are."""
    last = len(arrays.compute) - 1
    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(range(1, last))
    for u in range(1, last):
        row = arrays.before[arrays.before_start[u] : arrays.before_start[u + 1]]
        together.add_edges_from((int(x), u) for x in row)
    components = [sorted(units) for units in nx.connected_components(together)]
    owner = {u: i for i, units in enumerate(components) for u in units}
    always = 0.0
    nets: list[list[tuple[int, float, list[int]]]] = [[] for _ in components]
    for e, source in enumerate(arrays.nets.tolist()):
        pins = arrays.pins[arrays.pin_start[e] : arrays.pin_start[e + 1]].tolist()
        weight = float(arrays.weight[e])
        if source > 0:
            nets[owner[source]].append((source, weight, pins))
            continue
        if last in pins:  # it leaves the first call, and enters the second
            always += weight * (ends + begins)
            continue
        concerned = sorted({owner[pin] for pin in pins})
        for i in concerned:  # moved if any of them needs it: at least so much on average
            own = [pin for pin in pins if owner[pin] == i]
            nets[i].append((0, weight / len(concerned), own))
    found = []
    for units, own_nets in zip(components, nets, strict=True):
        part = _divisions(arrays, units, own_nets, ends, begins, capacity)
        if part is None:
            return None
        found.append(part)
    return found, always


def _divisions(
    arrays: RegionArrays,
    units: list[int],
    nets: list[tuple[int, float, list[int]]],
    ends: bool,
    begins: bool,
    capacity: float,
) -> Parts | None:
    """Return the divisions of one component, None if they are too many."""
    local = {u: i for i, u in enumerate(units, 1)}
    last, end = len(units) + 1, len(arrays.compute) - 1
    local[0], local[end] = 0, last
    here = [0, *units, end]
    before = [
        [local[x] for x in arrays.before[arrays.before_start[u] : arrays.before_start[u + 1]]]
        for u in here
    ]
    own = RegionArrays(
        arrays.compute[here], arrays.cpu[here], arrays.memory[here], *compressed(before),
        np.array([local[source] for source, _, _ in nets], np.int64),
        np.array([weight for _, weight, _ in nets]),
        *compressed([sorted(local[pin] for pin in pins) for _, _, pins in nets]),
    )  # fmt: skip
    listed = list_divisions(own, ends, begins, capacity, MOST)
    return None if listed is None else Parts(np.array(units), listed[1][:, 1:-1], listed[0])


def list_divisions(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float, most: int
) -> tuple[Floats, Ints] | None:
    """Return values and levels as of `divisions`, None if there are more than `most`."""
    room, size = 256, len(arrays.compute)
    while True:
        levels, value = np.empty((room, size), np.int64), np.empty((room, 4))
        count = divisions(arrays, ends, begins, capacity, room, levels, value)
        if count >= 0:
            return value[:count].copy(), levels[:count].copy()
        if room == most:
            return None
        room = min(most, 8 * room)
