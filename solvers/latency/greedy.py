"""Greedy and other splits for latency: baselines, and first plans in no time."""

from __future__ import annotations

import numpy as np

from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.whole_bytes import room_of
from ...instances import CallPlacement, Latency, Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.part_search import PartSearch
from ..core.search import Search
from ..core.share import Share
from ..throughput.max_load import max_load as load_of_busiest
from ..throughput.methods import METHODS as THROUGHPUT_METHODS
from .divide import divide, first_division


def greedy(task: Task[Latency], search: Search[Solution]) -> None:
    """Fill one accelerator after the other in topological order by memory; the rest is on CPUs.

    References
    ----------
    The baseline of Tarnawski et al., NeurIPS 2020, appendix on latency.
    """
    graph = latency_graph(task, whole_colours=True)
    placement = fill(task, graph)
    if placement is not None:
        plan, _ = divide(task, graph, placement, search.should_stop)
        if plan is not None:
            search.offer(plan)


def all_on_cpus(task: Task[Latency], search: Search[Solution]) -> None:
    """Put everything on the CPUs, if there are any that support it."""
    graph = latency_graph(task, whole_colours=True)
    if np.isfinite(graph.cpu).all():
        search.offer(CallPlacement(graph.pool, np.full(task.workload.n, -1)))


def first_plans(task: Task[Latency], search: Search[Solution]) -> None:
    """Offer the CPUs alone, and filled accelerators with few calls; nothing is compiled."""
    all_on_cpus(task, search)
    graph = latency_graph(task, whole_colours=True)
    placement = fill(task, graph)
    if placement is not None:
        plan = first_division(task, placement)
        if plan is not None:
            search.offer(plan)


def depth_first(graph: LatencyGraph) -> list[int]:
    """Return the units in topological order, one branch after the other, lowest node first."""
    first = [min(members) for members in graph.members]
    order: list[int] = []
    seen = np.zeros(graph.size, np.bool_)
    for root in sorted(range(graph.size), key=first.__getitem__):
        stack = (
            []
            if seen[root]
            else [(root, iter(sorted(graph.successors[root], key=first.__getitem__)))]
        )
        seen[root] = True
        while stack:
            unit, rest = stack[-1]
            for y in rest:
                if not seen[y]:
                    seen[y] = True
                    stack.append((y, iter(sorted(graph.successors[y], key=first.__getitem__))))
                    break
            else:
                order.append(unit)
                stack.pop()
    return order[::-1]


def fill(task: Task[Latency], graph: LatencyGraph) -> Ints | None:
    """Return the device of each node if accelerators are filled in topological order.

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
    for unit in depth_first(graph):
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


def max_load(task: Task[Latency], search: Search[Solution], part: float = 1.0) -> None:
    """Split for throughput, contiguously, by the DP over ideals; then execute one request.

    Parameters
    ----------
    part
        Of the time left that it may take.
    """
    share = Share(search, part)
    graph = latency_graph(task, whole_colours=True)
    problem = Throughput(split="contiguous")
    throughput = Task(task.workload, task.cluster, problem)

    def judge(solution: Solution) -> float:
        return load_of_busiest(throughput, solution.device)

    inner = PartSearch(share, judge)
    THROUGHPUT_METHODS["dp"].solve(throughput, inner)
    if inner.best is not None:
        plan, _ = divide(task, graph, inner.best.device, share.should_stop)
        if plan is not None:
            search.offer(plan)
