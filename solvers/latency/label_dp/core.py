"""The graph that the latency DP works on: free leaves set aside, units renumbered, paths bounded.

*Free leaves* are units of one node that take no time on CPUs (nor on accelerators) and either are
sources, or are sinks with one predecessor. A free source is best on the CPUs, unless all
that it feeds is in one call: moved there from a call, it frees memory, its output is there at
once, and it costs that call one transfer in where there was one transfer out. A free sink
is best on the CPUs, unless it is in the call of its predecessor u, and then it helps only if
nothing of u's output leaves the call. So free leaves need no place in the ideals: a call may
take those it surrounds, and which ones is a knapsack of transfers saved against bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....formulations.latency.graph import LatencyGraph
from ....formulations.task import Task
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Latency
from ....instances.common.arrays import Bools, Floats, Ints
from ..bound import CutData, PathBound, path_bound
from . import arrays as col
from .arrays import Graph

#: The label DP is left alone if its codes (calls used of every kind) are more than this.
MOST_CODES = 20_000


@dataclass(frozen=True, eq=False)
class Core:
    """What remains without free leaves; C units, N nodes.

    Parameters
    ----------
    graph
        All units.
    units
        Shape (C,): units of `graph` that are no free leaves, in topological order.
    nodes
        Shape (N,): nodes of the workload, by core unit.
    sources, sinks
        Satellites: nodes of the workload.
    """

    graph: LatencyGraph
    units: Ints
    nodes: Ints
    sources: tuple[int, ...]
    sinks: tuple[int, ...]


def core_of(task: Task[Latency], graph: LatencyGraph) -> Core:
    """Set free leaves aside."""
    workload = task.workload
    free = (graph.cpu == 0) & np.all((graph.compute == 0) | np.isinf(graph.compute), axis=0)
    lone = [
        len(graph.members[unit]) == 1 and graph.group[unit] < 0 and bool(free[graph.members[unit]])
        for unit in range(graph.size)
    ]
    sources = [
        graph.members[unit][0]
        for unit in range(graph.size)
        if lone[unit] and not graph.predecessors[unit]
    ]
    taken = set(sources)
    sinks = [
        graph.members[unit][0]
        for unit in range(graph.size)
        if lone[unit]
        and not graph.successors[unit]
        and graph.members[unit][0] not in taken
        and len(workload.predecessors[graph.members[unit][0]]) == 1
        and workload.predecessors[graph.members[unit][0]][0] not in taken
    ]
    away = {int(graph.unit_of[v]) for v in (*sources, *sinks)}
    units = [unit for unit in range(graph.size) if unit not in away]
    nodes = [v for unit in units for v in graph.members[unit]]
    return Core(
        graph, np.array(units, np.int64), np.array(nodes, np.int64), tuple(sources), tuple(sinks)
    )


def core_paths(
    task: Task[Latency],
    core: Core,
    graph: LatencyGraph,
    data: CutData,
    paths: Sequence[Ints],
    calls: int,
    should_stop: Callable[[], bool],
    *,
    enough: float | None = None,
) -> list[PathBound]:
    """Bound the parts of `paths`, through units of `graph`, that lie in the core.

    With `enough` quickly, as in `path_bound`, and no more of them once a bound is that much.
    """
    inside = np.zeros(core.graph.size, np.bool_)
    inside[core.units] = True
    trimmed = [path[inside[path]] for path in paths]
    found: list[PathBound] = []
    for path in trimmed:
        if len(path) and not (enough is not None and found and found[-1].value >= enough):
            found.append(path_bound(task, graph, data, path, calls, should_stop, enough=enough))
    return found


def codes(counts: Sequence[int]) -> tuple[Ints, Ints]:
    """Number the vectors (calls used of each kind): their rows, and the step of each kind."""
    step = np.cumprod([1, *(count + 1 for count in counts[:-1])]) if counts else np.zeros(0)
    table = [used[::-1] for used in itertools.product(*(range(c + 1) for c in counts[::-1]))]
    return np.array(table, np.int64).reshape(len(table), len(counts)), step.astype(np.int64)


def kernel_graph(
    task: Task[Latency],
    core: Core,
    counts: Sequence[int],
    bounds: Sequence[PathBound],
    *,
    chained: bool = False,
    divided: bool = False,
) -> Graph:
    """Return the arrays for the kernel.

    Parameters
    ----------
    counts
        Number of calls of each kind.
    chained
        Keep to one topological order of the units.
    divided
        Whether a colour may be divided over the two calls of an accelerator.
    """
    graph, workload = core.graph, task.workload
    size = len(core.units)
    unit_no = np.full(graph.size, -1)
    unit_no[core.units] = np.arange(size)
    node_no = np.full(workload.n, -1)
    node_no[core.nodes] = np.arange(len(core.nodes))
    unit_of = unit_no[graph.unit_of]

    def inside(nodes: Sequence[int]) -> list[int]:
        return [int(node_no[u]) for u in nodes if node_no[u] >= 0]

    succ = [[int(unit_no[y]) for y in graph.successors[u] if unit_no[y] >= 0] for u in core.units]
    preds = [int((unit_no[list(graph.predecessors[u])] >= 0).sum()) for u in core.units]
    if chained:
        succ = [[x + 1] if x + 1 < size else [] for x in range(size)]
        preds = [int(x > 0) for x in range(size)]
    inputs = [_inputs(task, core, node_no, unit) for unit in core.units]
    sink_bytes, sinks = _sink_tables(task, core, node_no)
    source, sources = _source_table(task, core, unit_of)
    lists: list[int] = []
    of_unit, of_node = (
        np.zeros((size + 1, 6), np.int64),
        np.zeros((len(core.nodes) + 1, 5), np.int64),
    )
    of_unit[:, col.SUCC], of_unit[:, col.INPUT] = _append(lists, succ), _append(lists, inputs)
    of_unit[:, col.SOURCE] = _append(lists, sources)
    of_unit[:, col.NODE] = np.searchsorted(unit_of[core.nodes], np.arange(size + 1))
    of_unit[:size, col.PREDS], of_unit[:size, col.GROUP] = preds, graph.group[core.units]
    of_node[:, col.FEED] = _append(lists, [inside(workload.predecessors[v]) for v in core.nodes])
    of_node[:, col.FOLLOWING] = _append(lists, [inside(workload.successors[v]) for v in core.nodes])
    of_node[:-1, col.UNIT] = unit_of[core.nodes]
    of_node[:-1, col.CONSUMERS] = [
        len({int(unit_of[y]) for y in workload.successors[v]} - {-1, int(unit_of[v])})
        for v in core.nodes
    ]
    of_node[:-1, col.SINKS] = sinks
    place, gates, rest, onward = _path_tables(task, core, bounds, unit_no, node_no, lists)
    group = of_unit[:size, col.GROUP]
    tied, most = group >= 0, len(workload.colour_classes) + 1
    memory = graph.unit_memory[core.units]
    left, step = codes(counts)
    used = left.copy()
    left = np.array(counts, np.int64) - used
    return Graph(
        divided=divided,
        unit=of_unit,
        node=of_node,
        lists=np.array(lists, np.int64),
        compute=np.ascontiguousarray(graph.unit_compute[:, core.units]),
        memory=memory,
        transfer=np.ascontiguousarray(graph.transfer[:, core.nodes]),
        time=np.stack([graph.cpu[core.nodes], _depths(task, core), sink_bytes], axis=1),
        source=source,
        capacity=room_of(graph.capacity_bytes),
        group_size=np.bincount(group[tied], minlength=most),
        group_bytes=np.bincount(group[tied], weights=memory[tied], minlength=most),
        code=np.column_stack([left, used.sum(axis=1)]),
        step=step,
        leq=(used[:, None, :] <= used[None, :, :]).all(axis=2),
        place=place,
        gates=gates,
        rest=rest,
        onward=onward,
    )


def _inputs(task: Task[Latency], core: Core, node_no: Ints, unit: int) -> list[int]:
    """Return the nodes of other units that a unit reads."""
    found = {
        int(node_no[u])
        for v in core.graph.members[unit]
        for u in task.workload.predecessors[v]
        if node_no[u] >= 0 and core.graph.unit_of[u] != unit
    }
    return sorted(found)


def _supported(task: Task[Latency], core: Core) -> Bools:
    """Return whether every kind of accelerator supports a node, shape (n,); False without any."""
    graph = core.graph
    if not graph.kinds:
        return np.zeros(task.workload.n, np.bool_)
    return np.asarray(np.isfinite(graph.compute).all(axis=0), np.bool_)


def _sink_tables(task: Task[Latency], core: Core, node_no: Ints) -> tuple[Floats, Ints]:
    """Return what the free sinks behind each node take in bytes, and whether there are any.

    1 for sinks that every kind supports, 2 for others.
    """
    supported = _supported(task, core)
    sink_bytes, sinks = np.zeros(len(core.nodes)), np.zeros(len(core.nodes), np.int64)
    for v in core.sinks:
        u = int(node_no[task.workload.predecessors[v][0]])
        sink_bytes[u] += core.graph.memory_bytes[v]
        sinks[u] = max(int(sinks[u]), 1 if supported[v] else 2)
    return sink_bytes, sinks


def _source_table(task: Task[Latency], core: Core, unit_of: Ints) -> tuple[Floats, list[list[int]]]:
    """Return a row for each free source, and the free sources of each unit."""
    graph, supported, size = core.graph, _supported(task, core), len(core.units)
    sources: list[list[int]] = [[] for _ in range(size)]
    table = np.zeros((len(core.sources), col.MOVED + len(graph.kinds)))
    for t, v in enumerate(core.sources):
        fed = sorted({int(unit_of[y]) for y in task.workload.successors[v]})
        table[t, col.FEEDS] = len(fed) if supported[v] and fed else size + 1
        table[t, col.BYTES] = graph.memory_bytes[v]
        table[t, col.MOVED :] = graph.transfer[:, v]
        for unit in fed:
            sources[unit].append(t)
    return table, sources


def _append(lists: list[int], rows: Sequence[Sequence[int]]) -> Ints:
    """Append the rows to `lists`; return where each begins, and the end."""
    start = np.cumsum([len(lists), *(len(row) for row in rows)])
    lists += [x for row in rows for x in row]
    return start


def _depths(task: Task[Latency], core: Core) -> Floats:
    """Least time from a node's start to the end: along paths, p or q, whichever is less."""
    graph = core.graph
    least = np.minimum(graph.cpu, graph.compute.min(axis=0, initial=np.inf))
    depth = np.where(np.isfinite(least), least, 0.0)
    for v in reversed(task.workload.order):
        depth[v] += max((depth[y] for y in task.workload.successors[v]), default=0.0)
    return depth[core.nodes]


