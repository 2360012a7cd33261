"""The time and memory of a training plan, from the definition: plain sums over nodes and edges.

Written apart from the models and the search on purpose: it is what they are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...instances import (
    TIME_UNITS,
    Cluster,
    InputError,
    Layers,
    Stage,
    StagePlacement,
    TrainingJob,
    Workload,
    layers_of,
)
from ...instances.common.quantities import show_bytes
from .report import Report, StageReport
from .rules import allowed

#: Optimizer state per byte of weights.
STATE: Mapping[tuple[str, str], float] = {
    ("as-given", "fp32"): 0.0,
    ("sgd", "fp32"): 0.0,
    ("momentum", "fp32"): 1.0,
    ("adam", "fp32"): 2.0,
    ("as-given", "mixed"): 0.0,
    ("sgd", "mixed"): 2.0,
    ("momentum", "mixed"): 4.0,
    ("adam", "mixed"): 6.0,
}


def check(
    workload: Workload, cluster: Cluster, problem: TrainingJob, solution: StagePlacement
) -> Report:
    """Evaluate a plan and list the rules it breaks."""
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    wrong = _malformed(workload, layers, cluster, solution.stages)
    if wrong:
        return Report(math.inf, (), tuple(wrong))
    stages = solution.stages
    reports = [
        _stage(workload, layers, cluster, problem, stages, i, microbatches, bandwidth)
        for i in range(len(stages))
    ]
    times = [report.time for report in reports]
    objective = max(times, default=0.0)
    violations = [
        *_structure(workload, problem, stages),
        *_devices(cluster, stages),
        *(_replicas(stages, microbatches) if problem.in_flight != "pipedream" else ()),
        *_configurations(workload, layers, problem, stages),
        *_over_memory(reports),
    ]
    return Report(objective, (), tuple(violations), stages=tuple(reports))


def microbatches_and_bandwidth(workload: Workload, problem: TrainingJob) -> tuple[int, float]:
    """Return N and B, in bytes per time unit of the workload: the problem's, else the workload's.

    Raises
    ------
    InputError
        If neither says them; without batches (``pipedream``), N is 1 where it is not said.
    """
    layers = layers_of(workload)
    microbatches = problem.microbatches or layers.microbatches
    units_per_second = 1 / TIME_UNITS.get(workload.time_unit, 1.0)
    bandwidth = layers.bandwidth
    if problem.bandwidth is not None:
        bandwidth = problem.bandwidth / units_per_second
    if microbatches is None and problem.in_flight == "pipedream":
        microbatches = 1
    if microbatches is None:
        raise InputError(f"{workload.name}: it does not say how many microbatches; give a number")
    if bandwidth is None:
        raise InputError(f"{workload.name}: it names no bandwidth; give one")
    return microbatches, bandwidth


def _stage(
    workload: Workload,
    layers: Layers,
    cluster: Cluster,
    problem: TrainingJob,
    stages: Sequence[Stage],
    number: int,
    microbatches: int,
    bandwidth: float,
) -> StageReport:
    """Return time and memory of one stage, from the definition."""
    stage = stages[number]
    behind = sum(later.replicas for later in stages[number:])
    inside = dict(zip(stage.nodes, stage.configuration, strict=True))
    d = stage.replicas
    kind = cluster.kinds[stage.kind]
    compute = sum(float(layers.time[c]) for c in inside.values()) * kind.slowdown / d
    moved = 0.0
    for e, (u, v) in enumerate(workload.edges.tolist()):
        if (u in inside) != (v in inside):
            end = inside[u] if u in inside else inside[v]
            moved += 2 * (float(layers.edge_bytes[e]) + layers.sync_bytes[end].get(e, 0.0))
    transfer = moved / d / bandwidth
    in_server = problem.server_devices is not None and d * stage.degree <= problem.server_devices
    across = bandwidth
    if in_server and problem.server_bandwidth is not None:
        across = problem.server_bandwidth * TIME_UNITS.get(workload.time_unit, 1.0)
    weights = sum(float(layers.weight_bytes[c]) for c in inside.values())
    accumulated = d if problem.in_flight == "pipedream" else microbatches
    synchronise = 4 * (d - 1) * weights / (d * accumulated) / across

    in_flight = math.ceil(behind / d)
    if problem.in_flight == "gpipe":
        in_flight = math.ceil(microbatches / d)
    activations = in_flight * sum(float(layers.bytes_per_microbatch[c]) for c in inside.values())
    fixed = sum(float(layers.fixed_bytes[c]) for c in inside.values())
    copies = {"pipedream": in_flight - 1, "2bw": 1}.get(problem.in_flight, 0)
    return StageReport(
        number=number,
        kind=kind.name,
        nodes=tuple(workload.ids[v] for v in stage.nodes),
        configurations=tuple(layers.label[c] for c in stage.configuration),
        recomputed=tuple(workload.ids[v] for v, c in inside.items() if bool(layers.recomputes[c])),
        replicas=d,
        degree=stage.degree,
        time=compute + transfer + synchronise,
        compute=compute,
        transfer=transfer,
        synchronise=synchronise,
        in_flight=in_flight,
        activation_bytes=activations,
        weight_bytes=min(weights, fixed),
        gradient_bytes=min(weights, max(0.0, fixed - weights)),
        workspace_bytes=max(0.0, fixed - 2 * weights),
        version_bytes=copies * weights,
        optimizer_bytes=STATE[problem.optimizer, problem.precision] * weights,
        capacity_bytes=kind.memory_bytes,
    )


def _malformed(
    workload: Workload, layers: Layers, cluster: Cluster, stages: tuple[Stage, ...]
) -> list[str]:
    """Return messages of unknown nodes, configurations and kinds, which have no time."""
    broken = []
    for i, stage in enumerate(stages):
        if stage.replicas < 1 or stage.degree < 1:
            broken.append(f"stage {i} has no replica, or no device for one")
        if not 0 <= stage.kind < len(cluster.kinds):
            broken.append(f"stage {i} is on a kind of device that there is not")
        if len(stage.nodes) != len(stage.configuration):
            broken.append(f"stage {i} does not name one configuration for each of its nodes")
        if any(not 0 <= v < workload.n for v in stage.nodes):
            broken.append(f"stage {i} has a node that there is not")
        if any(not 0 <= c < layers.size for c in stage.configuration):
            broken.append(f"stage {i} has a configuration that there is not")
    return broken


def _structure(workload: Workload, problem: TrainingJob, stages: tuple[Stage, ...]) -> list[str]:
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
    """Return messages on kinds of which more devices are used than there are."""
    broken = []
    for k, kind in enumerate(cluster.kinds):
        used = sum(stage.replicas * stage.degree for stage in stages if stage.kind == k)
        if used > kind.count:
            broken.append(f"{used} devices of kind {kind.name} are used, of {kind.count}")
        if used and kind.host:
            broken.append(f"a stage is on {kind.name}, which is a host")
    return broken


def _replicas(stages: tuple[Stage, ...], microbatches: int) -> list[str]:
    """Return messages on replicas that do not divide the microbatches."""
    broken = []
    replicas = sum(stage.replicas for stage in stages)
    if replicas > microbatches:
        broken.append(f"{replicas} replicas are more than the {microbatches} microbatches")
    for i, stage in enumerate(stages):
        if microbatches % stage.replicas:
            broken.append(
                f"stage {i} has {stage.replicas} replicas, which do not divide "
                f"{microbatches} microbatches"
            )
    return broken


def _configurations(
    workload: Workload, layers: Layers, problem: TrainingJob, stages: tuple[Stage, ...]
) -> list[str]:
    """Return messages on configurations that belong elsewhere or break a rule."""
    rules = {workload.index[rule.node]: rule for rule in problem.rules}
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
            for said in (problem, rules.get(v)):
                if said is None:
                    continue
                if said.degrees is not None and stage.degree not in said.degrees:
                    broken.append(f"{where}tensor degree {stage.degree} is not allowed")
                if said.replicas is not None and stage.replicas not in said.replicas:
                    broken.append(f"{where}{stage.replicas} replicas are not allowed")
                recomputation = said.recomputation or recomputation
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


def _over_memory(stages: list[StageReport]) -> list[str]:
    """Return messages on stages that exceed the memory of their devices."""
    return [
        f"stage {s.number} takes {show_bytes(s.memory_bytes)} on each device, "
        f"{show_bytes(s.memory_bytes - s.capacity_bytes)} more than its "
        f"{show_bytes(s.capacity_bytes)}"
        for s in stages
        if s.memory_bytes > allowed(s.capacity_bytes)
    ]
