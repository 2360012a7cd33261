"""Latency as a policy sees it: intervals of a topological order become calls, or go to the CPUs.

Each call is an interval of one topological order of the units, and calls of a device run in that
order. So every one is convex, and calls never wait for each other in a circle.
"""

from __future__ import annotations

import numpy as np

from ...formulations.latency.execute_kernel import execute, flatten, slots_of
from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.hypergraph import (
    Hypergraph,
    colour_units,
    hypergraph,
    merge_cycles,
)
from ...instances import CallPlacement, Latency
from ...instances.common.arrays import Floats, Ints
from .features import Scene, scene
from .groups import Rules
from .subject import ANY_NUMBER, Subject, excess, largest_room, with_penalty


def latency_subject(task: Task[Latency]) -> Subject:
    """Return the subject of a task for latency."""
    edges = task.workload.edges
    graph = hypergraph(task, merge_cycles(colour_units(task), edges), edges)
    seen = scene(task, graph, graph.edges)
    plans = latency_graph(task, whole_colours=True)
    host = task.costs.host[task.costs.kind_of]
    calls = min(task.problem.calls, graph.size)
    most = int((~host).sum()) * calls
    # nodes on CPUs before, between and after all calls
    numbers = {min(n, graph.size) for n in (most, 2 * most + 1 if host.any() else most) if n}
    flat = flatten(task, plans)

    def values(group: Ints, device: Ints) -> Floats:
        latest = [
            execute(flat, *slots_of(task, plans, _calls(task, plans, graph, g, d)))[0]
            for g, d in zip(group, device, strict=True)
        ]
        return _with_limits(task, seen, np.array(latest), np.take_along_axis(device, group, axis=1))

    return Subject(
        scene=seen,
        rules=tuple(Rules(n, contiguous=True, room=largest_room(seen)) for n in sorted(numbers)),
        most=np.where(host, ANY_NUMBER, calls),
        values=values,
        solution=lambda group, device: _calls(task, plans, graph, group, device),
        unit=seen.even_load,
        one_after_another=True,
    )


def _calls(
    task: Task[Latency], plans: LatencyGraph, graph: Hypergraph, group: Ints, device: Ints
) -> CallPlacement:
    """Return the plan of groups of units, (U,), which are in topological order, on devices."""
    used = np.unique(group)
    number = np.zeros(len(device), np.int64)
    for d in np.unique(device[used]).tolist():
        own = used[device[used] == d]
        number[own] = np.arange(len(own))
    where, call = graph.expand(device[group]), graph.expand(number[group])
    host = task.costs.host[task.costs.kind_of]
    return CallPlacement(np.where(host[where], plans.pool, where), np.where(host[where], -1, call))


def _with_limits(task: Task[Latency], of: Scene, latest: Floats, where: Ints) -> Floats:
    """Return latencies relative to an even load, more if memory or support are broken."""
    costs = task.costs
    member = (where[:, None, :] == np.arange(len(costs.kind_of))[:, None]).astype(np.float64)
    lacking = np.einsum("bdu,du->b", member, 1 - of.supported[costs.kind_of])
    lacking += np.isinf(latest)
    held = excess(member @ of.memory, costs.capacity_bytes[costs.kind_of])
    value = np.where(np.isfinite(latest), latest, 0.0) / of.even_load
    return with_penalty(value, held + lacking, len(costs.kind_of))
