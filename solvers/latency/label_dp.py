"""Exact label-setting DP over ideals for one call per accelerator: proves least latencies.

A plan is executed as a sequence of calls, and of units on the CPUs: a chain of ideals. What follows
an ideal depends on the past only through the calls used and the finish times of the *border*, the
nodes with a successor still outside. So a state is an ideal, and a label holds the calls used of
each kind, the finish times of the border, and the last finish so far. A label that another one
equals or betters in all of these is dominated and dropped, which keeps the DP exact.

Only labels that can lead below a target survive, by the path-interval bounds of the rest and the
longest tail of computing times. A run that ends without a plan proves the target as a bound; one
that finds a plan lowers the target to it, and proves the plan optimal when it ends. Targets rise
from the path-interval bound, because a loose target makes the states multiply. With one label per
state and code, the same DP is a fast heuristic, which runs first.

Units set aside (`formulations/latency/graph.py`) are executed on CPUs as soon as they are ready,
unless a call takes a sink so that its input need not leave. So they hardly add to the ideals.
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
from ...instances.common.arrays import Floats, Ints, summable
from ..core.search import Search
from . import labels_kernel as col
from .bound import PathBound, cut_data, heavy_paths, path_bound
from .label_dp_kernel import run
from .labels_kernel import (
    Graph,
    LabelStore,
    bytes_of,
    enlarged,
    new_scratch,
    new_store,
    rehash,
    wider,
)

#: Most codes (numbers of calls used of every kind) with which the label DP is tried.
MOST_CODES = 20_000


PATH_BOUND = "path-interval bound"

#: Units of work between two polls of the clock: some tenths of a second.
SLICE = 1_000_000

#: Factor by which a target rises once it is proved to be a bound.
ESCALATION = 1.015

#: Relative margin below a target, for rounding in sums of times.
MARGIN = 1e-9

#: Bytes of labels and states at which a run gives up.
MOST_BYTES = 4e9


@dataclass(frozen=True, eq=False)
class LabelStep:
    """A step of a chain: the units that it adds, on CPUs (kind −1) or as a call."""

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

    `plans_only` if the search is of another problem, for which bounds and infeasibility do not
    hold. `start` is called, for a better plan, if the path bound does not prove the incumbent.
    """
    graph = latency_graph(task, whole_colours=True)
    counts = [min(int(c), graph.size) for c in graph.count]

    def report(bound: float, origin: str) -> None:
        if not plans_only:
            raise_or_refute(task, search, bound, origin)

    paths = bound_paths(task, graph, sum(counts), search, should_stop, start, report)
    if paths is None:
        return
    proved = max((path.value for path in paths), default=0.0)
    if math.prod(c + 1 for c in counts) > MOST_CODES:
        return
    kernel = kernel_graph(task, graph, counts, paths, search.objective)
    most = latency_ceiling(task, graph)
    while not should_stop() and search.objective > proved * (1 + 2 * MARGIN):
        target = min(next_target(proved, most), search.objective)
        complete, value, steps = run_label_dp(
            kernel, target, should_stop, best=lambda: search.objective
        )
        if steps is not None:
            search.offer(solution_of(task, graph, steps))
        if not complete:
            return
        if steps is None and target > most and math.isinf(search.objective):
            report(math.inf, "label DP")
            return
        # with several pools of CPUs the times are lower bounds, and so is the value
        proved = (min(target, search.objective) if steps is None else value) * (1 - MARGIN)
        report(proved, "label DP")
        if steps is not None:
            return


def bound_paths(
    task: Task[Latency],
    graph: LatencyGraph,
    calls: int,
    search: Search[Solution],
    should_stop: Callable[[], bool],
    start: Callable[[], None],
    report: Callable[[float, str], None],
) -> list[PathBound] | None:
    """Return the path-interval bounds along heavy paths, with at most `calls` calls in all.

    None if they prove the incumbent optimal, or that there is no plan. First only what is needed to
    prove the incumbent is computed; if that fails, `start` is called, for a better plan. `report`
    gets the best bound, and its origin.
    """
    data, heavy = cut_data(task, graph), heavy_paths(graph)
    for enough in (search.objective * (1 - MARGIN), None):
        paths: list[PathBound] = []
        for path in heavy:
            if enough is None or not paths or paths[-1].value < enough:
                paths.append(path_bound(task, graph, data, path, calls, should_stop, enough=enough))
        proved = max((path.value for path in paths), default=0.0)
        report(proved, PATH_BOUND)
        if math.isinf(proved):
            return None
        if enough is not None and search.objective > proved * (1 + 2 * MARGIN):
            start()
        if search.objective <= proved * (1 + 2 * MARGIN):
            return None
    return paths


