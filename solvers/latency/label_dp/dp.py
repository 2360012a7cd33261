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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....formulations.latency.graph import LatencyGraph, latency_graph
from ....formulations.task import Task
from ....formulations.throughput.infeasible import memories, why_infeasible
from ....formulations.throughput.whole_bytes import room_of
from ....instances import CallPlacement, Latency, Solution
from ...core.search import Search
from ..bound import cut_data, path_bound
from ..paths import heavy_paths
from . import arrays as col
from .arrays import Graph, LabelStore, bytes_of, enlarged, new_scratch, new_store, wider
from .core import MOST_CODES, Core, core_of, core_paths, kernel_graph
from .kernel import run
from .knapsack_kernel import knapsack
from .labels_kernel import rehash

PATH_BOUND = "path-interval bound"

#: Units of work between two looks at the clock: some tenths of a second.
SLICE = 1_000_000
#: Slices of all targets together that count as long.
LONG = 8
#: How much a target is raised when it is proved to be a bound.
ESCALATION = 1.015
#: A target is undercut by this much, relatively: rounding in sums of times.
MARGIN = 1e-9
#: Bytes at which a run gives up.
MOST_BYTES = 4e9


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a chain: the units it adds, on CPUs (kind −1) or as a call."""

    kind: int
    units: tuple[int, ...]


def one_call(
    task: Task[Latency],
    should_stop: Callable[[], bool],
    best: Callable[[], float],
    offer: Callable[[Solution], bool],
    raise_bound: Callable[[float, str], bool],
    prove_infeasible: Callable[[str], None],
    start: Callable[[], None] = lambda: None,
    when_long: Callable[[], float] = lambda: -math.inf,
) -> None:
    """Solve a task with one call per accelerator, and tell what is found.

    Parameters
    ----------
    best
        Latency of the best plan known.
    start
        Called for a better plan if the bound along paths does not prove the best one.
    when_long
        Called once if it takes long, for a better plan and a bound, which it returns.
    """
    graph = latency_graph(task, whole_colours=True)
    counts = [min(int(c), graph.size) for c in graph.count]
    core = core_of(task, graph)
    about = task, core, graph, cut_data(task, graph), heavy_paths(graph), sum(counts), should_stop
    for enough in (best() * (1 - MARGIN), None):
        paths = core_paths(*about, enough=enough)
        proved = max((path.value for path in paths), default=0.0)
        if math.isinf(proved):
            prove_infeasible(explain(task))
            return
        raise_bound(proved, PATH_BOUND)
        if enough is not None and best() > proved * (1 + 2 * MARGIN):
            start()
        if best() <= proved * (1 + 2 * MARGIN):
            return
    if math.prod(c + 1 for c in counts) > MOST_CODES:
        return
    kernel = kernel_graph(task, core, counts, paths)
    most = ceiling(task, graph)
    slices = 0

    def should_pause() -> bool:
        nonlocal slices
        slices += 1
        return slices == LONG or should_stop()

    while not should_stop() and best() > proved * (1 + 2 * MARGIN):
        target = min(next_target(proved, most), best())
        complete, value, steps = chain(kernel, target, should_pause, best=best)
        if steps is not None:
            offer(solution_of(task, core, steps))
        if not complete:
            if slices != LONG or should_stop():
                return
            slices += 1
            proved = max(proved, when_long())
            continue
        if steps is None and target > most and math.isinf(best()):
            prove_infeasible(explain(task))
            return
        # with several pools of CPUs the times are lower bounds, and so is the value
        proved = (min(target, best()) if steps is None else value) * (1 - MARGIN)
        raise_bound(proved, "label DP")
        if steps is not None:
            return


def raise_path_bound(
    task: Task[Latency],
    search: Search[Solution],
    graph: LatencyGraph,
    should_stop: Callable[[], bool],
) -> None:
    """Raise the path-interval bound along the heaviest path; it may be infinite, and proves that.

    Parameters
    ----------
    should_stop
        Ends it with a weaker bound.
    """
    data = cut_data(task, graph)
    calls = task.problem.calls * int(graph.count.sum())
    for path in heavy_paths(graph, count=1):
        bound = path_bound(task, graph, data, path, calls, should_stop).value
        if math.isinf(bound):
            search.prove_infeasible(explain(task))
            return
        search.raise_bound(bound, PATH_BOUND)


def explain(task: Task[Latency]) -> str:
    """Return why a task that is known to be infeasible is so."""
    return why_infeasible(task) or (
        f"no division into calls that wait for each other in order fits: {memories(task)}; "
        "add CPUs, accelerators, memory, or calls"
    )


def ceiling(task: Task[Latency], graph: LatencyGraph) -> float:
    """Return a latency that no plan exceeds."""
    work = np.where(np.isfinite(graph.compute), graph.compute, 0.0).max(axis=0, initial=0.0)
    alone = np.where(np.isfinite(graph.cpu), graph.cpu, 0.0)
    fans = np.array([2 + len(s) for s in task.workload.successors])
    moved = graph.transfer.max(axis=0, initial=0.0) * fans
    return float(np.maximum(work, alone).sum() + moved.sum())


def next_target(proved: float, most: float) -> float:
    """Return the next target above what is proved, or one above any plan, `most`."""
    if not proved > 0 or proved * ESCALATION > most:
        return most * 1.01 + 1.0
    return proved * ESCALATION


def chain(
    graph: Graph,
    target: float,
    should_stop: Callable[[], bool],
    *,
    single: bool = False,
    best: Callable[[], float] = lambda: math.inf,
) -> tuple[bool, float, list[Step] | None]:
    """Run the DP for plans below `target`.

    Parameters
    ----------
    best
        Latency of the best plan known: the target comes down with it.

    Returns
    -------
    complete
        Whether the run ended by itself: then, unless `single`, no better chain exists than the
        one returned, or none below the target.
    value
        Latency of the best chain, or the target if there is none below it.
    steps
        The best chain found, None if none is below the target.
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


def _steps(graph: Graph, store: LabelStore) -> list[Step] | None:
    label = int(store.at[col.BEST_LABEL])
    if label < 0:
        return None
    steps = []
    while store.label[label, col.PARENT] >= 0:
        parent = int(store.label[label, col.PARENT])
        after, before = (store.key[store.label[i, col.OF_STATE]] for i in (label, parent))
        added = after ^ before
        units = tuple(x for x in range(len(graph.memory)) if int(added[x >> 6]) >> (x & 63) & 1)
        steps.append(Step(int(store.label[label, col.KIND]), units))
        label = parent
    return steps[::-1]


def solution_of(task: Task[Latency], core: Core, steps: list[Step]) -> CallPlacement:
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
    task: Task[Latency], core: Core, steps: list[Step], *, leaves: bool = True
) -> list[tuple[int, list[int]]]:
    """Return kind and nodes of each call of a chain, with the free leaves that save most."""
    found = []
    for step in steps:
        if step.kind >= 0:
            nodes = {v for x in step.units for v in core.graph.members[core.units[x]]}
            if leaves:
                nodes |= leaves_of(task, core, nodes, step.kind)
            found.append((step.kind, sorted(nodes)))
    return found


def leaves_of(task: Task[Latency], core: Core, nodes: set[int], kind: int) -> set[int]:
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
