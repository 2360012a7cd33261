"""A graph as a series: units that all others come before or after, and regions between them.

Take a path v_0 … v_{L−1} through the units. A unit u off it has a last v_a that leads to u, and a
first v_b that u leads to. It lies beside v_{a+1} … v_{b−1}; every other v_i comes before or after
it. So a v_i that no unit lies beside is a *separator*, and the units between two separators, with
those of the path, are a *region*. A place that an edge passes by is not taken, so that what a unit
moves concerns one region; long edges are left out.

Units that lie beside much of the path (a mask that every layer reads) are set aside, so that the
rest falls into regions: what is proved without a unit holds with it, as leaving a unit out takes
away time, memory, transfers and waiting, and forbids nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....formulations.latency.graph import LatencyGraph
from ....formulations.task import Task
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Latency
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.exact_sums import summable
from ..paths import heavy_paths, shortest_passage

#: Units of the path beside which a unit may lie, at first, and the part of all work that may be set
#: aside for that; while more would be, units may lie beside four times as much.
BESIDE, MOST_ASIDE = 64, 0.05


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
    aside
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
    aside: Ints
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
    up, down = _beside(graph, path)
    least = graph.unit_compute.min(axis=0, initial=np.inf)
    work = np.where(np.isfinite(least), least, 0.0)
    most = BESIDE
    while work[down - up - 1 > most].sum() > MOST_ASIDE * work.sum():
        most *= 4
    aside = down - up - 1 > most
    places = np.flatnonzero(_covered(graph, up, down, ~aside, most)[: len(path)] == 0)
    separators = path[places]
    regions: list[list[int]] = [[] for _ in range(len(places) + 1)]
    is_separator = np.zeros(graph.size, np.bool_)
    is_separator[separators] = True
    of_unit = np.searchsorted(places, down)  # separators lie before the region's end alone
    for unit in np.flatnonzero(~aside & ~is_separator).tolist():
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
        aside=np.flatnonzero(aside),
        compute=summable(_cut_off(least, limit)),
        cpu=summable(_cut_off(cpu, limit)),
        memory=summable(memory),
        capacity=capacity,
    )


def _cut_off(times: Floats, limit: float) -> Floats:
    """Return times that are at most twice a limit, but for those of what is not supported."""
    return np.where(np.isfinite(times), np.minimum(times, 2 * limit), np.inf)


def _covered(graph: LatencyGraph, up: Ints, down: Ints, inside: Bools, most: int) -> Ints:
    """How many units lie beside each place of the path, and how many edges, none too long."""
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


def _beside(graph: LatencyGraph, path: Ints) -> tuple[Ints, Ints]:
    """Return `up` and `down` of each unit."""
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
