"""A graph as a series of separators and regions, and the divisions of a region by its components.

Take a path v_0 … v_{L−1} through the units. A unit u off it has a last v_a that leads to u, and a
first v_b that u leads to. It spans v_{a+1} … v_{b−1}; every other v_i comes before or after it. So
a v_i that no unit spans is a *separator*, and the units between two separators, with those of the
path, are a *region*. A place that an edge passes by is not taken, so that what a unit moves
concerns one region; long edges are left out.

Units that span much of the path (a mask that every layer reads) are left out, so that the rest
falls into regions: what is proved without a unit holds with it, as leaving a unit out takes away
time, memory, transfers and waiting, and forbids nothing.

*Components.* Units of a region may fall into components that only the separators connect. Compute,
transfers and bytes of the calls add up over components; the time between the calls is the longest
of any. So for each limit on that time, the divisions of components within it are added cell by
cell of a grid of memory. Bytes are rounded down, which is right for bounds: for plans the same
divisions are evaluated exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np

from ....formulations.latency.graph import LatencyGraph
from ....formulations.task import Task
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Latency
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.exact_sums import summable
from ..bound import heavy_paths, shortest_passage
from .recursion_kernel import combine, divisions


class RegionArrays(NamedTuple):
    """A region as arrays: the separator before it, its n units, the separator behind it: 0 … n+1.

    Only what lies in the region counts of predecessors and of nets: who reads the output of a node.
    """

    compute: Floats  # (n+2,), 0 for separators, as those below
    cpu: Floats
    memory: Floats
    before_start: Ints  # predecessors, as compressed rows
    before: Ints
    nets: Ints  # source of each net
    weight: Floats
    pin_start: Ints  # readers, as compressed rows
    pins: Ints


#: Divisions of a component that are listed at most.
MOST = 60_000

#: Limits on the time between the calls that are tried.
LIMITS = 48


class ComponentDivisions(NamedTuple):
    """The divisions of one component: its units, their levels, and values as of `divisions`."""

    units: Ints
    levels: Ints
    value: Floats


#: Places of the path that a unit may span, at first, and the part of all work that may be left out
#: for that; while more would be, units may span four times as many.
MOST_SPAN, MOST_LEFT_OUT = 64, 0.05


@dataclass(frozen=True, eq=False)
class Series:
    """Separators s_1 … s_m, and regions R_0 … R_m: R_i lies between s_i and s_{i+1}.

    Times are least ones: p and c over the kinds of accelerators, q of a contracted colour along the
    shortest of its longest chains.

    Parameters
    ----------
    graph
        All units.
    path, up, down
        The path, shape (L,); for each unit, shape (U,), the last place on it that leads to the
        unit, −1 without, and the first that the unit leads to, L without; its own if it is on it.
    separators
        Shape (m,): units.
    regions
        Units of each region, increasing: in topological order.
    left_out
        Units that are in none.
    compute, cpu
        Shape (U,): p and q of units; `inf` where unsupported. As bytes they are on a grid where
        all sums are exact, none above its own, and none above twice what a plan can have.
    memory
        Shape (U,): bytes of units.
    capacity
        Bytes of the largest accelerator; 0 without any.
    """

    graph: LatencyGraph
    task: Task[Latency]
    path: Ints
    up: Ints
    down: Ints
    separators: Ints
    regions: tuple[tuple[int, ...], ...]
    left_out: Ints
    compute: Floats
    cpu: Floats
    memory: Floats
    capacity: float

    @cached_property
    def transfer(self) -> Floats:
        """Shape (n,): c of nodes, the least over the kinds."""
        least: Floats = self.graph.transfer.min(axis=0, initial=np.inf)
        return np.where(np.isfinite(least), least, 0.0)


def series_of(task: Task[Latency], graph: LatencyGraph, limit: float = np.inf) -> Series:
    """Return the series along the path that takes longest on CPUs; n nodes, m edges: O(n + m).

    Parameters
    ----------
    limit
        A latency that only plans of no interest exceed: all times are cut off at twice it.
    """
    path = heavy_paths(graph, count=1)[-1]
    up, down = _path_neighbours(graph, path)
    least = graph.unit_compute.min(axis=0, initial=np.inf)
    work = np.where(np.isfinite(least), least, 0.0)
    most = MOST_SPAN
    while work[down - up - 1 > most].sum() > MOST_LEFT_OUT * work.sum():
        most *= 4
    left_out = down - up - 1 > most
    places = np.flatnonzero(_coverage(graph, up, down, ~left_out, most)[: len(path)] == 0)
    separators = path[places]
    regions: list[list[int]] = [[] for _ in range(len(places) + 1)]
    is_separator = np.zeros(graph.size, np.bool_)
    is_separator[separators] = True
    of_unit = np.searchsorted(places, down)  # separators lie before the region's end alone
    for unit in np.flatnonzero(~left_out & ~is_separator).tolist():
        regions[of_unit[unit]].append(unit)
    singles = np.array([members[0] for members in graph.members])
    cpu = graph.cpu[singles] if graph.size else np.zeros(0)
    for unit, members in enumerate(graph.members):
        if len(members) > 1:
            cpu[unit] = shortest_passage(task, graph, unit)
    capacity = float(room_of(graph.capacity_bytes.max(initial=0.0)))
    memory = np.minimum(graph.unit_memory, 2 * capacity if capacity > 0 else 1.0)
    return Series(
        graph=graph,
        task=task,
        path=path,
        up=up,
        down=down,
        separators=separators,
        regions=tuple(map(tuple, regions)),
        left_out=np.flatnonzero(left_out),
        compute=summable(_cut_off(least, limit)),
        cpu=summable(_cut_off(cpu, limit)),
        memory=summable(memory),
        capacity=capacity,
    )


def _cut_off(times: Floats, limit: float) -> Floats:
    """Return times capped at twice a limit; `inf`, unsupported, stays."""
    return np.where(np.isfinite(times), np.minimum(times, 2 * limit), np.inf)


def _coverage(graph: LatencyGraph, up: Ints, down: Ints, inside: Bools, most: int) -> Ints:
    """Return, for each place of the path, how many units and short edges span it."""
    source = np.repeat(np.arange(graph.size), [len(after) for after in graph.successors])
    target = np.array([y for after in graph.successors for y in after], np.int64)
    # an edge passes the places from behind its source to before its target
    first = np.where(up == down, down + 1, down)[source]
    last = np.where(up == down, up - 1, up)[target]
    short = inside[source] & inside[target] & (last - first < most) & (first <= last)
    units = np.flatnonzero(inside & (down > up))  # those of the path lie beside nothing
    change = np.zeros(int(down.max(initial=0)) + 2, np.int64)
    np.add.at(change, np.concatenate([up[units] + 1, first[short]]), 1)
    np.add.at(change, np.concatenate([down[units], last[short] + 1]), -1)
    return np.cumsum(change)


def _path_neighbours(graph: LatencyGraph, path: Ints) -> tuple[Ints, Ints]:
    """Return the last place before each unit and the first after it, shapes (U,)."""
    up, down = np.full(graph.size, -1), np.full(graph.size, len(path))
    up[path] = down[path] = np.arange(len(path))
    on_path = np.zeros(graph.size, np.bool_)
    on_path[path] = True
    above, below, own = up.tolist(), down.tolist(), on_path.tolist()
    for u in range(graph.size):
        if not own[u]:
            above[u] = max((above[x] for x in graph.predecessors[u]), default=-1)
    for u in reversed(range(graph.size)):
        if not own[u]:
            below[u] = min((below[y] for y in graph.successors[u]), default=len(path))
    return np.array(above, np.int64), np.array(below, np.int64)


def by_components(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float, cells: int
) -> tuple[Floats, Ints] | None:
    """Return divisions of a region, one per cell of a grid; None if a component is too large.

    Returns
    -------
    value
        Shape (D, 3): bytes of both calls, rounded down; no more than the least time in the cell.
    levels
        Shape (D, n): where the units go in a division that is about as good.
    """
    parts = _component_divisions(arrays, ends, begins, capacity)
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
    found: list[ComponentDivisions], upper: float, width: Floats, shape: tuple[int, int]
) -> tuple[Floats, Ints]:
    """Return the least sums of divisions within a limit, and the row of each component in them."""
    total: Floats = np.full(shape, np.inf)
    total[0, 0] = 0.0
    steps = []
    for part in found:
        own, row = _least_per_cell(part, upper, width, shape)
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


def _least_per_cell(
    part: ComponentDivisions, upper: float, width: Floats, shape: tuple[int, int]
) -> tuple[Floats, Ints]:
    """Return the least compute and transfers of a component in each cell, and the division."""
    rows = np.flatnonzero(part.value[:, 3] <= upper)
    time = part.value[rows, 2] - part.value[rows, 3]
    cell = np.minimum((part.value[rows, :2] / width).astype(np.int64), np.array(shape) - 1)
    order = np.argsort(-time, kind="stable")  # the last that is written stays
    least, row = np.full(shape, np.inf), np.full(shape, -1)
    at = tuple(cell[order].T)
    least[at], row[at] = time[order], rows[order]
    return least, row


def _component_divisions(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float
) -> tuple[list[ComponentDivisions], float] | None:
    """Return the divisions of each component, and the transfers common to all divisions."""
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
        part = _divisions_of_component(arrays, units, own_nets, ends, begins, capacity)
        if part is None:
            return None
        found.append(part)
    return found, always


def _divisions_of_component(
    arrays: RegionArrays,
    units: list[int],
    nets: list[tuple[int, float, list[int]]],
    ends: bool,
    begins: bool,
    capacity: float,
) -> ComponentDivisions | None:
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
    return (
        None
        if listed is None
        else ComponentDivisions(np.array(units), listed[1][:, 1:-1], listed[0])
    )


def list_divisions(
    arrays: RegionArrays, ends: bool, begins: bool, capacity: float, most: int
) -> tuple[Floats, Ints] | None:
    """Return values and levels as of `divisions`; None if there are more than `most`."""
    room, size = 256, len(arrays.compute)
    while True:
        levels, value = np.empty((room, size), np.int64), np.empty((room, 4))
        count = divisions(arrays, ends, begins, capacity, room, levels, value)
        if count >= 0:
            return value[:count].copy(), levels[:count].copy()
        if room == most:
            return None
        room = min(most, 8 * room)


def compressed(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Return rows as compressed rows: where each begins, and all values."""
    start = np.cumsum([0, *map(len, rows)])
    return start.astype(np.int64), np.array([x for row in rows for x in row], np.int64)


