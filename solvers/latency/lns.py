"""Heuristics for graphs whose downsets explode: the label DP on one order, then local search."""

from __future__ import annotations

import numpy as np
from numba import njit

from ...formulations.latency.execute import execute, flatten
from ...formulations.latency.graph import latency_graph
from ...formulations.task import Task
from ...instances import CallPlacement, Solution
from ...instances.model.arrays import Ints
from ..core.search import Search
from ..core.swaps import swap_devices
from .greedy import all_on_cpus, greedy
from .label_dp.core import core_of, kernel_graph
from .label_dp.dp import chain, solution_of

#: Moves between two looks at the clock, in node visits.
SLICE_VISITS = 20_000_000
#: Moves without success after which local search ends, per unit.
PATIENCE = 60


def local_search(task: Task, search: Search[Solution]) -> None:
    """Start from the best plan known, or from `linear`; move units between calls and CPUs.

    A unit (a colour, or a node) moves to the call of a neighbour, or to the CPUs; a move is kept
    if the request ends no later. It ends when no move has helped for long.
    """
    if search.best is None:
        linear(task, search)
    swap_devices(task, search)
    if isinstance(search.best, CallPlacement):
        improve(task, search)


def linear(task: Task, search: Search[Solution]) -> None:
    """Solve the label DP over the prefixes of one topological order, one label per prefix."""
    all_on_cpus(task, search)
    greedy(task, search)
    graph = latency_graph(task, whole_colours=True)
    core = core_of(task, graph)
    counts = [min(int(c), graph.size) for c in graph.count]
    kernel = kernel_graph(task, core, counts, [], chained=True)
    # several parts of one order can only be better than the best plan known
    _, _, steps = chain(kernel, search.objective, search.should_stop, single=True)
    if steps is not None:
        search.offer(solution_of(task, core, steps))


def improve(task: Task, search: Search[Solution]) -> None:
    """Move units of the best plan between calls until no move has helped for long."""
    assert isinstance(search.best, CallPlacement)
    calls = task.latency.calls
    graph = latency_graph(task, whole_colours=False)
    groups = _groups(task)
    kind_of = task.costs.kind_of
    accelerators = np.flatnonzero(~task.costs.host[kind_of])
    rank = np.full(len(kind_of), -1)
    rank[accelerators] = np.arange(len(accelerators))
    rows = [graph.kinds.index(int(kind_of[d])) for d in accelerators]
    kind = np.repeat(np.array(rows, np.int64), calls)
    on = np.repeat(accelerators, calls)
    before = np.arange(len(kind)) - 1
    before[::calls] = -1
    plan = search.best
    slot = np.where(plan.call >= 0, rank[plan.device] * calls + _compact(plan), -1)
    flat = flatten(task, graph)
    room = np.repeat(graph.capacity_bytes, graph.count) * (1 + 1e-9)
    start = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    members = np.array([v for group in groups for v in group])
    rng = np.random.default_rng(search.limits.seed)
    value = search.objective
    failed, rounds = 0, 0
    moves = max(100, SLICE_VISITS // (task.workload.n + len(task.workload.edges)) // 10)
    while failed < PATIENCE * len(groups) and not search.should_stop():
        if search.limits.nodes is not None and rounds >= search.limits.nodes:
            search.stop_for("nodes")
            return
        rounds += 1
        seed = int(rng.integers(2**31))
        new = _moves(flat, slot, kind, on, before, room, calls, start, members, value, moves, seed)
        failed = 0 if new < value else failed + moves
        if new < value:
            value = new
            device = np.where(
                slot >= 0,
                accelerators[np.maximum(slot, 0) // calls] if len(kind) else 0,
                graph.pool,
            )
            search.offer(CallPlacement(device, np.where(slot >= 0, slot % calls, -1)))


def _compact(plan: CallPlacement) -> Ints:
    """The rank of each node's call among the calls of its device."""
    rank = np.full(len(plan.call), -1)
    for d in np.unique(plan.device).tolist():
        here = plan.device == d
        rank[here] = np.searchsorted(np.unique(plan.call[here]), plan.call[here])
    return rank


def _groups(task: Task) -> list[list[int]]:
    alone = [[v] for v, colour in enumerate(task.workload.colours.tolist()) if colour < 0]
    return [list(nodes) for nodes in task.workload.colour_classes if nodes] + alone


@njit(cache=True, nogil=True)
def _moves(  # type: ignore[no-untyped-def]
    flat, slot, kind, device, before, room, calls, start, members, value, moves, seed
):
    """Try random moves; change `slot` in place and return its latency."""
    np.random.seed(seed)  # noqa: NPY002  # numba's own generator
    groups = len(start) - 1
    used = np.zeros(len(room))
    for v in range(len(slot)):
        if slot[v] >= 0:
            used[slot[v] // calls] += flat.memory[v]
    kept = np.empty(len(slot), np.int64)
    for _ in range(moves):
        g = np.random.randint(groups)  # noqa: NPY002
        low, high = start[g], start[g + 1]
        # where to: the call of a neighbour, a call next to it, or the CPUs
        v = members[low + np.random.randint(high - low)]  # noqa: NPY002
        ins = flat.pred_start[v + 1] - flat.pred_start[v]
        outs = flat.succ_start[v + 1] - flat.succ_start[v]
        pick = np.random.randint(ins + outs + 1)  # noqa: NPY002
        if pick < ins:
            to = slot[flat.pred[flat.pred_start[v] + pick]]
        elif pick < ins + outs:
            to = slot[flat.succ[flat.succ_start[v] + pick - ins]]
        else:
            to = np.random.randint(len(kind) + 1) - 1  # noqa: NPY002
        if to == slot[v] and calls == 1:
            continue
        size, possible, same = 0.0, True, True
        for i in range(low, high):
            u = members[i]
            size += flat.memory[u]
            time = flat.cpu[u] if to < 0 else flat.compute[kind[to], u]
            possible &= time < np.inf
            same &= slot[u] == to
            kept[i - low] = slot[u]
        if same or not possible:
            continue
        home = slot[v] // calls if slot[v] >= 0 else -1
        there = to // calls if to >= 0 else -1
        if there >= 0 and there != home and used[there] + size > room[there]:
            continue
        if calls > 1 and there >= 0 and there == home:
            slot[v] = to  # one node of the group moves to another call of the accelerator
        else:
            for i in range(low, high):
                slot[members[i]] = to
        new = execute(flat, slot, kind, device, before)[0]
        if new <= value:
            value = new
            if home != there:
                if home >= 0:
                    used[home] -= size
                if there >= 0:
                    used[there] += size
        else:
            for i in range(low, high):
                slot[members[i]] = kept[i - low]
    return value
