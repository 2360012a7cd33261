"""What a region can do for the calls at its ends: lists of memory against time.

A call that begins in region i and ends in region j holds s_{i+1} … s_j, all between, the units of
R_i that are above, and the units of R_j that are below. So a region is a list of *divisions*: bytes
that the call which ends there takes, bytes that the call which begins there takes, and the time
from s_i to s_{i+1}; of each the ones that others do not dominate. Where the divisions are too many
to be listed, they are found by components of the region (`components.py`); where even those are too
large, the path through the region alone counts for the bound, and divisions along one order for
plans.

For a bound, divisions that take nearly the same memory are taken together, with the least memory
and the least time; for plans the fastest of them stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Bools, Floats, Ints
from .arrays import RegionArrays, arrays_of
from .components import by_components, list_divisions
from .divisions_kernel import BEGINS, CPUS, ENDS
from .regions import Series

#: Divisions of a region that are listed at most, and units of one that is tried.
MOST, MOST_UNITS = 60_000, 60
#: Cells of memory, of all regions together, in which two calls may meet.
MOST_CELLS = 150_000
#: Divisions along one order that plans consider in a region with too many.
ALONG = 100


@dataclass(frozen=True, eq=False)
class Divisions:
    """Some ways to divide a region of n units; D divisions.

    Parameters
    ----------
    value
        Shape (D, 3): bytes of the call that ends, bytes of the one that begins, time.
    levels
        Shape (D, n): where each unit goes; of no meaning for bounds.
    """

    value: Floats
    levels: Ints

    def chosen(self, which: Ints) -> Divisions:
        """Return some of them."""
        return Divisions(self.value[which], self.levels[which])


@dataclass(frozen=True, eq=False)
class Region:
    """A region's divisions: all on CPUs, with a call that ends, one that begins, and both.

    Parameters
    ----------
    through
        Time if all is on CPUs.
    inner
        No less time does it take with calls of its own, of which it then needs one at least.
    """

    through: float
    inner: float
    ends: Divisions
    begins: Divisions
    both: Divisions


def regions_of(series: Series, i: int) -> tuple[Region, Region]:
    """Return the divisions of region i for bounds, and ones that can be executed, for plans."""
    left, right = i > 0, i < len(series.separators)
    arrays = arrays_of(series, i)
    compute, cpu = arrays.compute[1:-1], arrays.cpu[1:-1]
    through = _longest(arrays, cpu)
    inner = _longest(arrays, np.minimum(compute, cpu))
    none = Divisions(np.zeros((0, 3)), np.zeros((0, len(compute)), np.int64))
    lower: list[Divisions] = []
    upper: list[Divisions] = []
    for ends, begins in ((True, False), (False, True), (True, True)):
        possible = (left or not ends) and (right or not begins)
        both = _divisions(series, i, arrays, ends, begins) if possible else (none, none)
        for listed, into in zip(both, (lower, upper), strict=True):
            if ends and begins:
                into.append(_spread(listed, cells_of(series), lower=into is lower))
            else:
                into.append(_undominated(listed))
    return Region(through, inner, *lower), Region(through, np.inf, *upper)


def cells_of(series: Series) -> int:
    """Into how many parts the memory of a region is divided where two calls meet in it."""
    return int(np.clip(np.sqrt(MOST_CELLS / len(series.regions)), 4, 64))


def _divisions(
    series: Series, i: int, arrays: RegionArrays, ends: bool, begins: bool
) -> tuple[Divisions, Divisions]:
    """Return divisions for bounds and for plans: all if they are few, else by components."""
    room = series.capacity
    if len(arrays.compute) <= MOST_UNITS:
        listed = list_divisions(arrays, ends, begins, room, MOST)
        if listed is not None:
            found = Divisions(listed[0][:, :3], listed[1][:, 1:-1])
            return found, found
    grid = by_components(arrays, ends, begins, room, cells_of(series))
    if grid is None:
        return _along_path(series, i, ends, begins), _along_order(arrays, ends, begins, room)
    value, levels = grid
    return Divisions(value, levels), _counted(arrays, levels, ends, begins, room)


def _longest(arrays: RegionArrays, time: Floats) -> float:
    """The longest chain through a region by some times of its units."""
    until = [0.0] * (len(time) + 2)
    start, before = arrays.before_start.tolist(), arrays.before.tolist()
    for u in range(1, len(time) + 1):
        ready = max((until[x] for x in before[start[u] : start[u + 1]]), default=0.0)
        until[u] = ready + float(time[u - 1])
    return max(until)


def _along_path(series: Series, i: int, ends: bool, begins: bool) -> Divisions:
    """Return what bounds divisions by the path through the region.

    A call that ends after place a of the path holds what leads there; one that begins after place b
    holds what follows from there; between them the path is on CPUs.
    """
    units = np.array(series.regions[i], np.int64)
    places = np.sort(series.up[units][series.up[units] == series.down[units]])
    first = int(series.up[series.separators[i - 1]]) if i else -1
    path = series.path[places]
    able = np.isfinite(series.cpu[path])
    after = np.concatenate([[0.0], np.cumsum(np.where(able, series.cpu[path], 0.0))])
    never = np.concatenate([[0], np.cumsum(~able)])
    by_end = [units[series.down[units] <= at] for at in (first, *places)]
    by_start = [units[series.up[units] >= at] for at in (*places, len(series.path))]
    compute, memory = series.compute, series.memory
    last = len(places)
    rows = [
        (
            float(memory[by_end[a]].sum()),
            float(memory[by_start[b]].sum()),
            float(compute[by_end[a]].sum() + compute[by_start[b]].sum() + after[b] - after[a]),
        )
        for a in (range(last + 1) if ends else (0,))
        for b in (range(a, last + 1) if begins else (last,))
        if never[a] == never[b]
    ]
    value = np.array(rows).reshape(len(rows), 3)
    fits = np.isfinite(value[:, 2]) & (value[:, :2] <= series.capacity).all(axis=1)
    return Divisions(value[fits], np.zeros((int(fits.sum()), len(units)), np.int64))


def _along_order(arrays: RegionArrays, ends: bool, begins: bool, room: float) -> Divisions:
    """Return divisions along the topological order: first units, CPUs, last units."""
    count = len(arrays.compute) - 2
    cuts = np.unique(np.linspace(0, count, ALONG if ends != begins else 12).astype(np.int64))
    place = np.arange(count)
    levels = [
        np.where(place < a, ENDS, np.where(place < b, CPUS, BEGINS))
        for a in (cuts.tolist() if ends else (0,))
        for b in (cuts.tolist() if begins else (count,))
        if a <= b
    ]
    return _counted(arrays, np.array(levels, np.int64), ends, begins, room)


def _counted(
    arrays: RegionArrays, levels: Ints, ends: bool, begins: bool, room: float
) -> Divisions:
    """Return divisions with their exact values, those that fit."""
    value = np.array([_value(arrays, row, ends, begins) for row in levels]).reshape(len(levels), 3)
    fits = np.isfinite(value[:, 2]) & (value[:, :2] <= room).all(axis=1)
    return Divisions(value[fits], levels[fits])


def _value(
    arrays: RegionArrays, levels: Ints, ends: bool, begins: bool
) -> tuple[float, float, float]:
    """Bytes and time of one division."""
    compute, cpu, memory, _, _, nets, weight, start, pins = arrays
    level = np.concatenate([[ENDS if ends else CPUS], levels, [BEGINS if begins else CPUS]])
    here = np.where(level[1:-1] == CPUS, cpu[1:-1], 0.0)
    time = _longest(arrays, here) + float(compute[1:-1][levels != CPUS].sum())
    if len(nets):
        highest = np.maximum.reduceat(level[pins], start[:-1])
        source = level[nets]
        time += float(weight[(source == ENDS) & (highest > ENDS)].sum())
        time += float(weight[(source < BEGINS) & (highest == BEGINS)].sum())
    return (
        float(memory[1:-1][levels == ENDS].sum()),
        float(memory[1:-1][levels == BEGINS].sum()),
        time,
    )


def _undominated(found: Divisions) -> Divisions:
    """Return, by increasing memory, those that take less time than all with less memory."""
    held = found.value[:, 0] + found.value[:, 1]  # one of them is 0
    order = np.lexsort((found.value[:, 2], held))
    time = found.value[order, 2]
    before = np.concatenate([[np.inf], np.minimum.accumulate(time)[:-1]])
    return found.chosen(order[time < before])


def _spread(found: Divisions, parts: int, *, lower: bool) -> Divisions:
    """Return one division for each cell of a grid of both calls' memory."""
    if not len(found.value):
        return found
    held = found.value[:, :2]
    width = np.maximum(held.max(axis=0), 1e-300) / parts
    cell = np.minimum((held / width).astype(np.int64), parts - 1) @ [parts, 1]
    order = np.lexsort((found.value[:, 2], cell))
    first = order[_firsts(cell[order])]
    best = found.chosen(first)
    if not lower:
        return best
    for part in range(2):
        least = np.full(parts * parts, np.inf)
        np.minimum.at(least, cell, held[:, part])
        best.value[:, part] = least[cell[first]]
    return best


def _firsts(values: Ints) -> Bools:
    """Whether each value differs from the one before."""
    return np.concatenate([[True], values[1:] != values[:-1]])
