"""A bound and a plan for graphs that are a series of regions; near-linear in their size.

Where every region is small both come from the same recursion, and often they meet.

*Recursion.* With F[r][x] the least time from when s_r has ended on CPUs, x calls left, and
W[r][y][x] from when a call begins that holds y bytes of region r, its own place among the x:

    F[r][x] = min( all of R_r on CPUs:        time + q of s_{r+1} + F[r+1][x],
                   a call begins in R_r:      time + W[r][y][x] )
    W[r][y][x] = min over j > r, and ends in R_j that fit beside y and all from s_{r+1} to s_j:
                   p of all those + ( the rest on CPUs:   time + q of s_{j+1} + F[j+1][x−1],
                                      the next call begins in R_j, too:  time + W[j][y'][x−1] )

R_r may have calls of its own in between: for bounds it then takes the least time along a chain, and
one call.

*Divisions.* A call that begins in region i and ends in region j holds s_{i+1} … s_j, all between,
the units of R_i that are above, and the units of R_j that are below. So a region is a list of
*divisions*: bytes that the call which ends there takes, bytes that the call which begins there
takes, and the time from s_i to s_{i+1}; of each the ones that others do not dominate. Where the
divisions are too many to be listed, they are found by components of the region (`regions.py`);
where even those are too large, the path through the region alone counts for the bound, and
divisions along one order for plans.

For a bound, divisions that take nearly the same memory are taken together, with the least memory
and the least time; for plans the fastest of them stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....formulations.latency.graph import LatencyGraph
from ....formulations.task import Task
from ....instances import CallPlacement, Latency, Solution
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.exact_sums import summable
from ...core.search import Search
from ..label_dp.dp import why_no_plan
from .recursion_kernel import BEGINS, CPUS, ENDS, recurse
from .regions import RegionArrays, Series, arrays_of, by_components, list_divisions, series_of

#: Divisions of a region that are listed at most, and units of one that is tried.
MOST, MOST_UNITS = 60_000, 60

#: Cells of memory, of all regions together, in which two calls may meet.
MOST_CELLS = 150_000

#: Divisions along one order that plans consider in a region with too many.
ALONG = 100


@dataclass(frozen=True, eq=False)
class Divisions:
    """Divisions of a region of n units between two calls and the CPUs; D of them.

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
        """Return the divisions with these numbers."""
        return Divisions(self.value[which], self.levels[which])