def raise_or_refute(
    task: Task[Latency], search: Search[Solution], bound: float, origin: str
) -> None:
    """Raise the bound, or prove that there is no plan by an infinite one."""
    if math.isinf(bound):
        search.prove_infeasible(why_no_plan(task))
    else:
        search.raise_bound(bound, origin)


def raise_path_bound(
    task: Task[Latency],
    search: Search[Solution],
    graph: LatencyGraph,
    should_stop: Callable[[], bool],
    paths: list[Ints],
) -> None:
    """Raise the path-interval bound along paths; an infinite one proves infeasibility.

    Paths whose bound is complete are removed from `paths`; if stopped, the bound is weaker.
    """
    data = cut_data(task, graph)
    calls = task.problem.calls * int(graph.count.sum())
    while paths and not should_stop():
        bound = path_bound(task, graph, data, paths[0], calls, should_stop).value
        if not should_stop():
            del paths[0]
        raise_or_refute(task, search, bound, PATH_BOUND)
        if math.isinf(bound):
            return


def why_no_plan(task: Task[Latency]) -> str:
    """Return, for users, why a task that is proved infeasible has no plan."""
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
    """Run the DP for plans below `target`, which falls with the incumbent `best()`.

    Return whether it ended by itself, and latency and steps of the best chain, or the target and
    None. If it ended by itself, and not `single`, no better chain exists, or none below the target.
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
    """Return the steps of the best label from first to last; None if there is none."""
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


def solution_of(task: Task[Latency], graph: LatencyGraph, steps: list[LabelStep]) -> CallPlacement:
    """Return the plan of a chain with one call per accelerator, numbering devices kind by kind."""
    device, call = graph.pool.copy(), np.full(task.workload.n, -1)
    used = [0] * len(graph.kinds)
    for kind, nodes in calls_of(graph, steps):
        first = int(np.flatnonzero(task.costs.kind_of == graph.kinds[kind])[0])
        device[nodes] = first + used[kind]
        call[nodes] = 0
        used[kind] += 1
    return CallPlacement(device, call)


def calls_of(
    graph: LatencyGraph, steps: list[LabelStep], *, sinks: bool = True
) -> list[tuple[int, list[int]]]:
    """Return kind and nodes of each call of a chain, without units set aside unless `sinks`."""
    return [
        (step.kind, sorted(v for x in step.units if sinks or not graph.aside[x]
                           for v in graph.members[x]))
        for step in steps
        if step.kind >= 0
    ]  # fmt: skip


def codes(counts: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the vectors of calls used of each kind, one a row, and the code step of each kind."""
    step = np.cumprod([1, *(count + 1 for count in counts[:-1])]) if counts else np.zeros(0)
    table = [used[::-1] for used in itertools.product(*(range(c + 1) for c in counts[::-1]))]
    return np.array(table, np.int64).reshape(len(table), len(counts)), step.astype(np.int64)


