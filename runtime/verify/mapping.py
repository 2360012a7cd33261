"""Verification of mappings: stage times and link loads, by plain sums along the routes.

Independent of bounds and searches on purpose, as it judges them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from ...instances import Cluster, DeviceMapping, ReplicaPlacement, StageCosts, Workload, stage_costs
from ...instances.common.arrays import Floats, Ints
from ...instances.common.units import TIME_UNITS
from ...instances.model.contiguity import pipeline_edges
from ...instances.model.stage_costs import cluster_differs, device_slowdowns
from ...instances.model.topology import Topology
from .report import MappedStage, MappingReport, Pair, device_reports
from .rules import over_memory

#: Function of two devices and bytes that returns the seconds of a message.
Message = Callable[[int, int, float], float]


def check(
    workload: Workload, cluster: Cluster, problem: DeviceMapping, solution: ReplicaPlacement
) -> MappingReport:
    """Evaluate a mapping and list the rules it breaks."""
    topology = problem.topology
    broken = _broken(workload, cluster, problem, solution)
    if broken:
        return MappingReport(math.inf, (), tuple(broken))
    costs = stage_costs(workload, solution.stage, problem.stages)
    slow = device_slowdowns(cluster)
    stages = stage_reports(costs, problem, solution.slots, solution.sends_to, slow)
    traffic = partial(busiest_link, costs, problem, solution.slots, solution.sends_to)
    unit = TIME_UNITS[workload.time_unit]
    stage_of = np.full(topology.size, -1)  # of each device; the last entry of lists for none
    stage_of[solution.slots] = np.arange(problem.stages)[:, None]
    nodes = [*workload.ids_by_place(solution.stage.tolist(), problem.stages), []]
    memory = np.bincount(solution.stage, weights=workload.memory_bytes, minlength=problem.stages)
    compute, load, held = (
        np.append(values, 0.0)[stage_of]
        for values in (
            [stage.compute_s / unit for stage in stages],
            [stage.total_s / unit for stage in stages],
            memory,
        )
    )
    devices = device_reports(
        cluster,
        [nodes[s] for s in stage_of.tolist()],
        compute,
        load - compute,
        np.stack((load, np.zeros(topology.size)), axis=1),
        load,
        held,
        topology.devices,
    )
    worst = max(stage.total_s for stage in stages)
    objective = (traffic()[1] if problem.objective == "busiest-link" else worst) / unit
    return MappingReport(
        objective,
        devices,
        tuple(over_memory(devices)),
        tie=sum(stage.total_s for stage in stages) / unit,
        mapped=stages,
        traffic=traffic,
    )


def stage_reports(
    costs: StageCosts,
    problem: DeviceMapping,
    slots: Ints,
    sends_to: Ints,
    slow: Floats | None = None,
) -> tuple[MappedStage, ...]:
    """Return the times of each stage per batch in seconds, by the definition in `DeviceMapping`.

    Parameters
    ----------
    costs
        Costs of the S stages.
    problem
        Problem, with topology, mode and collectives.
    slots
        Shape (S, R): device of each replica.
    sends_to
        Shape (S−1, R): position in the next stage's row of `slots` of the replica to which each
        sends.
    slow
        Shape (D,): slowdown of each device, by default 1. A stage computes as long as its slowest
        replica.

    Returns
    -------
    tuple of MappedStage
        Seconds per batch of each stage, first to last: compute, transfer, all-reduce, total.

    Examples
    --------
    >>> import stagecut
    >>> costs = stagecut.instances.StageCosts([1e-3, 2e-3], [4e6], [4e6], [1e9, 1e9])
    >>> problem = stagecut.DeviceMapping(stagecut.topology("ring:4"), stages=2, replicas=2)
    >>> stages = stage_reports(costs, problem, np.array([[0, 1], [2, 3]]), np.array([[1, 0]]))
    >>> [stage.compute_s for stage in stages]
    [0.001, 0.002]
    """
    message = _messages(problem.topology)
    rows: list[list[int]] = slots.tolist()
    to_next = [
        [(a, below[r]) for a, r in zip(row, to, strict=True)]
        for row, below, to in zip(rows, rows[1:], sends_to.tolist(), strict=False)
    ]
    sizes = costs.parameter_bytes.tolist()
    m = problem.microbatches
    reports = []
    for s, row in enumerate(rows):
        slowest = 1.0 if slow is None else max(float(slow[d]) for d in row)
        compute = m * float(costs.compute_s[s]) * slowest
        transfer = 0.0
        if s + 1 < problem.stages:
            there, back = float(costs.forward_bytes[s]), float(costs.backward_bytes[s])
            transfer = m * max(
                message(a, b, there) + (message(b, a, back) if problem.gradients else 0.0)
                for a, b in to_next[s]
            )
        reduce, way = allreduce(message, problem, row, sizes[s])
        sent = transfer if problem.mode != "allr" else 0.0
        sent += reduce if problem.mode != "p2p" else 0.0
        total = max(compute, sent) if problem.overlap else compute + sent
        reports.append(MappedStage(compute, transfer, reduce, total, way))
    return tuple(reports)


def allreduce(
    message: Message, problem: DeviceMapping, row: list[int], size: float
) -> tuple[float, str]:
    """Return the seconds of an all-reduce of `size` bytes among the devices `row`, and its kind.

    ``ring``: 2(R−1) steps of size/R. ``tree``: replica i's parent is replica ⌊(i−1)/2⌋; up and
    down again, 2⌊log2 R⌋ steps of the whole size. ``hierarchical``, where each island used holds
    the same number k of replicas, 1 < k < R: a ring of size/k per step inside each island (2(k−1)
    steps), and a ring over the g islands with size/(k·g) per step between the j-th replicas of
    the islands (2(g−1) steps), for all j at once.
    """
    replicas = len(row)
    if replicas == 1 or size == 0:
        return 0.0, ""
    ways = [(2 * (replicas - 1) * _slowest(message, row, size / replicas), "ring")]
    if problem.collective == "cheapest":
        slowest = max(message(a, b, size) for a, b in _tree(row))
        ways.append((2 * (replicas.bit_length() - 1) * slowest, "tree"))
        members: dict[int, list[int]] = {}
        for d in row:
            members.setdefault(int(problem.topology.island[d]), []).append(d)
        groups = list(members.values())
        g, k = len(groups), len(groups[0])
        if all(len(group) == k for group in groups) and g > 1 and k > 1:
            columns = [list(column) for column in zip(*groups, strict=True)]
            inside = max(_slowest(message, group, size / k) for group in groups)
            across = max(_slowest(message, column, size / (k * g)) for column in columns)
            ways.append((2 * (k - 1) * inside + 2 * (g - 1) * across, "hierarchical"))
    return min(ways)


def busiest_link(
    costs: StageCosts, problem: DeviceMapping, slots: Ints, sends_to: Ints
) -> tuple[Pair | None, float]:
    """Return the link, in one direction, with most traffic for its bandwidth, and its seconds.

    Activations and gradients go along the matching, all-reduces along rings (each link of a ring
    carries 2(R−1)/R of the parameters), as far as the mode counts them.
    """
    topology, m, replicas = problem.topology, problem.microbatches, problem.replicas
    sent: list[tuple[Pair, float]] = []

    for s in range(problem.stages):
        row = slots[s].tolist()
        if problem.mode != "allr" and s + 1 < problem.stages:
            for r, a in enumerate(row):
                b = int(slots[s + 1, sends_to[s, r]])
                sent.append(((a, b), m * float(costs.forward_bytes[s])))
                if problem.gradients:
                    sent.append(((b, a), m * float(costs.backward_bytes[s])))
        if problem.mode != "p2p" and replicas > 1:
            size = 2 * (replicas - 1) / replicas * float(costs.parameter_bytes[s])
            sent += [(pair, size) for pair in _ring(row)]
    sent = [(pair, size) for pair, size in sent if size > 0]
    load: dict[Pair, float] = {}
    for (a, b), size in sent:
        for hop in topology.routes.hops(a, b):
            load[hop] = load.get(hop, 0.0) + size
    bandwidth = link_table(topology)
    seconds = {hop: size / bandwidth[hop][1] for hop, size in load.items()}
    if not seconds:
        return None, 0.0
    link = max(sorted(seconds), key=lambda hop: seconds[hop])
    return link, seconds[link]


def _slowest(message: Message, row: list[int], size: float) -> float:
    """Return the seconds of the longest message of `size` bytes around a ring."""
    return max(message(a, b, size) for a, b in _ring(row))


def _ring(row: list[int]) -> list[Pair]:
    """Return the pairs of neighbours around a ring."""
    return list(zip(row, row[1:] + row[:1], strict=True))


def _tree(row: list[int]) -> list[Pair]:
    """Return the replicas of a tree but its root, each with its parent."""
    return [(row[i], row[(i - 1) // 2]) for i in range(1, len(row))]


def _messages(topology: Topology) -> Message:
    """Return the function of the seconds of a message, by the routes of a topology."""

    latency, bandwidth = topology.routes.latency_s, topology.routes.bytes_per_s

    def seconds(a: int, b: int, size: float) -> float:
        return float(latency[a, b] + size / bandwidth[a, b]) if size > 0 else 0.0

    return seconds


@lru_cache(maxsize=1)  # a search asks for the same one for every mapping
def link_table(topology: Topology) -> dict[tuple[int, int], tuple[float, float]]:
    """Return latency and bandwidth by link, in both directions; of parallel links the best."""
    table: dict[tuple[int, int], tuple[float, float]] = {}
    rows = zip(topology.links.tolist(), topology.latency_s, topology.bytes_per_s, strict=True)
    for (a, b), latency, bandwidth in rows:
        old = table.get((a, b))
        if old is None or (bandwidth, -latency) > (old[1], -old[0]):
            table[a, b] = table[b, a] = (float(latency), float(bandwidth))
    return table


def _broken(
    workload: Workload, cluster: Cluster, problem: DeviceMapping, solution: ReplicaPlacement
) -> list[str]:
    """Return messages on shapes, devices, matchings and the order of stages that break a rule."""
    s, r, topology = problem.stages, problem.replicas, problem.topology
    if differ := cluster_differs(cluster, topology):
        return [differ]
    shapes = (solution.stage.shape, solution.slots.shape, solution.sends_to.shape)
    if shapes != ((workload.n,), (s, r), (s - 1, r)):
        return [f"shapes {shapes} are not those of {workload.n} nodes, {s} stages, {r} replicas"]
    broken = []
    if workload.n and not 0 <= solution.stage.min() <= solution.stage.max() < s:
        return [f"a node's stage is not one of 0 to {s - 1}"]
    held = np.bincount(solution.stage, minlength=s)
    broken = [f"stage {k} holds no node" for k in np.flatnonzero(held == 0).tolist()]
    used, excluded = set[int](), set(topology.excluded)
    for d in solution.slots.ravel().tolist():
        if not 0 <= d < topology.size:
            return [f"device {d} is not one of 0 to {topology.size - 1}"]
        if d in excluded:
            broken.append(f"{topology.devices[d]} is excluded, but used")
        if d in used:
            broken.append(f"{topology.devices[d]} is used twice")
        used.add(d)
    for i, row in enumerate(solution.sends_to.tolist()):
        if sorted(row) != list(range(r)):
            broken.append(f"stage {i} does not send to each replica of the next once: {row}")
    for u, v in pipeline_edges(workload):
        if solution.stage[u] > solution.stage[v]:
            broken.append(f"node {workload.ids[v]} is in a stage before {workload.ids[u]}")
            break
    for colour, members in enumerate(workload.colour_classes):
        if len({int(solution.stage[v]) for v in members}) > 1:
            broken.append(f"colour {workload.colour_labels[colour]} is spread over several stages")
    return broken