@dataclass(frozen=True, eq=False)
class Region:
    """The divisions of a region: all on CPUs, with a call that ends, one that begins, and both.

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


class SeriesTables(NamedTuple):
    """The divisions of R regions as arrays: starts, heads and ends in compressed rows.

    A start is what a call may hold of the region in which it begins, a head a way to get there from
    CPUs, an end a way in which a call ends: `end_start` is where the next one begins, −1 on CPUs.
    """

    compute: Floats  # (R,) p of s_1 … s_r and of the regions between them
    skipped: Floats  # (R,) the part of it that a call which begins in region r lacks
    memory: Floats
    skipped_memory: Floats
    blocked: Ints  # (R,) 2: no call holds s_r, 1: none holds the region before it
    through: Floats
    inner: Floats
    cross: Floats  # (R,) q of s_{r+1}, 0 after the last
    start_at: Ints
    start_memory: Floats
    head_at: Ints
    head_start: Ints
    head_time: Floats
    head_calls: Ints
    end_at: Ints
    end_memory: Floats
    end_time: Floats
    end_calls: Ints
    end_start: Ints


@dataclass(frozen=True, eq=False)
class SeriesSolution:
    """The tables of a series with the least times found by the recursion."""

    table: SeriesTables
    room: float
    rest: Floats
    held: Floats
    best: Floats
    origin: list[tuple[str, int]]  # of each end: the list of its region and the place there

    @property
    def value(self) -> float:
        """Least latency."""
        return float(self.rest[0, -1])


#: A bound is lowered by this much, relatively: rounding in sums of times.
MARGIN = 1e-9

SERIES_BOUND = "series of regions"

#: Steps of the search for the best price of memory, up or down or to a smaller factor.
STEPS = 12


def solve_by_series(task: Task[Latency], search: Search[Solution], graph: LatencyGraph) -> None:
    """Raise the bound, and offer a plan with one call per accelerator if they are of one kind."""
    series = series_of(task, graph, search.objective)
    accelerators = int(graph.count.sum())
    lower, upper = [], []
    for i in range(len(series.regions)):
        if search.should_stop():
            return
        for_bound, for_plan = regions_of(series, i)
        lower.append(for_bound)
        upper.append(for_plan)
    calls = min(task.problem.calls * accelerators, graph.size)
    bound = solve_series(series, lower, calls).value
    if np.isinf(bound):
        search.prove_infeasible(why_no_plan(task))
        return
    search.raise_bound(bound * (1 - MARGIN), SERIES_BOUND)
    if len(graph.kinds) == 1:
        solved = solve_series(series, upper, min(accelerators, graph.size))
        if np.isfinite(solved.value):
            search.offer(_plan(series, call_of_units(series, upper, solved)))
    if task.problem.calls > 1:
        _price_memory(series, lower, calls, search)


def _price_memory(
    series: Series, regions: list[Region], calls: int, search: Search[Solution]
) -> None:
    """Raise the bound by a Lagrange multiplier on the bytes of all accelerators.

    The recursion gives each call a whole accelerator. In a plan their bytes add up to no more than
    there are, so for any price λ its latency is at least the least of latency + λ·bytes, less λ
    times all there are. That is concave in λ: up and down by factors that become smaller.
    """
    graph = series.graph
    total = float(graph.count @ graph.capacity_bytes) * (1 + MARGIN)
    if not 0 < total < np.inf or search.bound <= 0:
        return

    def bound(price: float) -> float:
        found = solve_series(series, regions, calls, price).value - price * total
        search.raise_bound(found - MARGIN * (found + 2 * price * total), SERIES_BOUND)
        return found

    price, factor = search.bound / total, 8.0
    best = bound(price)
    for _ in range(STEPS):
        if search.should_stop():
            return
        for other in (price * factor, price / factor):
            value = bound(other)
            if value > best:
                best, price = value, other
                break
        else:
            factor = factor**0.5


def _plan(series: Series, call: Ints) -> CallPlacement:
    """Return the plan of the units' calls; units left out join a call that surrounds them."""
    graph = series.graph
    on_path = np.append(call[series.path], [-1])
    for u in series.left_out.tolist():
        before, after = (on_path[place] for place in (series.up[u], series.down[u]))
        if before >= 0 and before == after:
            call[u] = before
    of_node = call[graph.unit_of]
    device = graph.pool.copy()
    first = int(np.flatnonzero(series.task.costs.kind_of == graph.kinds[0])[0])
    device[of_node >= 0] = first + of_node[of_node >= 0]
    return CallPlacement(device, np.where(of_node >= 0, 0, -1))


def solve_series(
    series: Series, regions: list[Region], calls: int, price: float = 0.0
) -> SeriesSolution:
    """Return the least times with at most `calls` calls, each byte in them costing `price`."""
    table, origin = _tables(series, regions, price)
    rest = np.zeros((len(regions) + 1, calls + 1))
    held = np.full((len(table.start_memory), calls + 1), np.inf)
    best = np.full((len(table.end_memory), calls + 1), np.inf)
    recurse(table, series.capacity, rest, held, best)
    return SeriesSolution(table, series.capacity, rest, held, best, origin)