def kernel_graph(
    task: Task[Latency],
    graph: LatencyGraph,
    counts: Sequence[int],
    bounds: Sequence[PathBound],
    limit: float,
    *,
    chained: bool = False,
    divided: bool = False,
) -> Graph:
    """Return the arrays for the kernel, with `counts` calls of each kind, for plans below a limit.

    Transfers are rounded down to a grid on which sums are exact, as those of outputs that do not
    leave a call are subtracted again; no larger ones than twice the limit matter.

    `chained` allows only the prefixes of one topological order of the units; if `divided`, a colour
    may be divided over the two calls of an accelerator.
    """
    workload, size = task.workload, graph.size
    nodes = [v for members in graph.members for v in members]
    node_no = np.argsort(nodes)
    succ: Sequence[Sequence[int]] = graph.successors
    preds = [len(units) for units in graph.predecessors]
    if chained:
        succ = [[x + 1] if x + 1 < size else [] for x in range(size)]
        preds = [int(x > 0) for x in range(size)]
    consumers = [
        sorted({int(graph.unit_of[y]) for y in workload.successors[v]} - {int(graph.unit_of[v])})
        for v in nodes
    ]
    lists: list[int] = []
    of_unit, of_node = np.zeros((size + 1, 6), np.int64), np.zeros((len(nodes) + 1, 5), np.int64)
    of_unit[:, col.SUCC] = _append(lists, succ)
    inputs = [_inputs(task, graph, node_no, unit) for unit in range(size)]
    of_unit[:, col.INPUT] = _append(lists, inputs)
    of_unit[:, col.NODE] = np.cumsum([0, *map(len, graph.members)])
    of_unit[:size, col.PREDS], of_unit[:size, col.GROUP] = preds, graph.group
    of_unit[:size, col.ASIDE] = graph.aside
    of_node[:, col.FEED] = _append(
        lists, [node_no[list(workload.predecessors[v])].tolist() for v in nodes]
    )
    of_node[:, col.FOLLOWING] = _append(
        lists, [node_no[list(workload.successors[v])].tolist() for v in nodes]
    )
    of_node[:-1, col.UNIT] = graph.unit_of[nodes]
    of_node[:-1, col.CONSUMERS] = list(map(len, consumers))
    of_node[:-1, col.SINKS] = [int(graph.aside[units].sum()) for units in consumers]
    place, gates, rest, onward = _path_tables(task, graph, bounds, node_no, lists)
    group = of_unit[:size, col.GROUP]
    tied, most = group >= 0, len(workload.colour_classes) + 1
    memory = graph.unit_memory
    left, step = codes(counts)
    used = left.copy()
    left = np.array(counts, np.int64) - used
    return Graph(
        divided=divided,
        unit=of_unit,
        node=of_node,
        lists=np.array(lists, np.int64),
        compute=graph.unit_compute,
        memory=memory,
        transfer=np.ascontiguousarray(summable(np.minimum(graph.transfer, 2 * limit))[:, nodes]),
        time=np.stack([graph.cpu, _depths(task, graph)], axis=1)[nodes],
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


def _inputs(task: Task[Latency], graph: LatencyGraph, node_no: Ints, unit: int) -> list[int]:
    """Return the nodes of other units whose outputs a unit reads."""
    found = {
        int(node_no[u])
        for v in graph.members[unit]
        for u in task.workload.predecessors[v]
        if graph.unit_of[u] != unit
    }
    return sorted(found)


def _append(lists: list[int], rows: Sequence[Sequence[int]]) -> Ints:
    """Append the rows to `lists`; return where each begins, and the end."""
    start = np.cumsum([len(lists), *(len(row) for row in rows)])
    lists += [x for row in rows for x in row]
    return start


def _depths(task: Task[Latency], graph: LatencyGraph) -> Floats:
    """Return the least time from each node's start to the end, by the lesser of p and q."""
    least = np.minimum(graph.cpu, graph.compute.min(axis=0, initial=np.inf))
    depth = np.where(np.isfinite(least), least, 0.0)
    for v in reversed(task.workload.order):
        depth[v] += max((depth[y] for y in task.workload.successors[v]), default=0.0)
    return depth


def _path_tables(
    task: Task[Latency],
    graph: LatencyGraph,
    bounds: Sequence[PathBound],
    node_no: Ints,
    lists: list[int],
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the path bounds as arrays: places, gates, D, and the minimum over first calls."""
    workload = task.workload
    longest = max((len(b.path) for b in bounds), default=0)
    calls = bounds[0].rest.shape[1] - 1 if bounds else 0
    place = np.full((len(bounds), graph.size), -1)
    gates = np.zeros((len(bounds), longest + 2), np.int64)
    rest = np.zeros((len(bounds), longest + 1, calls + 1))
    onward = np.full((len(bounds), longest, longest, calls + 1), np.inf)
    for p, bound in enumerate(bounds):
        place[p, bound.path] = np.arange(len(bound.path))
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
