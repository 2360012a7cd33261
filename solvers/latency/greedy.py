"""Greedy plans for latency, and the division of a placement into calls.

Greedy filling and the best split for throughput are placements; each becomes a plan by dividing
every accelerator's nodes into calls.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...formulations.latency.execute_kernel import call_slots, execute, flatten
from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.whole_bytes import room_of
from ...instances import CallPlacement, Latency, Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.limits import Limits
from ..core.search import Search
from ..throughput.max_load import max_load as load_of_busiest
from ..throughput.methods import METHODS as THROUGHPUT_METHODS


def greedy(task: Task[Latency], search: Search[Solution]) -> None:
    """Fill one accelerator after the other by memory in topological order; the rest is on CPUs.

    This is the baseline of Tarnawski et al., NeurIPS 2020, appendix on latency.
    """
    graph = latency_graph(task, whole_colours=True)
    placement = fill(task, graph)
    if placement is not None:
        _offer(divide(task, graph, placement, search.should_stop), search)


def first_plans(task: Task[Latency], search: Search[Solution]) -> None:
    """Offer the CPUs alone, and filled accelerators with few calls; nothing is compiled."""
    graph = latency_graph(task, whole_colours=True)
    if np.isfinite(graph.cpu).all():
        search.offer(CallPlacement(graph.pool, np.full(task.workload.n, -1)))
    placement = fill(task, graph)
    if placement is not None:
        _offer(first_division(task, placement), search)


def _offer(plan: CallPlacement | None, search: Search[Solution]) -> None:
    if plan is not None:
        search.offer(plan)


def fill(task: Task[Latency], graph: LatencyGraph) -> Ints | None:
    """Return the device of each node when accelerators are filled in topological order.

    A colour goes where its first unit goes. None if a node fits nowhere.
    """
    device = graph.pool.copy()
    free = [
        (d, graph.kinds.index(int(kind)), float(room_of(task.costs.capacity_bytes[kind])))
        for d, kind in enumerate(task.costs.kind_of.tolist())
        if not task.costs.host[kind]
    ]
    at, used = 0, 0.0
    placed = np.zeros(graph.size, np.bool_)
    for unit in range(graph.size):
        if placed[unit]:
            continue
        group = int(graph.group[unit])
        units = np.flatnonzero(graph.group == group) if group >= 0 else np.array([unit])
        placed[units] = True
        members = [v for one in units.tolist() for v in graph.members[one]]
        size = float(graph.unit_memory[units].sum())
        on_cpus = np.isfinite(graph.cpu[members]).all()
        while at < len(free):
            d, k, room = free[at]
            if not np.isfinite(graph.unit_compute[k, units]).all():
                break
            if used + size <= room:
                device[members] = d
                used += size
                break
            at, used = at + 1, 0.0
        if device[members[0]] == graph.pool[members[0]] and not on_cpus:
            return None
    return device


def max_load(task: Task[Latency], search: Search[Solution]) -> None:
    """Take the contiguous split of least max-load, by the DP over ideals, as a plan for latency."""
    graph = latency_graph(task, whole_colours=True)
    problem = Throughput(split="contiguous")
    throughput = Task(task.workload, task.cluster, problem)

    def judge(solution: Solution) -> float:
        return load_of_busiest(throughput, solution.device)

    inner = Search(Limits(), judge, within=search)
    THROUGHPUT_METHODS["dp"].solve(throughput, inner)
    if inner.best is not None:
        _offer(divide(task, graph, inner.best.device, search.should_stop), search)


def divide(
    task: Task[Latency],
    graph: LatencyGraph,
    placement: Ints,
    should_stop: Callable[[], bool],
) -> CallPlacement | None:
    """Return a division of a placement into calls; no move of a single node makes it faster.

    From an executable division, nodes move to the call before or after theirs; None without one.
    """
    plan, calls = first_division(task, placement), task.problem.calls
    if plan is None or calls == 1:
        return plan
    slot, slots = call_slots(task, graph, plan)
    flat, held = flatten(task, graph), [v for v in task.workload.order if slot[v] >= 0]
    value, better = execute(flat, slot, slots)[0], True
    while better and not should_stop():
        better = False
        for v in held:
            if should_stop():
                break
            for other in (slot[v] - 1, slot[v] + 1):
                if other // calls == slot[v] // calls and other >= 0:
                    kept, slot[v] = slot[v], other
                    new = execute(flat, slot, slots)[0]
                    if new < value:
                        value, better = new, True
                    else:
                        slot[v] = kept
    return CallPlacement(placement, np.where(slot >= 0, slot % calls, -1))


def first_division(task: Task[Latency], placement: Ints) -> CallPlacement | None:
    """Return an executable division of a placement, without compiling; None if none is found."""
    accelerators = ~task.costs.host[task.costs.kind_of[placement]]
    _, rank = np.unique(placement[accelerators], return_inverse=True)
    where = np.full(task.workload.n, -1)
    where[accelerators] = rank
    number = _first_executable(task, where, task.problem.calls)
    return None if number is None else CallPlacement(placement, number)


def _first_executable(task: Task[Latency], where: Ints, calls: int) -> Ints | None:
    """Return an executable division by list scheduling: calls that empty an accelerator first."""
    n, workload = task.workload.n, task.workload
    number = np.full(n, -1)
    done = np.zeros(n, np.bool_)
    used = [0] * (int(where.max(initial=-1)) + 1)
    while not done.all():
        for v in workload.order:  # CPUs go ahead
            if not done[v] and where[v] < 0:
                done[v] = all(done[u] for u in workload.predecessors[v])
        best: tuple[float, int, list[int]] | None = None
        for d in range(len(used)):
            rest = [v for v in workload.order if where[v] == d and not done[v]]
            inside: set[int] = set()
            for v in rest:
                if all(done[u] or u in inside for u in workload.predecessors[v]):
                    inside.add(v)
            last = used[d] == calls - 1
            if inside and (len(inside) == len(rest) or not last):
                share = len(inside) / len(rest)
                if best is None or share > best[0]:
                    best = (share, d, sorted(inside))
        if best is None:
            return None if not done.all() else number
        _, d, members = best
        number[members] = used[d]
        done[members] = True
        used[d] += 1
    return number