def _tables(
    series: Series, regions: list[Region], price: float
) -> tuple[SeriesTables, list[tuple[str, int]]]:
    """Return the tables of a series, and for each end its list in the region and place there."""
    count = len(regions)
    inside = [list(units) for units in series.regions]
    seps = series.separators
    sums = []
    compute = np.where(np.isfinite(series.compute), series.compute, 0.0) + price * series.memory
    for of_unit in (summable(compute), series.memory):  # as differences of sums are taken
        between = np.array([of_unit[units].sum() for units in inside])
        upto, lacks = np.zeros(count), np.zeros(count)
        upto[1:] = np.cumsum(of_unit[seps])
        upto[2:] += np.cumsum(between[1:-1])
        lacks[1:] = upto[1:] + between[1:]
        sums += [upto, lacks]
    blocked = np.zeros(count, np.int64)
    for r in range(1, count):
        if np.isinf(series.compute[seps[r - 1]]):
            blocked[r] = 2
        elif np.isinf(series.compute[inside[r - 1]]).any():
            blocked[r] = 1
    on_path = series.up == series.down
    cheapest = np.minimum(series.compute + price * series.memory, series.cpu)
    chains = [
        max(region.inner, float(cheapest[[u for u in units if on_path[u]]].sum()))
        for region, units in zip(regions, inside, strict=True)
    ]
    starts: list[Floats] = []
    heads: list[tuple[Ints, Floats, Ints]] = []
    ends: list[tuple[Floats, Floats, Ints, Ints]] = []
    origin: list[tuple[str, int]] = []
    offset = 0
    for region, chain in zip(regions, chains, strict=True):
        ends_of, heads_of, both_of = (
            np.column_stack([value[:, :2], value[:, 2] + price * (value[:, 0] + value[:, 1])])
            for value in (region.ends.value, region.begins.value, region.both.value)
        )
        levels = np.unique(np.concatenate([[0.0], heads_of[:, 1], both_of[:, 1]]))
        starts.append(levels)
        inner = np.isfinite(chain)
        extra = np.zeros(1) if inner else np.zeros(0)
        heads.append((
            offset + np.concatenate([np.searchsorted(levels, heads_of[:, 1]), extra]).astype(int),
            np.concatenate([heads_of[:, 2], extra + chain]),
            np.concatenate([np.zeros(len(heads_of)), extra + 1]).astype(int),
        ))  # fmt: skip
        memory = np.concatenate([ends_of[:, 0], both_of[:, 0], extra, extra])
        where = np.concatenate([
            np.full(len(ends_of), -1), offset + np.searchsorted(levels, both_of[:, 1]),
            extra - 1, extra + offset,
        ]).astype(int)  # fmt: skip
        time = np.concatenate([ends_of[:, 2], both_of[:, 2], *(2 * [extra + chain])])
        taken = np.concatenate([np.ones(len(ends_of) + len(both_of)), extra + 2, extra + 2])
        order = np.argsort(memory, kind="stable")
        ends.append((memory[order], time[order], taken[order].astype(int), where[order]))
        names = [("ends", k) for k in range(len(ends_of))]
        names += [("both", k) for k in range(len(both_of))] + [("", 0)] * (2 * len(extra))
        origin += [names[k] for k in order]
        offset += len(levels)
    cpu = np.append(series.cpu[seps], 0.0)
    columns = [
        *sums, blocked,
        np.array([region.through for region in regions]),
        np.array(chains),
        cpu,
        _starts(starts), np.concatenate(starts),
        _starts([h for h, _, _ in heads]), *_joined(heads),
        _starts([m for m, _, _, _ in ends]), *_joined(ends),
    ]  # fmt: skip
    return SeriesTables._make(columns), origin


