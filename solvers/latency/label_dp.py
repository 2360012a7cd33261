"""Exact label DP over ideals for one call per accelerator: latency to proven optimality.

Executing a plan takes one call, or one unit on the CPUs, after the other: a chain of ideals.
What follows depends on the past only through the finish times of the *border* (nodes with a
successor still outside) and the calls used. So a state is an ideal, a label holds the calls used
of each kind, the finish times of the border and the last finish so far, and a label that is
nowhere better than another one is dropped: exact.

Only labels that can lead below a target survive (path-interval bounds of what is left, and the
longest tail of computing times). A run that ends without a plan proves the target as a bound; one
that finds a plan lowers the target to it, and proves it optimal when it ends. Targets are
escalated from the path bound, because a loose one makes the states multiply. The same DP with one
label per state and code is a fast heuristic, and comes first.

*Free leaves* are left out of the graph. They are units of one node that take no time on CPUs (nor
on accelerators) and either are sources, or are sinks with one predecessor. A free source is best on
the CPUs, unless all that it feeds is in one call: moved there from a call, it frees memory, its
output is there at once, and it costs that call one transfer in where there was one transfer out. A
free sink is best on the CPUs, unless it is in the call of its predecessor u, and then it helps only
if nothing of u's output leaves the call. So free leaves need no place in the ideals: a call may
take those it surrounds, and which ones is a knapsack of transfers saved against bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.infeasible import memories, why_infeasible
from ...formulations.throughput.whole_bytes import room_of
from ...instances import CallPlacement, Latency, Solution
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.search import Search
from . import labels_kernel as col
from .bound import PathBound, cut_data, heavy_paths, path_bound
from .label_dp_kernel import run
from .labels_kernel import (
    Graph,
    LabelStore,
    bytes_of,
    enlarged,
    knapsack,
    new_scratch,
    new_store,
    rehash,
    wider,
)
from .mincut_kernel import CutData

#: The label DP is left alone if its codes (calls used of every kind) are more than this.
MOST_CODES = 20_000


@dataclass(frozen=True, eq=False)
class Core:
    """A task's graph without free leaves; C units, N nodes."""

    graph: LatencyGraph  # all units
    units: Ints  # (C,): units of `graph` that are no free leaves, in topological order
    nodes: Ints  # (N,): nodes of the workload, by core unit
    sources: tuple[int, ...]  # sources, sinks: satellites: nodes of the workload
    sinks: tuple[int, ...]


PATH_BOUND = "path-interval bound"

#: Units of work between two looks at the clock: some tenths of a second.
SLICE = 1_000_000

#: How much a target is raised when it is proved to be a bound.
ESCALATION = 1.015

#: A target is undercut by this much, relatively: rounding in sums of times.
MARGIN = 1e-9

#: Bytes at which a run gives up.
MOST_BYTES = 4e9


@dataclass(frozen=True, eq=False)
class LabelStep:
    """One step of a chain: the units it adds, on CPUs (kind −1) or as a call."""

    kind: int
    units: tuple[int, ...]


def solve_one_call(
    task: Task[Latency],
    search: Search[Solution],
    should_stop: Callable[[], bool],
    *,
    plans_only: bool = False,
    start: Callable[[], None] = lambda: None,
) -> None:
    """Solve a task with one call per accelerator, and report plans and bounds to a search.

    `plans_only`: the search is one of another problem, for which bounds and infeasibility do not
    hold. `start` is called for a better plan if the bound along paths does not prove the best one.
    """
    graph = latency_graph(task, whole_colours=True)
    counts = [min(int(c), graph.size) for c in graph.count]
    core = core_of(task, graph)
    about = task, core, graph, cut_data(task, graph), heavy_paths(graph), sum(counts), should_stop

    def raise_bound(bound: float, origin: str) -> None:
        if not plans_only:
            search.raise_bound(bound, origin)

    def prove_infeasible() -> None:
        if not plans_only:
            search.prove_infeasible(why_no_plan(task))

    for enough in (search.objective * (1 - MARGIN), None):
        paths = core_paths(*about, enough=enough)
        proved = max((path.value for path in paths), default=0.0)
        if math.isinf(proved):
            prove_infeasible()
            return
        raise_bound(proved, PATH_BOUND)
        if enough is not None and search.objective > proved * (1 + 2 * MARGIN):
            start()
        if search.objective <= proved * (1 + 2 * MARGIN):
            return
    if math.prod(c + 1 for c in counts) > MOST_CODES:
        return
    kernel = kernel_graph(task, core, counts, paths)
    most = latency_ceiling(task, graph)
    while not should_stop() and search.objective > proved * (1 + 2 * MARGIN):
        target = min(next_target(proved, most), search.objective)
        complete, value, steps = run_label_dp(
            kernel, target, should_stop, best=lambda: search.objective
        )
        if steps is not None:
            search.offer(solution_of(task, core, steps))
        if not complete:
            return
        if steps is None and target > most and math.isinf(search.objective):
            prove_infeasible()
            return
        # with several pools of CPUs the times are lower bounds, and so is the value
        proved = (min(target, search.objective) if steps is None else value) * (1 - MARGIN)
        raise_bound(proved, "label DP")
        if steps is not None:
            return