def _path_tables(
    task: Task[Latency],
    core: Core,
    bounds: Sequence[PathBound],
    unit_no: Ints,
    node_no: Ints,
    lists: list[int],
) -> tuple[Ints, Ints, Floats, Floats]:
    graph, workload = core.graph, task.workload
    longest = max((len(b.path) for b in bounds), default=0)
    calls = bounds[0].rest.shape[1] - 1 if bounds else 0
    place = np.full((len(bounds), len(core.units)), -1)
    gates = np.zeros((len(bounds), longest + 2), np.int64)
    rest = np.zeros((len(bounds), longest + 1, calls + 1))
    onward = np.full((len(bounds), longest, longest, calls + 1), np.inf)
    for p, bound in enumerate(bounds):
        place[p, unit_no[bound.path]] = np.arange(len(bound.path))
        rest[p, : len(bound.path) + 1] = bound.rest
        _onward(bound, onward[p])
        feeding: list[list[int]] = [[] for _ in range(longest + 1)]
        for i in range(1, len(bound.path)):
            before, here = int(bound.path[i - 1]), int(bound.path[i])
            feeding[i] = [
                int(node_no[u])
                for u in graph.members[before]
                if any(graph.unit_of[y] == here for y in workload.successors[u])
            ]
        gates[p] = _append(lists, feeding)
    return place, gates, rest, onward


def _onward(bound: PathBound, out: Floats) -> None:
    """out[i, j, x] = min over j' ≥ j of L(i, j') + D[j'+1][x−1]."""
    size = len(bound.path)
    for i in range(size):
        then = bound.load[i, :, None] + bound.rest[1 : size + 1, :-1]
        out[i, :size, 1:] = np.minimum.accumulate(then[::-1], axis=0)[::-1]
