"""The stages of a pipeline's plan: of a stream with replicas, or of an iteration.

An iteration's stages are a chain, or the convex pieces of a placement, as `pieces.py` prices them.

What defines the time per microbatch of a stream is taken apart into passes:

- The t devices of a replica work as one, so a replica is one device here, named after its first
  and last.
- A layer's time is forward and backward together. Its forward takes the file's own share where it
  names forward and backward times, else a third: a guess, which moves time between the two passes
  and leaves their sum, and so the steady state, alone. Recomputation makes the backward longer.
- A cut edge costs 2 (c + sync) / B at each end: half in the forward pass, half in the backward.
- The all-reduce of a batch takes 4 (d − 1) w / (d B); where there are no batches (in flight as
  ``pipedream``), a round of d microbatches is one.
- Memory: a layer takes `fixed_bytes` and the optimizer's state all the time, and
  `bytes_per_microbatch` for each microbatch in flight.

So a schedule without end runs at the plan's time per microbatch: ``2bw`` where there are batches,
else ``pipedream``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...instances import (
    TIME_UNITS,
    Cluster,
    InputError,
    Layers,
    PipelineJob,
    PipelinePlacement,
    Plan,
    Stage,
    StagePlacement,
    Workload,
    layers_of,
)
from ...instances.common.arrays import frozen
from ..schedules.actions import Action, Schedule, schedule_of
from ..verify.report import StageReport
from .pieces import Passes, cut, price_stages, relay_line
from .stages import BACKWARD, FORWARD, StageGraph, edges_of, line_of

#: The forward's share of a layer's time where the file does not say it: a guess.
FORWARD_SHARE = 1 / 3

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


def stages_of_iteration(
    workload: Workload,
    cluster: Cluster,
    problem: PipelineJob,
    solution: PipelinePlacement,
) -> StageGraph:
    """Return the stages of a plan for an iteration; an `InputError` if it cannot be executed."""
    device = solution.device.tolist()
    if problem.split != "contiguous":
        graph = cut(workload, cluster, device)
    elif problem.relayed:
        stages = passes_of(workload, solution)
        graph = relay_line(workload, cluster, device, stages)
    else:
        stages = passes_of(workload, solution)
        waits, present, rank = line_of(len(stages), bool(workload.backward.any()))
        graph = price_stages(workload, cluster, device, stages, present, rank, waits)
    return replace(graph, batch=problem.batch, weight_share=problem.weight_share)


def iteration_schedule(
    problem: PipelineJob, solution: PipelinePlacement, devices: int
) -> str | Schedule:
    """Return the schedule by its name; if it is given, its rows on the cluster's devices."""
    if problem.order is None:
        return problem.schedule_name
    rows: list[Sequence[Action]] = [()] * devices
    for row in problem.order.rows:
        rows[solution.devices[row[0].stage]] = row
    return schedule_of(rows, name=problem.schedule_name, microbatches=problem.batch)


def passes_of(workload: Workload, solution: PipelinePlacement) -> list[Passes]:
    """Return the nodes of the forward and of the backward pass of each stage, increasing."""
    return [
        (
            tuple(np.flatnonzero((solution.stage == s) & ~workload.backward).tolist()),
            tuple(np.flatnonzero((solution.stage == s) & workload.backward).tolist()),
        )
        for s in range(len(solution.devices))
    ]


