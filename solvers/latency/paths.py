"""Paths through the units, for the path-interval bound: which, and what they cost by themselves."""

from __future__ import annotations

import numpy as np

from ...formulations.latency.graph import LatencyGraph
from ...formulations.task import Task
from ...instances import Latency
from ...instances.common.arrays import Floats, Ints


def heavy_paths(graph: LatencyGraph, count: int = 3) -> list[Ints]:
    """Return paths along which much must happen: `count` by p + c/2, one by q; no path twice.

    After each, the weights of its units are cut to a tenth, so that the next one differs.
    """
    least = graph.compute.min(axis=0, initial=np.inf)
    cheap = np.where(np.isfinite(least), least, graph.cpu)
    cheap = np.where(np.isfinite(cheap), cheap, 0.0)
    if len(graph.kinds):
        cheap = cheap + graph.transfer.min(axis=0) / 2
    weight = _sums(graph, cheap)
    cpu = np.where(np.isfinite(graph.cpu), graph.cpu, cheap)
    paths: list[Ints] = []
    for i in range(count + 1):
        if i == count:
            weight = _sums(graph, cpu)
        path = _heaviest(graph, weight)
        if not any(np.array_equal(path, other) for other in paths):
            paths.append(path)
        weight = weight.copy()
        weight[path] *= 0.1
    return paths


def _sums(graph: LatencyGraph, values: Floats) -> Floats:
    sums: Floats = np.zeros(graph.size)
    np.add.at(sums, graph.unit_of, values)
    return sums


def _heaviest(graph: LatencyGraph, weight: Floats) -> Ints:
    total = weight.copy()
    towards = np.full(graph.size, -1)
    for u in reversed(range(graph.size)):
        for v in graph.successors[u]:
            if weight[u] + total[v] > total[u] or towards[u] < 0:
                total[u] = weight[u] + total[v]
                towards[u] = v
    starts = [u for u in range(graph.size) if not graph.predecessors[u]]
    at = max(starts, key=lambda u: (total[u], -u))
    path = [at]
    while towards[at] >= 0:
        at = int(towards[at])
        path.append(at)
    return np.array(path, dtype=np.int64)


def path_cpu(task: Task[Latency], graph: LatencyGraph, path: Ints) -> Floats:
    """Return shape (L,): the least time from entering each unit of a path to leaving it, on CPUs.

    In a contracted colour that is the longest chain between the nodes where the path enters and
    leaves; the least over the choices of those.
    """
    time = np.zeros(len(path))
    for i, unit in enumerate(path.tolist()):
        members = graph.members[unit]
        if len(members) == 1:
            time[i] = graph.cpu[members[0]]
            continue
        inside = set(members)
        edge = {
            (u, v): int(graph.unit_of[u]) for v in members for u in task.workload.predecessors[v]
        }
        before = int(path[i - 1]) if i else -1
        after = int(path[i + 1]) if i + 1 < len(path) else -1
        entries = {v for (_, v), unit_u in edge.items() if unit_u == before} or {
            v for v in members if inside.isdisjoint(task.workload.predecessors[v])
        }
        exits = {
            u
            for u in members
            if any(int(graph.unit_of[v]) == after for v in task.workload.successors[u])
        } or {u for u in members if inside.isdisjoint(task.workload.successors[u])}
        time[i] = _passage(task, graph, unit, entries, exits)
    return time


def shortest_passage(task: Task[Latency], graph: LatencyGraph, unit: int) -> float:
    """Return the least time from entering a unit to leaving it on CPUs, wherever that is."""
    inside = set(graph.members[unit])
    before, after = task.workload.predecessors, task.workload.successors
    entries = {v for v in inside if not before[v] or not inside.issuperset(before[v])}
    exits = {v for v in inside if not after[v] or not inside.issuperset(after[v])}
    return _passage(task, graph, unit, entries, exits)


def _passage(
    task: Task[Latency], graph: LatencyGraph, unit: int, entries: set[int], exits: set[int]
) -> float:
    """Least time from an entry to an exit: along the longest chain between the two."""
    longest = []
    for entry in sorted(entries):
        until = {entry: float(graph.cpu[entry])}
        for v in graph.members[unit]:
            fed = [until[u] for u in task.workload.predecessors[v] if u in until]
            if fed and v != entry:
                until[v] = max(fed) + float(graph.cpu[v])
        longest += [until[v] for v in exits if v in until]
    return min(longest, default=0.0)


def path_transfer(task: Task[Latency], graph: LatencyGraph, path: Ints) -> Floats:
    """Shape (K, L): least transfer that an accelerator pays if the path is cut after each unit."""
    paid = np.zeros((len(graph.kinds), len(path)))
    for i in range(len(path) - 1):
        u, v = int(path[i]), int(path[i + 1])
        sources = [
            x
            for x in graph.members[u]
            if any(int(graph.unit_of[y]) == v for y in task.workload.successors[x])
        ]
        paid[:, i] = graph.transfer[:, sources].sum(axis=1)
    return paid