def _starts(rows: list[np.ndarray]) -> Ints:
    """Return where each row begins in compressed rows."""
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def _joined(rows: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Return the columns of all rows, concatenated."""
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def call_of_units(series: Series, regions: list[Region], solved: SeriesSolution) -> Ints:
    """Return the call of each unit, −1 on CPUs and for units left out, shape (U,)."""
    table, rest = solved.table, solved.rest
    call = np.full(series.graph.size, -1)
    r, x, current = 0, rest.shape[1] - 1, -1
    start = -1  # of the call at work, −1 on CPUs
    while r < len(regions):
        if start < 0:
            heads = range(int(table.head_at[r]), int(table.head_at[r + 1]))
            offers = [table.through[r] + table.cross[r] + rest[r + 1, x]]
            offers += [table.head_time[h] + solved.held[table.head_start[h], x] for h in heads]
            best = int(np.argmin(offers))
            if best == 0:
                r += 1
                continue
            current += 1
            levels = regions[r].begins.levels[best - 1]
            call[np.array(series.regions[r], np.int64)[levels == BEGINS]] = current
            start = int(table.head_start[heads[best - 1]])
        j, e = _next_end(table, solved, r, start, x)
        for t in range(r + 1, j + 1):
            call[series.separators[t - 1]] = current
            if t < j:
                call[list(series.regions[t])] = current
        kind, place = solved.origin[e]
        levels = getattr(regions[j], kind).levels[place]
        units = np.array(series.regions[j], np.int64)
        call[units[levels == ENDS]] = current
        start, x = int(table.end_start[e]), x - 1
        if start >= 0:
            current += 1
            call[units[levels == BEGINS]] = current
            r = j
        else:
            r = j + 1
    return call


def _next_end(
    table: SeriesTables, solved: SeriesSolution, r: int, start: int, x: int
) -> tuple[int, int]:
    """Return the region in which a call ends, and the end, by least time."""
    least, found = np.inf, (-1, -1)
    for j in range(r + 1, len(table.through)):
        if table.blocked[j] and (table.blocked[j] == 2 or j > r + 1):
            break
        free = solved.room - table.start_memory[start] - (table.memory[j] - table.skipped_memory[r])
        if free < 0:
            break
        first = int(table.end_at[j])
        last = first + int(
            np.searchsorted(table.end_memory[first : table.end_at[j + 1]], free, "right")
        )
        if last == first:
            continue
        value = table.compute[j] - table.skipped[r] + solved.best[last - 1, x]
        if value < least:
            ends = np.flatnonzero(solved.best[first:last, x] <= solved.best[last - 1, x])
            least, found = value, (j, first + int(ends[0]))
    return found


def regions_of(series: Series, i: int) -> tuple[Region, Region]:
    """Return the divisions of region i twice: for bounds, and executable ones for plans."""
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
                into.append(_best_per_cell(listed, cells_of(series), lower=into is lower))
            else:
                into.append(_undominated(listed))
    return Region(through, inner, *lower), Region(through, np.inf, *upper)


def cells_of(series: Series) -> int:
    """Return into how many cells the memory of a call is divided where two calls meet."""
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
    return Divisions(value, levels), _evaluated(arrays, levels, ends, begins, room)


def _longest(arrays: RegionArrays, time: Floats) -> float:
    """Return the longest chain through a region by given times of its units."""
    until = [0.0] * (len(time) + 2)
    start, before = arrays.before_start.tolist(), arrays.before.tolist()
    for u in range(1, len(time) + 1):
        ready = max((until[x] for x in before[start[u] : start[u + 1]]), default=0.0)
        until[u] = ready + float(time[u - 1])
    return max(until)


def _along_path(series: Series, i: int, ends: bool, begins: bool) -> Divisions:
    """Return lower bounds on divisions from the path through the region alone.

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
    return _evaluated(arrays, np.array(levels, np.int64), ends, begins, room)


def _evaluated(
    arrays: RegionArrays, levels: Ints, ends: bool, begins: bool, room: float
) -> Divisions:
    """Return divisions with their exact values, those that fit."""
    value = np.array([_value(arrays, row, ends, begins) for row in levels]).reshape(len(levels), 3)
    fits = np.isfinite(value[:, 2]) & (value[:, :2] <= room).all(axis=1)
    return Divisions(value[fits], levels[fits])


def _value(
    arrays: RegionArrays, levels: Ints, ends: bool, begins: bool
) -> tuple[float, float, float]:
    """Return the bytes of both calls and the time of one division."""
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
    """Return the divisions that take less time than all of less memory, by memory."""
    held = found.value[:, 0] + found.value[:, 1]  # one of them is 0
    order = np.lexsort((found.value[:, 2], held))
    time = found.value[order, 2]
    before = np.concatenate([[np.inf], np.minimum.accumulate(time)[:-1]])
    return found.chosen(order[time < before])


def _best_per_cell(found: Divisions, parts: int, *, lower: bool) -> Divisions:
    """Return the fastest division of each cell of a grid of both calls' memory."""
    if not len(found.value):
        return found
    held = found.value[:, :2]
    width = np.maximum(held.max(axis=0), 1e-300) / parts
    cell = np.minimum((held / width).astype(np.int64), parts - 1) @ [parts, 1]
    order = np.lexsort((found.value[:, 2], cell))
    first = order[_changes(cell[order])]
    best = found.chosen(first)
    if not lower:
        return best
    for part in range(2):
        least = np.full(parts * parts, np.inf)
        np.minimum.at(least, cell, held[:, part])
        best.value[:, part] = least[cell[first]]
    return best


def _changes(values: Ints) -> Bools:
    """Return whether each value differs from the one before."""
    return np.concatenate([[True], values[1:] != values[:-1]])
