"""Verification of latency: a request executed call by call, as the definition says.

Independent of models and searches on purpose, as it judges them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ...instances import CallPlacement, Cluster, Costs, Latency, Workload, price
from .report import CallReport, DeviceReport, Report, device_reports
from .rules import divided_colours, over_memory, unsupported

if TYPE_CHECKING:
    import networkx as nx

#: A call: (device, number). A node on a CPU: (−1, node).
Item = tuple[int, int]


def check(
    workload: Workload, cluster: Cluster, problem: Latency, solution: CallPlacement
) -> Report:
    """Execute `solution` and list the rules it breaks.

    A call S on a device starts when the call before it on that device has finished and so has
    every producer u ∉ S of an edge (u, v) with v ∈ S. It takes

        Σ_{u∉S, some (u,v)∈E has v∈S} c_u + Σ_{v∈S} p_v + Σ_{u∈S, some (u,v)∈E has v∉S} c_u

    and all its nodes finish when it does. For what goes from a call on one device to a call on a
    linked one, both calls pay for one message instead; the sender pays c_u, once, if u has another
    receiver too. A node v on a CPU takes q_v from the moment when its predecessors have finished.
    The objective is the last finish: `inf` where calls wait for each other in a circle.
    """
    import networkx as nx

    costs = price(workload, cluster)
    device, call = solution.device.tolist(), solution.call.tolist()
    malformed = _malformed(workload, cluster, costs, device, call)
    if malformed:
        return Report(math.inf, (), tuple(malformed))
    host = costs.host[costs.kind_of]
    item = [(-1, v) if host[d] else (d, call[v]) for v, d in enumerate(device)]
    nodes: dict[Item, list[int]] = defaultdict(list)
    for v in workload.order:
        nodes[item[v]].append(v)

    waits = _waits(workload, item, nodes)
    try:
        order = list(nx.lexicographical_topological_sort(waits))
        circle = []
    except nx.NetworkXUnfeasible:
        order = []
        circle = [a for a, _ in nx.find_cycle(waits)]

    rank: dict[Item, int] = {}
    counts: dict[int, int] = defaultdict(int)
    for one in sorted(nodes):
        counts[one[0]] += 1
        rank[one] = 0 if one[0] < 0 else counts[one[0]]
    finish: dict[Item, float] = {}
    calls = []
    for one in order:
        members = set(nodes[one])
        d = device[nodes[one][0]]
        kind = costs.kind_of[d]
        inputs = {u for v in members for u in workload.predecessors[v]} - members
        transfer_in = sum(costs.received(u, device[u], d) for u in sorted(inputs))
        compute = sum(float(costs.compute[kind, v]) for v in nodes[one])
        transfer_out = 0.0
        for u in nodes[one]:
            receivers = {item[v] for v in workload.successors[u]} - {one}
            transfer_out += costs.sent(u, d, [device[nodes[r][0]] for r in sorted(receivers)])
        start = max((finish[before] for before in waits.predecessors(one)), default=0.0)
        finish[one] = start + transfer_in + compute + transfer_out
        calls.append(
            CallReport(
                device=d,
                device_name=cluster.kinds[kind].name if host[d] else cluster.devices[d].name,
                number=rank[one],
                nodes=tuple(workload.ids[v] for v in sorted(members)),
                start=start,
                finish=finish[one],
                transfer_in=transfer_in,
                compute=compute,
                transfer_out=transfer_out,
            )
        )
    devices = _devices(workload, cluster, costs, device, calls)
    places = [  # a pool is one place, however many cores it has
        cluster.kinds[costs.kind_of[d]].name if host[d] else cluster.devices[d].name for d in device
    ]
    violations = [
        *unsupported(workload, cluster, costs, device),
        *divided_colours(workload, places),
        *over_memory(devices),
        *_too_many_calls(cluster, problem, counts),
        *_waiting_cycle(workload, cluster, circle),
    ]
    objective = math.inf if circle else max(finish.values())
    calls.sort(key=lambda c: (c.start, c.finish, c.device, c.number))
    return Report(objective, devices, tuple(violations), calls=tuple(calls))


def _malformed(
    workload: Workload, cluster: Cluster, costs: Costs, device: list[int], call: list[int]
) -> list[str]:
    """Return messages on shapes, and on call numbers that contradict the device."""
    if len(call) != workload.n or len(device) != workload.n:
        return [f"it gives {len(device)} devices and {len(call)} calls for {workload.n} nodes"]
    wrong = []
    for v, (d, number) in enumerate(zip(device, call, strict=True)):
        if (number < 0) != bool(costs.host[costs.kind_of[d]]):
            wrong.append(
                f"node {workload.ids[v]} on {cluster.devices[d].name} has call {number}; calls "
                "number 0, 1, … on accelerators and are -1 on CPUs"
            )
    return wrong


def _waits(workload: Workload, item: list[Item], nodes: dict[Item, list[int]]) -> nx.DiGraph[Item]:
    """Return what each call and CPU node waits for: inputs, and the call before on its device."""
    import networkx as nx

    waits: nx.DiGraph[Item] = nx.DiGraph()
    waits.add_nodes_from(sorted(nodes))
    waits.add_edges_from(
        (item[u], item[v]) for u, v in workload.edges.tolist() if item[u] != item[v]
    )
    numbered = sorted(one for one in nodes if one[0] >= 0)
    waits.add_edges_from((a, b) for a, b in itertools.pairwise(numbered) if a[0] == b[0])
    return waits


def _devices(
    workload: Workload,
    cluster: Cluster,
    costs: Costs,
    device: list[int],
    calls: list[CallReport],
) -> tuple[DeviceReport, ...]:
    """Return a report for each device."""
    compute, transfer, memory = np.zeros((3, cluster.size))
    for call in calls:
        compute[call.device] += call.compute
        transfer[call.device] += call.transfer_in + call.transfer_out
    np.add.at(memory, device, costs.memory_bytes)
    load = compute + transfer
    passes = np.stack((load, np.zeros(cluster.size)), axis=1)
    nodes = workload.ids_by_place(device, cluster.size)
    return device_reports(cluster, nodes, compute, transfer, passes, load, memory)


def _too_many_calls(cluster: Cluster, problem: Latency, counts: dict[int, int]) -> list[str]:
    """Return messages on accelerators with more calls than allowed."""
    return [
        f"{cluster.devices[d].name} runs {count} calls; at most {problem.calls} may be run"
        for d, count in sorted(counts.items())
        if d >= 0 and count > problem.calls
    ]


def _waiting_cycle(workload: Workload, cluster: Cluster, circle: list[Item]) -> list[str]:
    """Return a message on calls and nodes that wait for each other in a circle."""
    if not circle:
        return []
    shown = [
        f"node {workload.ids[k]}" if d < 0 else f"call {k} of {cluster.devices[d].name}"
        for d, k in circle
    ]
    return [f"it cannot be executed: {' → '.join(shown)} → {shown[0]} wait for each other"]