def raise_path_bound(
    task: Task[Latency],
    search: Search[Solution],
    graph: LatencyGraph,
    should_stop: Callable[[], bool],
    paths: list[Ints],
) -> None:
    """Raise the path-interval bound along paths; an infinite one proves infeasibility.

    Stopped, the bound is weaker. Paths whose bound is complete are taken off the list.
    """
    data = cut_data(task, graph)
    calls = task.problem.calls * int(graph.count.sum())
    while paths and not should_stop():
        bound = path_bound(task, graph, data, paths[0], calls, should_stop).value
        if not should_stop():
            del paths[0]
        if math.isinf(bound):
            search.prove_infeasible(why_no_plan(task))
            return
        search.raise_bound(bound, PATH_BOUND)


def why_no_plan(task: Task[Latency]) -> str:
    """Return why a task proved infeasible has no plan, for users."""
    return why_infeasible(task) or (
        f"no division into calls that wait for each other in order fits: {memories(task)}; "
        "add CPUs, accelerators, memory, or calls"
    )


def latency_ceiling(task: Task[Latency], graph: LatencyGraph) -> float:
    """Return an upper bound on the latency of any plan."""
    work = np.where(np.isfinite(graph.compute), graph.compute, 0.0).max(axis=0, initial=0.0)
    alone = np.where(np.isfinite(graph.cpu), graph.cpu, 0.0)
    fans = np.array([2 + len(s) for s in task.workload.successors])
    moved = graph.transfer.max(axis=0, initial=0.0) * fans
    return float(np.maximum(work, alone).sum() + moved.sum())


def next_target(proved: float, most: float) -> float:
    """Return the next target above the proved bound, or one above `most`, a ceiling."""
    if not proved > 0 or proved * ESCALATION > most:
        return most * 1.01 + 1.0
    return proved * ESCALATION


def run_label_dp(
    graph: Graph,
    target: float,
    should_stop: Callable[[], bool],
    *,
    single: bool = False,
    best: Callable[[], float] = lambda: math.inf,
) -> tuple[bool, float, list[LabelStep] | None]:
    """Run the DP for plans below `target`, which comes down with the best plan known.

    It says whether it ended by itself: then, unless `single`, no better chain exists than the one
    returned, or none below the target; and returns that chain's latency and steps, or target and
    None.
    """
    if not len(graph.memory):
        return True, 0.0, []
    store, work = new_store(graph, target * (1 - MARGIN)), new_scratch(graph)
    rehash(store.table, store.key, 1)
    while True:
        code = run(graph, store, work, single, SLICE)
        if code == col.DONE or should_stop() or bytes_of(store) > MOST_BYTES:
            complete = code == col.DONE and not store.at[col.LEFT_OUT]
            return complete, float(store.target[0]), _steps(graph, store)
        store.target[0] = min(store.target[0], best() * (1 - MARGIN))
        if code == col.ACTIVE_FULL:
            work = wider(work)
        elif code != col.BUDGET:
            store = enlarged(store, code)
            if code == col.STATES_FULL:
                rehash(store.table, store.key, int(store.at[col.N_STATES]))


