"""The time of an iteration, from the definition: the makespan that the simulator finds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...instances import (
    Cluster,
    Costs,
    InputError,
    NodeId,
    PipelinePlacement,
    Throughput,
    TrainingJob,
    Workload,
)
from ..simulate.iteration_stages import iteration_schedule, stages_of_iteration
from ..simulate.network import HostMemory
from ..simulate.simulator import simulate_stages
from ..simulate.stages import BACKWARD, FORWARD
from .report import DeviceReport, Report
from .rules import over_memory, torn_colours, unsupported
from .throughput import not_contiguous


def check(
    workload: Workload,
    cluster: Cluster,
    costs: Costs,
    problem: TrainingJob,
    solution: PipelinePlacement,
) -> Report:
    """Simulate the plan and list the rules it breaks.

    The objective is the makespan of M microbatches under the schedule. The loads of the report are
    per microbatch; its memory is each device's peak under the schedule.
    """
    where = solution.device.tolist()
    broken = [
        *unsupported(workload, cluster, costs, where),
        *_not_a_pipeline(workload, cluster, problem, solution),
    ]
    if broken:
        return Report(math.inf, (), tuple(broken))
    try:
        stages = stages_of_iteration(workload, cluster, problem, solution)
        schedule = iteration_schedule(problem, solution, cluster.size)
        simulation = simulate_stages(
            stages, schedule, problem.batch, network=HostMemory(problem.overlap)
        )
    except InputError as error:
        return Report(math.inf, (), (str(error),))
    nodes: list[list[NodeId]] = [[] for _ in cluster.devices]
    for v, d in enumerate(where):
        nodes[d].append(workload.ids[v])
    passes = [[0.0, 0.0] for _ in cluster.devices]
    compute = [0.0] * cluster.size
    for s, (d,) in enumerate(stages.replicas):
        compute[d] += float(stages.compute[s].sum())
        for side in (FORWARD, BACKWARD):
            passes[d][side] += float(stages.duration[s, side])
    transfer = [sum(both) - own for both, own in zip(passes, compute, strict=True)]
    devices = tuple(
        DeviceReport(
            name=device.name,
            kind=cluster.kinds[device.kind].name,
            nodes=tuple(nodes[d]),
            compute=compute[d],
            transfer=transfer[d],
            load=max(compute[d], sum(passes[d]) - compute[d])
            if problem.overlap
            else sum(passes[d]),
            forward=passes[d][FORWARD],
            backward=passes[d][BACKWARD],
            memory_bytes=simulation.memory[d].peak,
            capacity_bytes=simulation.memory[d].capacity,
        )
        for d, device in enumerate(cluster.devices)
    )
    violations = [
        *torn_colours(workload, [cluster.devices[d].name for d in where]),
        *over_memory(devices),
        *_not_convex(workload, cluster, costs, problem, solution),
    ]
    return Report(simulation.makespan, devices, tuple(violations))


def _not_a_pipeline(
    workload: Workload, cluster: Cluster, problem: TrainingJob, solution: PipelinePlacement
) -> list[str]:
    """Return why the stages cannot be executed under the schedule."""
    count, devices = len(solution.devices), solution.devices
    used = set(solution.stage.tolist())
    if used != set(range(count)):
        return [f"stages: every one of 0 to {count - 1} must have nodes, and no other"]
    broken = _not_of_schedule(problem, devices)
    if broken or problem.split != "contiguous":
        return broken
    return _against_the_line(workload, cluster, solution)


def _not_of_schedule(problem: TrainingJob, devices: Sequence[int]) -> list[str]:
    """Return why devices are not those of the schedule's stages."""
    count = len(devices)
    if problem.order:
        row = problem.order.device
        if count != len(row):
            return [f"{count} stages, and the schedule is of {len(row)}"]
        if len(set(zip(row, devices, strict=True))) > max(row) + 1:
            return ["stages of one row of the schedule must be on one device"]
        if len(set(devices)) <= max(row):
            return ["two rows of the schedule are on one device"]
        return []
    size, left = divmod(count, problem.chunks_per_device)
    if left or list(devices) != list(devices[:size]) * problem.chunks_per_device:
        return [
            f"{problem.schedule}: on D devices stage s must be on the device of stage s − D, "
            f"{problem.chunks_per_device} on each"
        ]
    if len(set(devices[:size])) < size:
        return ["two stages are on one device"]
    if problem.chunks_per_device > 1 and problem.batch % size:
        return [
            f"{problem.schedule}: {problem.batch} microbatches are no multiple of the "
            f"{size} devices"
        ]
    return []


def _against_the_line(
    workload: Workload, cluster: Cluster, solution: PipelinePlacement
) -> list[str]:
    """Return a message for the first edge from a later stage to an earlier one, if any."""
    stage, backward = solution.stage.tolist(), workload.backward.tolist()
    for u, v in workload.edges.tolist():
        before, after = stage[u], stage[v]
        if backward[u]:
            before, after = after, before
        if backward[u] == backward[v] and before > after:
            names = [cluster.devices[solution.devices[s]].name for s in (stage[u], stage[v])]
            return [
                f"not contiguous: node {workload.ids[v]} on {names[1]} needs node "
                f"{workload.ids[u]} on {names[0]}, whose stage comes later"
            ]
    return []


def _not_convex(
    workload: Workload,
    cluster: Cluster,
    costs: Costs,
    problem: TrainingJob,
    solution: PipelinePlacement,
) -> list[str]:
    """Return messages of convexity that a split per device breaks."""
    if problem.split != "per-device":
        return []
    return not_contiguous(workload, cluster, costs, Throughput(split="per-device"), solution.device)
