"""Verification of throughput: the max-load of a placement, by plain sums over nodes and edges.

Independent of models and searches on purpose, as it judges them.
"""

from __future__ import annotations

import math

import numpy as np

from ...instances import Cluster, Costs, NodeId, Placement, Throughput, Workload, price
from ...instances.common.arrays import Ints
from ...instances.model.contiguity import pipeline_edges, quotient_cycle
from .report import Report, device_reports
from .rules import divided_colours, over_memory, unsupported


def check(workload: Workload, cluster: Cluster, problem: Throughput, solution: Placement) -> Report:
    """Evaluate a placement and list the rules it breaks.

    load(S) = Σ_{v∈S} p_v + Σ_{u∉S, some (u,v)∈E has v∈S} c_u + Σ_{u∈S, some (u,v)∈E has v∉S} c_u

    with the device's own p and c; a transfer belongs to the pass of the node that produced it.
    Between linked devices both pay for one message instead, for each u and each device it enters.
    If data is relayed, u is paid for at each boundary between neighbouring stages that it crosses
    instead, from the first to the last of the stages that make or need it.
    """
    costs, placement = price(workload, cluster), solution.device
    wrong = _wrong_order(workload, cluster, solution) if problem.relayed else []
    if wrong:
        return Report(math.inf, (), tuple(wrong))
    size = cluster.size
    compute = np.zeros((size, 2))  # columns: forward, backward
    transfer = np.zeros((size, 2))
    memory = np.zeros(size)
    where = placement.tolist()
    side = workload.backward.astype(int).tolist()
    for v, d in enumerate(where):
        compute[d, side[v]] += costs.compute[costs.kind_of[d], v]
        memory[d] += costs.memory_bytes[v]
    for u, successors in enumerate(workload.successors):
        others = {where[v] for v in successors} - {where[u]}
        hops = [(where[u], others)]
        if problem.relayed:
            hops = _passed_on(where[u], others, solution.order)
        for d, receivers in hops:
            transfer[d, side[u]] += costs.sent(u, d, receivers)
            for e in receivers:
                transfer[e, side[u]] += costs.received(u, d, e)

    if problem.overlap:
        passes = np.maximum(compute, transfer)
        load = np.maximum(compute.sum(axis=1), transfer.sum(axis=1))
    else:
        passes = compute + transfer
        load = passes.sum(axis=1)
    if problem.pipeline == "gpipe":
        objective = float(passes[:, 0].max() + passes[:, 1].max())
    else:
        objective = float(load.max())

    devices = device_reports(
        cluster,
        workload.ids_by_place(where, size),
        compute.sum(axis=1),
        transfer.sum(axis=1),
        passes,
        load,
        memory,
    )
    violations = [
        *unsupported(workload, cluster, costs, where),
        *divided_colours(workload, [cluster.devices[d].name for d in where]),
        *over_memory(devices),
        *not_contiguous(workload, cluster, costs, problem, placement),
    ]
    return Report(objective, devices, tuple(violations))


def _passed_on(source: int, users: set[int], order: tuple[int, ...]) -> list[tuple[int, set[int]]]:
    """Return the hops between neighbours by which data reaches all its users."""
    own = order.index(source)
    places = [order.index(d) for d in users]
    up = range(own, max([own, *places]))
    down = range(own, min([own, *places]), -1)
    return [(order[b], {order[b + 1]}) for b in up] + [(order[b], {order[b - 1]}) for b in down]


def _wrong_order(workload: Workload, cluster: Cluster, solution: Placement) -> list[str]:
    """Return messages on the order of the stages, which relayed data needs."""
    used = set(solution.device.tolist())
    if len(solution.order) != len(used) or set(solution.order) != used:
        return ["relayed: the order of the stages does not name each device in use once"]
    place = {d: i for i, d in enumerate(solution.order)}
    for u, v in pipeline_edges(workload):
        a, b = int(solution.device[u]), int(solution.device[v])
        if place[a] > place[b]:
            names = [cluster.devices[d].name for d in (a, b)]
            return [
                f"relayed: node {workload.ids[v]} on {names[1]} needs node {workload.ids[u]} on "
                f"{names[0]}, whose stage comes later"
            ]
    return []


def not_contiguous(
    workload: Workload, cluster: Cluster, costs: Costs, problem: Throughput, placement: Ints
) -> list[str]:
    """Return messages on nodes where a placement breaks the rule of its split."""
    names = [device.name for device in cluster.devices]
    host = costs.host[costs.kind_of]
    alone = problem.cpu_split == "free"  # then each node on a CPU is a piece of its own
    if problem.split == "contiguous":
        part = placement.copy()
        if alone:
            free = host[placement]
            part[free] = cluster.size + np.arange(workload.n)[free]
        cycle = quotient_cycle(pipeline_edges(workload), part)
        if cycle is None:
            return []
        shown = [
            names[p] if p < len(names) else f"node {workload.ids[p - len(names)]}" for p in cycle
        ]
        return [f"not contiguous: {' → '.join(shown)} → {shown[0]} wait for each other"]
    if problem.split == "per-device":
        return [
            f"not contiguous: {names[d]} is left and entered again on the way to node {v}"
            for d in sorted(set(placement.tolist()))
            if not (alone and host[d])
            for v in _reentered(workload, placement, d)
        ]
    return []


def _reentered(workload: Workload, placement: Ints, device: int) -> list[NodeId]:
    """Return the first forward node by which a path that left `device` comes back, if any."""
    left: set[int] = set()  # nodes elsewhere that can be reached from the device
    for v in workload.order:
        if workload.backward[v]:
            continue
        before = [u for u in workload.predecessors[v] if not workload.backward[u]]
        if placement[v] == device:
            if any(u in left for u in before):
                return [workload.ids[v]]
        elif any(placement[u] == device or u in left for u in before):
            left.add(v)
    return []