def _steps(graph: Graph, store: LabelStore) -> list[LabelStep] | None:
    """Return the steps of the best label, first to last; None without."""
    label = int(store.at[col.BEST_LABEL])
    if label < 0:
        return None
    steps = []
    while store.label[label, col.PARENT] >= 0:
        parent = int(store.label[label, col.PARENT])
        after, before = (store.key[store.label[i, col.OF_STATE]] for i in (label, parent))
        added = after ^ before
        units = tuple(x for x in range(len(graph.memory)) if int(added[x >> 6]) >> (x & 63) & 1)
        steps.append(LabelStep(int(store.label[label, col.KIND]), units))
        label = parent
    return steps[::-1]


def solution_of(task: Task[Latency], core: Core, steps: list[LabelStep]) -> CallPlacement:
    """Return the plan of a chain with one call per accelerator, devices in order kind by kind."""
    graph = core.graph
    device, call = graph.pool.copy(), np.full(task.workload.n, -1)
    used = [0] * len(graph.kinds)
    for kind, nodes in calls_of(task, core, steps):
        first = int(np.flatnonzero(task.costs.kind_of == graph.kinds[kind])[0])
        device[nodes] = first + used[kind]
        call[nodes] = 0
        used[kind] += 1
    return CallPlacement(device, call)


def calls_of(
    task: Task[Latency], core: Core, steps: list[LabelStep], *, leaves: bool = True
) -> list[tuple[int, list[int]]]:
    """Return kind and nodes of each call of a chain, with the free leaves that save most."""
    found = []
    for step in steps:
        if step.kind >= 0:
            nodes = {v for x in step.units for v in core.graph.members[core.units[x]]}
            if leaves:
                nodes |= free_leaves_of(task, core, nodes, step.kind)
            found.append((step.kind, sorted(nodes)))
    return found


def free_leaves_of(task: Task[Latency], core: Core, nodes: set[int], kind: int) -> set[int]:
    """Return the free leaves that a call of `nodes` should take, on a kind of accelerators."""
    graph, workload = core.graph, task.workload
    items = [  # bytes, transfer saved, nodes
        (float(graph.memory_bytes[v]), float(graph.transfer[kind, v]), [v])
        for v in core.sources
        if workload.successors[v]
        and np.isfinite(graph.compute[:, v]).all()
        and nodes.issuperset(workload.successors[v])
    ]
    sinks: dict[int, list[int]] = {}
    for v in core.sinks:
        sinks.setdefault(workload.predecessors[v][0], []).append(v)
    for u, fed in sinks.items():
        if (
            u in nodes
            and np.isfinite(graph.compute[:, fed]).all()
            and nodes.union(fed).issuperset(workload.successors[u])
        ):
            size = float(graph.memory_bytes[fed].sum())
            items.append((size, float(graph.transfer[kind, u]), fed))
    free = room_of(graph.capacity_bytes[kind]) - graph.memory_bytes[sorted(nodes)].sum()
    taken = {v for size, _, some in items if size <= 0 for v in some}
    rest = [item for item in items if 0 < item[0] <= free and item[1] > 0]
    _, chosen = knapsack(
        np.array([size for size, _, _ in rest]), np.array([s for _, s, _ in rest]), free
    )
    return taken | {v for item, pick in zip(rest, chosen, strict=True) if pick for v in item[2]}


def core_of(task: Task[Latency], graph: LatencyGraph) -> Core:
    """Return the graph without its free leaves."""
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
    """Return the path-interval bounds along the parts of `paths` that lie in the core.

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
    """Return the vectors of calls used of each kind, one a row, and the code step of each kind."""
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
    """Return the arrays for the kernel, for so many calls of each kind.

    `chained` keeps to one topological order of the units; if `divided`, a colour may be divided
    over the two calls of an accelerator.
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
        group_bytes=np.bincount(group[tied], memory[tied], most).astype(np.float64),  # int of none
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
    """Return the bytes of each node's free sinks, and whether accelerators may run them.

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
    """Return the least time from each node's start to the end, by p or q, whichever is less."""
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
    """Return the path bounds as arrays: places, gates, D, and the minimum of a first call."""
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
    """Write out[i, j, x] = min over j' ≥ j of L(i, j') + D[j'+1][x−1]."""
    size = len(bound.path)
    for i in range(size):
        then = bound.load[i, :, None] + bound.rest[1 : size + 1, :-1]
        out[i, :size, 1:] = np.minimum.accumulate(then[::-1], axis=0)[::-1]