def arrays_of(series: Series, i: int) -> RegionArrays:
    """Return region i as arrays."""
    graph, units = series.graph, list(series.regions[i])
    left = int(series.separators[i - 1]) if i else -1
    local = {unit: place for place, unit in enumerate(units, 1)}
    last = len(units) + 1
    times = np.zeros((3, last + 1))
    times[:, 1:last] = series.compute[units], series.cpu[units], series.memory[units]
    before = [[], *([local[x] for x in graph.predecessors[u] if x in local] for u in units), []]
    if i < len(series.separators):
        local[int(series.separators[i])] = last
    nets: list[int] = []
    weight: list[float] = []
    pins: list[list[int]] = []
    successors, unit_of = series.task.workload.successors, graph.unit_of
    for place, unit in enumerate([left, *units]):
        for v in graph.members[unit] if unit >= 0 else ():
            fed = {local[y] for x in successors[v] if (y := int(unit_of[x])) in local and y != unit}
            if fed and series.transfer[v] > 0:
                nets.append(place)
                weight.append(float(series.transfer[v]))
                pins.append(sorted(fed))
    return RegionArrays(
        times[0], times[1], times[2], *compressed(before),
        np.array(nets, np.int64), np.array(weight), *compressed(pins),
    )  # fmt: skip
