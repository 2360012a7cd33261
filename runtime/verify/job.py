"""Verification of pipelines: an iteration by its simulation, a stream by its stages' times.

Independent of models and searches on purpose, as it judges them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...instances import (
    Cluster,
    InputError,
    LayerRule,
    Layers,
    PipelineJob,
    PipelinePlacement,
    Stage,
    StagePlacement,
    Throughput,
    Workload,
    layers_of,
    price,
)
from ...instances.common.units import show_count
from ..simulate.network import HostMemory
from ..simulate.plan_stages import (
    iteration_schedule,
    microbatches_and_bandwidth,
    stages_of_iteration,
    stream_reports,
)
from ..simulate.simulator import simulate_stages
from .report import Report, device_reports
from .rules import divided_colours, over_memory, unsupported
from .throughput import not_contiguous


def check_iteration(
    workload: Workload, cluster: Cluster, problem: PipelineJob, solution: PipelinePlacement
) -> Report:
    """Simulate the plan and list the rules it breaks.

    The objective is the makespan of M microbatches under the schedule. The loads of the report are
    per microbatch; its memory is each device's peak under the schedule.
    """
    costs, where = price(workload, cluster), solution.device.tolist()
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
    passes, compute = np.zeros((cluster.size, 2)), np.zeros(cluster.size)
    for s, (d,) in enumerate(stages.replicas):
        compute[d] += stages.compute[s].sum()
        passes[d] += stages.duration[s]
    busy = passes.sum(axis=1)
    transfer = busy - compute
    devices = device_reports(
        cluster,
        workload.ids_by_place(where, cluster.size),
        compute,
        transfer,
        passes,
        np.maximum(compute, transfer) if problem.overlap else busy,
        np.array([memory.peak for memory in simulation.memory]),
    )
    violations = [
        *divided_colours(workload, [cluster.devices[d].name for d in where]),
        *over_memory(devices),
    ]
    if problem.split == "per-device":
        rule = Throughput(split="per-device")
        violations += not_contiguous(workload, cluster, costs, rule, solution.device)
    return Report(simulation.makespan, devices, tuple(violations))


def _not_a_pipeline(
    workload: Workload, cluster: Cluster, problem: PipelineJob, solution: PipelinePlacement
) -> list[str]:
    """Return why the stages cannot be executed under the schedule."""
    count, devices = len(solution.devices), solution.devices
    used = set(solution.stage.tolist())
    if used != set(range(count)):
        return [f"stages: each of 0 to {count - 1} must have a node, and there are no others"]
    broken = _not_of_schedule(problem, devices)
    if broken or problem.split != "contiguous":
        return broken
    return _edge_against_order(workload, cluster, solution)


def _not_of_schedule(problem: PipelineJob, devices: Sequence[int]) -> list[str]:
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


def _edge_against_order(
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


def check_stream(
    workload: Workload, cluster: Cluster, problem: PipelineJob, solution: StagePlacement
) -> Report:
    """Evaluate a plan for a stream and list the rules it breaks.

    The objective is the time per microbatch, as plain sums over nodes and edges; the simulator's
    steady state takes as long.
    """
    layers = layers_of(workload)
    microbatches, _ = microbatches_and_bandwidth(workload, problem)
    wrong = _malformed(workload, layers, cluster, solution.stages)
    if wrong:
        return Report(math.inf, (), tuple(wrong))
    stages = solution.stages
    reports = stream_reports(workload, cluster, problem, stages)
    times = [report.time for report in reports]
    objective = max(times, default=0.0)
    violations = [
        *_structure(workload, problem, stages),
        *_devices(cluster, stages),
        *(_replicas(stages, microbatches) if problem.in_flight != "pipedream" else ()),
        *_configurations(workload, layers, problem, stages),
        *over_memory(reports),
    ]
    return Report(objective, (), tuple(violations), stages=reports)


def _malformed(
    workload: Workload, layers: Layers, cluster: Cluster, stages: tuple[Stage, ...]
) -> list[str]:
    """Return messages on nodes, configurations and kinds that do not exist, and so have no time."""
    broken = []
    for i, stage in enumerate(stages):
        if stage.replicas < 1 or stage.degree < 1:
            broken.append(f"stage {i} has no replica, or its replicas have no device")
        if not 0 <= stage.kind < len(cluster.kinds):
            broken.append(f"stage {i} is on a kind of device that does not exist")
        if len(stage.nodes) != len(stage.configuration):
            broken.append(f"stage {i} does not name one configuration for each of its nodes")
        if any(not 0 <= v < workload.n for v in stage.nodes):
            broken.append(f"stage {i} has a node that does not exist")
        if any(not 0 <= c < layers.size for c in stage.configuration):
            broken.append(f"stage {i} has a configuration that does not exist")
    return broken


def _structure(workload: Workload, problem: PipelineJob, stages: tuple[Stage, ...]) -> list[str]:
    """Return messages on stages that are empty, share nodes or break the order."""
    ids = workload.ids
    stage_of: dict[int, int] = {}
    broken = []
    for i, stage in enumerate(stages):
        if not stage.nodes:
            broken.append(f"stage {i} is empty")
        for v in stage.nodes:
            if v in stage_of:
                broken.append(f"node {ids[v]} is in stage {stage_of[v]} and in stage {i}")
            stage_of[v] = i
    broken += [f"node {ids[v]} is in no stage" for v in range(workload.n) if v not in stage_of]
    if broken:
        return broken
    for u, v in workload.edges.tolist():
        if stage_of[u] > stage_of[v]:
            broken.append(
                f"not contiguous: node {ids[u]} in stage {stage_of[u]} feeds node {ids[v]} "
                f"in the earlier stage {stage_of[v]}"
            )
    for a, b in problem.uncut:
        if stage_of[workload.index[a]] != stage_of[workload.index[b]]:
            broken.append(f"nodes {a} and {b} are in different stages, which is forbidden")
    return broken


def _devices(cluster: Cluster, stages: tuple[Stage, ...]) -> list[str]:
    """Return messages on kinds that have too few devices, or are hosts."""
    broken = []
    for k, kind in enumerate(cluster.kinds):
        used = sum(stage.replicas * stage.degree for stage in stages if stage.kind == k)
        if used > kind.count:
            broken.append(
                f"{show_count(used, 'device')} of kind {kind.name} needed, of {kind.count}"
            )
        if used and kind.host:
            broken.append(f"a stage is on {kind.name}, which is a host")
    return broken


def _replicas(stages: tuple[Stage, ...], microbatches: int) -> list[str]:
    """Return messages on replicas that do not divide the microbatches."""
    broken = []
    replicas = sum(stage.replicas for stage in stages)
    if replicas > microbatches:
        broken.append(f"{replicas} replicas are more than {show_count(microbatches, 'microbatch')}")
    for i, stage in enumerate(stages):
        if microbatches % stage.replicas:
            broken.append(
                f"stage {i} has {stage.replicas} replicas, which do not divide "
                f"{show_count(microbatches, 'microbatch')}"
            )
    return broken


def _configurations(
    workload: Workload, layers: Layers, problem: PipelineJob, stages: tuple[Stage, ...]
) -> list[str]:
    """Return messages on configurations that belong elsewhere or break a rule."""
    rules: list[list[LayerRule]] = [[] for _ in workload.ids]
    for rule in problem.rules:
        rules[workload.index[rule.node]].append(rule)
    broken = []
    for i, stage in enumerate(stages):
        for v, c in zip(stage.nodes, stage.configuration, strict=True):
            where = f"stage {i}: node {workload.ids[v]}: "
            if layers.node[c] != v:
                broken.append(f"{where}configuration {c} belongs to another node")
                continue
            if layers.degree[c] != stage.degree:
                broken.append(
                    f"{where}its configuration is for tensor degree {layers.degree[c]}, "
                    f"the stage has {stage.degree}"
                )
            recomputation = problem.recomputation
            limits: list[PipelineJob | LayerRule] = [problem, *rules[v]]
            for limit in limits:
                if limit.degrees is not None and stage.degree not in limit.degrees:
                    broken.append(f"{where}tensor degree {stage.degree} is not allowed")
                if limit.replicas is not None and stage.replicas not in limit.replicas:
                    broken.append(f"{where}{stage.replicas} replicas are not allowed")
                recomputation = limit.recomputation or recomputation
            again = bool(layers.recomputes[c])
            other = any(
                layers.node[o] == v
                and layers.degree[o] == stage.degree
                and bool(layers.recomputes[o]) != again
                for o in range(layers.size)
            )
            if recomputation != "free" and other and again != (recomputation == "forced"):
                broken.append(f"{where}recomputation is {recomputation}, its configuration differs")
    return broken