def stages_of_stream(
    workload: Workload,
    plan: Plan,
    problem: PipelineJob,
    solution: StagePlacement,
) -> StageGraph:
    """Return the stages of a plan for a stream, in O(n + m + devices).

    Raises `InputError` if the plan was made for another workload, or microbatches or bandwidth are
    not known.
    """
    plan.check_made_for(workload)
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    reports = stage_reports(workload, plan.cluster, problem, solution.stages)
    count = len(solution.stages)
    compute, receive, send = (np.zeros((count, 2)) for _ in range(3))
    stage_of, chosen = np.zeros(workload.n, np.int64), np.zeros(workload.n, np.int64)
    names: list[str] = []
    replicas: list[tuple[int, ...]] = []
    for s, stage in enumerate(solution.stages):
        nodes = list(stage.nodes)
        stage_of[nodes], chosen[nodes] = s, stage.configuration
        slowdown = plan.cluster.kinds[stage.kind].slowdown
        for v, c in zip(stage.nodes, stage.configuration, strict=True):
            forward = forward_time(workload, layers, v, c)
            compute[s] += slowdown * np.array([forward, layers.time[c] - forward])
        first = int(solution.device[nodes[0]])
        replicas.append(tuple(range(len(names), len(names) + stage.replicas)))
        for r in range(stage.replicas):
            group = [first + r * stage.degree + t for t in range(stage.degree)]
            names.append(_group_name([plan.cluster.devices[d].name for d in group]))
    payload: dict[tuple[int, int], float] = {}
    for e, (u, v) in enumerate(workload.edges.tolist()):
        a, b = int(stage_of[u]), int(stage_of[v])
        if a == b:
            continue
        size = float(layers.edge_bytes[e])
        sync = [layers.sync_bytes[chosen[end]].get(e, 0.0) for end in (u, v)]
        for side, (source, target) in ((FORWARD, (0, 1)), (BACKWARD, (1, 0))):
            ends = (a, b)
            send[ends[source], side] += (size + sync[source]) / bandwidth
            receive[ends[target], side] += (size + sync[target]) / bandwidth
        payload[a, b] = payload.get((a, b), 0.0) + size + max(sync)
    edges = {(2 * a, 2 * b): size for (a, b), size in payload.items()}
    edges |= {(2 * b + 1, 2 * a + 1): size for (a, b), size in payload.items()}
    edges |= {(2 * s, 2 * s + 1): 0.0 for s in range(count)}
    tasks, payload_bytes = edges_of(edges)
    _, present, rank = line_of(count, trains=True)
    per_batch = [r.replicas if problem.in_flight == "pipedream" else microbatches for r in reports]
    configurations = [list(stage.configuration) for stage in solution.stages]
    return StageGraph(
        devices=tuple(names),
        replicas=tuple(replicas),
        compute=frozen(compute, np.float64),
        present=present,
        receive=frozen(receive, np.float64),
        send=frozen(send, np.float64),
        edges=tasks,
        payload_bytes=payload_bytes,
        rank=rank,
        weight_bytes=frozen([layers.weight_bytes[c].sum() for c in configurations], np.float64),
        activation_bytes=frozen(
            [layers.bytes_per_microbatch[c].sum() for c in configurations], np.float64
        ),
        resident_bytes=frozen(
            [r.memory_bytes - r.activation_bytes - r.version_bytes for r in reports], np.float64
        ),
        nodes=tuple((stage.nodes, ()) for stage in solution.stages),
        capacity_bytes=frozen(
            [reports[s].capacity_bytes for s, ring in enumerate(replicas) for _ in ring], np.float64
        ),
        time_unit=workload.time_unit,
        all_reduce=frozen(
            [r.synchronise * n for r, n in zip(reports, per_batch, strict=True)], np.float64
        ),
        batch=None if problem.in_flight == "pipedream" else microbatches,
    )


def forward_time(workload: Workload, layers: Layers, node: int, configuration: int) -> float:
    """Return the part of a configuration's time that its forward pass takes.

    Without recomputation a share of it; with recomputation the same time as without, which is
    the best configuration of the node and degree that computes nothing twice. Where there is
    none, the time is taken to be a forward, a backward and the forward again.
    """
    share = FORWARD_SHARE
    known = [workload.extra.get(f"{key}_time") for key in ("forward", "backward")]
    if known[0] is not None and known[1] is not None:
        forward, backward = float(known[0][node]), float(known[1][node])
        if forward + backward > 0:
            share = forward / (forward + backward)
    time = float(layers.time[configuration])
    if not layers.recomputes[configuration]:
        return share * time
    same = (layers.node == node) & (layers.degree == layers.degree[configuration])
    plain = layers.time[same & ~layers.recomputes]
    if not len(plain):
        return share * time / (1 + share)
    return min(share * float(plain.min()), time)


def _group_name(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}–{names[-1].rpartition(' ')[2]}"


def stage_reports(
    workload: Workload, cluster: Cluster, problem: PipelineJob, stages: Sequence[Stage]
) -> tuple[StageReport, ...]:
    """Return time and memory of each stage of a stream, from the definition."""
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    return tuple(
        _stage_report(workload, layers, cluster, problem, stages, i, microbatches, bandwidth)
        for i in range(len(stages))
    )


def _stage_report(
    workload: Workload,
    layers: Layers,
    cluster: Cluster,
    problem: PipelineJob,
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


def microbatches_and_bandwidth(workload: Workload, problem: PipelineJob) -> tuple[int, float]:
    """Return N and B, in bytes per time unit of the workload: the problem's, else the workload's.

    Without batches (``pipedream``), N is 1 where it is not said; else an `InputError` says what is
    missing.
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
