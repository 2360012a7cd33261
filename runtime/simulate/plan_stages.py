"""Stages of a plan of any problem, with its usual schedule and network.

*Pipelines.* An iteration's stages are a chain, or the convex pieces of a placement, as `pieces.py`
prices them.

*Streams.* The terms of the time per microbatch are divided over passes:

- The t devices of a replica work as one, so a replica is one device here, named after its first
  and last.
- A layer's time is that of both passes. Its forward pass takes the file's share if it has forward
  and backward times, else a third: an assumption that does not change the sum of both, and so not
  the steady state. Recomputation makes the backward pass longer.
- A cut edge costs 2 (c + sync) / B at each end: half in the forward pass, half in the backward.
- The all-reduce of a batch takes 4 (d − 1) w / (d B); without batches (in flight as ``pipedream``),
  a round of d microbatches counts as one.
- Memory: a layer takes `fixed_bytes` and the optimizer's state all the time, and
  `bytes_per_microbatch` for each microbatch in flight.

So an asynchronous schedule runs at the plan's time per microbatch: ``2bw`` with batches, else
``pipedream``.

*Mappings.* Microbatch j runs on one chain of replicas from the first stage to the last: each sends
to the replica of the next stage with which the plan matches it. There are two ways to move data:

- By the mapping's definition (`HostMemory`): a stage is busy for its compute and for the messages
  of its slowest replica, activations down and gradients back; receivers pay nothing, and nothing
  competes. The asynchronous schedule then runs at max T_s / (m R) per microbatch in mode ``both``.
  In ``p2p`` the definition leaves out the all-reduce and in ``allr`` the messages, but both are
  simulated.
- Over the topology (`topology_links`): messages run along their routes beside compute, and those
  that share a link in one direction compete for it. All-reduces take the time of the definition;
  their traffic does not compete with messages.

*Latency.* Every call is a stage, and so is every node on a CPU, with the times of
`runtime.verify.latency`. A call waits for all its inputs, transfers them in, computes, and
transfers its results out, like a stage without overlap. Data from another call on the same
accelerator goes through host memory, too; data from a call on a linked accelerator is a message.
CPUs are an unlimited pool, shown with as many cores as compute at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...instances import (
    TIME_UNITS,
    CallPlacement,
    Cluster,
    DeviceMapping,
    InputError,
    Latency,
    Layers,
    PipelineJob,
    PipelinePlacement,
    Placement,
    Plan,
    ReplicaPlacement,
    Stage,
    StagePlacement,
    TensorSharding,
    Throughput,
    Workload,
    is_iteration,
    is_stream,
    layers_of,
    stage_costs,
)
from ...instances.common.arrays import Floats, Ints
from ...instances.model.stage_costs import accelerator_seconds, device_slowdowns
from ...instances.model.workload import kept_bytes
from ..schedules.actions import Action, Schedule, schedule_of
from ..verify import latency
from ..verify.mapping import link_table, stage_reports
from ..verify.report import CallReport, StageReport
from .network import HostMemory, Links, Network
from .pieces import Passes, check_chain, cut, cut_relayed, price_stages, relay_line, weight_share_of
from .stages import BACKWARD, FORWARD, StageGraph, edges_of, line_of

#: Share of a layer's time for its forward pass, where the file does not say it: an assumption.
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
#: Microbatches that are simulated and run by default, where the plan has none.
DEFAULT_MICROBATCHES = 8


def stages_of_iteration(
    workload: Workload,
    cluster: Cluster,
    problem: PipelineJob,
    solution: PipelinePlacement,
) -> StageGraph:
    """Return the stages of a plan for an iteration; InputError if it cannot be executed."""
    device = solution.device.tolist()
    stages = passes_of(workload, solution.stage, len(solution.devices))
    if problem.split != "contiguous":
        graph = cut(workload, cluster, device)
    elif problem.relayed:
        graph = relay_line(workload, cluster, device, stages)
    else:
        check_chain(workload, solution.stage, "verify the plan")
        waits, present, rank = line_of(len(stages), bool(workload.backward.any()))
        graph = price_stages(workload, cluster, device, stages, present, rank, waits)
    return replace(graph, batch=problem.batch, weight_share=problem.weight_share)


def iteration_schedule(
    problem: PipelineJob, solution: PipelinePlacement, devices: int
) -> str | Schedule:
    """Return an iteration's schedule: its name or, if ``given``, its rows by device."""
    if problem.order is None:
        return problem.schedule_name
    rows: list[Sequence[Action]] = [()] * devices
    for row in problem.order.rows:
        rows[solution.devices[row[0].stage]] = row
    return schedule_of(rows, name=problem.schedule_name, microbatches=problem.batch)


def passes_of(workload: Workload, stage: Ints, count: int) -> list[Passes]:
    """Return the nodes of each stage's forward and backward pass, increasing."""
    sides = ~workload.backward, workload.backward
    return [
        (
            tuple(np.flatnonzero((stage == s) & sides[FORWARD]).tolist()),
            tuple(np.flatnonzero((stage == s) & sides[BACKWARD]).tolist()),
        )
        for s in range(count)
    ]


def stages_of_stream(
    workload: Workload,
    plan: Plan,
    problem: PipelineJob,
    solution: StagePlacement,
) -> StageGraph:
    """Return the stages of a plan for a stream, in O(n + m + devices).

    InputError if the plan was made for another workload, microbatches or bandwidth are not known,
    or a stage has no node or too few devices.
    """
    plan.check_made_for(workload)
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    reports = stream_reports(workload, plan.cluster, problem, solution.stages)
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
        first = int(solution.device[nodes[0]]) if nodes else plan.cluster.size
        needed = stage.replicas * stage.degree
        own = [device.name for device in plan.cluster.devices[first : first + needed]]
        if len(own) < needed:
            raise InputError(f"plan: stage {s} has no node, or too few devices; verify the plan")
        replicas.append(tuple(range(len(names), len(names) + stage.replicas)))
        names += [_group_name(own[d : d + stage.degree]) for d in range(0, needed, stage.degree)]
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
        compute=compute,
        present=present,
        receive=receive,
        send=send,
        edges=tasks,
        payload_bytes=payload_bytes,
        rank=rank,
        weight_bytes=np.array([layers.weight_bytes[c].sum() for c in configurations]),
        activation_bytes=np.array([layers.bytes_per_microbatch[c].sum() for c in configurations]),
        resident_bytes=np.array(
            [r.memory_bytes - r.activation_bytes - r.version_bytes for r in reports]
        ),
        nodes=tuple((stage.nodes, ()) for stage in solution.stages),
        capacity_bytes=np.array(
            [reports[s].capacity_bytes for s, ring in enumerate(replicas) for _ in ring]
        ),
        time_unit=workload.time_unit,
        all_reduce=np.array([r.synchronise * n for r, n in zip(reports, per_batch, strict=True)]),
        batch=None if problem.in_flight == "pipedream" else microbatches,
    )


def forward_time(workload: Workload, layers: Layers, node: int, configuration: int) -> float:
    """Return the time of a configuration's forward pass, in the workload's unit.

    Without recomputation it is a share of the whole time; with recomputation it is the same as in
    the fastest configuration of the node and degree without. If there is none, the whole time is
    that of a forward, a backward and another forward pass.
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


def stream_reports(
    workload: Workload, cluster: Cluster, problem: PipelineJob, stages: Sequence[Stage]
) -> tuple[StageReport, ...]:
    """Return time and memory of each stage of a stream, by definition."""
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    found = []
    for number, stage in enumerate(stages):
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
        across = bandwidth
        near = d * stage.degree <= (problem.server_devices or 0)
        if near and problem.server_bandwidth is not None:
            across = problem.server_bandwidth * TIME_UNITS.get(workload.time_unit, 1.0)
        weights = sum(float(layers.weight_bytes[c]) for c in inside.values())
        accumulated = d if problem.in_flight == "pipedream" else microbatches
        synchronise = 4 * (d - 1) * weights / (d * accumulated) / across

        in_flight = math.ceil(behind / d)
        if problem.in_flight == "gpipe":
            in_flight = math.ceil(microbatches / d)
        activations = in_flight * sum(
            float(layers.bytes_per_microbatch[c]) for c in inside.values()
        )
        fixed = sum(float(layers.fixed_bytes[c]) for c in inside.values())
        copies = {"pipedream": in_flight - 1, "2bw": 1}.get(problem.in_flight, 0)
        found.append(
            StageReport(
                number=number,
                kind=kind.name,
                nodes=tuple(workload.ids[v] for v in stage.nodes),
                configurations=tuple(layers.label[c] for c in stage.configuration),
                recomputed=tuple(
                    workload.ids[v] for v, c in inside.items() if bool(layers.recomputes[c])
                ),
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
        )
    return tuple(found)


def microbatches_and_bandwidth(workload: Workload, problem: PipelineJob) -> tuple[int, float]:
    """Return N and B, in bytes per time unit of the workload: the problem's, else the workload's.

    Without batches (``pipedream``), N is 1 by default; otherwise InputError if one is missing.
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


def stages_of(
    workload: Workload,
    plan: Plan,
    *,
    weight_share: float | None = None,
    relayed: bool | None = None,
) -> StageGraph:
    """Return the stages of a plan: its convex pieces, its calls, or its own stages.

    `weight_share`, the share of a backward pass that computes gradients of weights, is by default
    the plan's, else a half; `relayed`, whether pieces of a placement exchange data with neighbours
    only, is the problem's. InputError if the plan was made for another workload, or cannot be
    executed.
    """
    if relayed and not isinstance(plan.problem, Throughput):
        raise InputError(
            f"relayed: the plan is for {plan.problem.name}; only placements are relayed"
        )
    plan.check_made_for(workload)
    if isinstance(plan.solution, TensorSharding):
        raise InputError("the plan is a sharding: it has no stages; stagecut simulate shows it")
    graph = _stages(workload, plan, relayed=relayed)
    return replace(
        graph, weight_share=weight_share_of(plan) if weight_share is None else weight_share
    )


def _stages(workload: Workload, plan: Plan, *, relayed: bool | None) -> StageGraph:
    match plan.problem, plan.solution:
        case Latency(), CallPlacement(device, call):
            return stages_of_calls(workload, plan.cluster, device, call)
        case PipelineJob() as problem, StagePlacement() as solution:
            return stages_of_stream(workload, plan, problem, solution)
        case DeviceMapping() as problem, ReplicaPlacement() as solution:
            return stages_of_mapping(workload, plan, problem, solution)
        case PipelineJob() as problem, PipelinePlacement() as solution:
            return stages_of_iteration(workload, plan.cluster, problem, solution)
        case Throughput() as problem, _ if problem.relayed if relayed is None else relayed:
            return cut_relayed(workload, plan)
        case _, Placement() as solution:
            return cut(workload, plan.cluster, solution.device.tolist())
        case _:
            raise InputError(
                f"plan: it is for {plan.problem.name}; only placements can be cut into pieces"
            )


def usual_schedule(plan: Plan) -> str | Schedule:
    """Return the schedule with which a plan is simulated by default."""
    if is_stream(plan.problem):
        return plan.problem.in_flight
    if is_iteration(plan.problem):
        return named_schedule(plan, plan.problem.schedule_name)
    if isinstance(plan.problem, DeviceMapping):
        return "gpipe"
    return "single" if isinstance(plan.problem, Latency) else "1f1b"


def named_schedule(plan: Plan, name: str) -> str | Schedule:
    """Return a schedule by its name, or the plan's own rows if its schedule is ``given``."""
    problem, solution = plan.problem, plan.solution
    if is_iteration(problem) and isinstance(solution, PipelinePlacement):
        own = iteration_schedule(problem, solution, plan.cluster.size)
        return own if name == problem.schedule else name
    return name


def schedule_to_run(plan: Plan, schedule: str | None, microbatches: int | None) -> tuple[str, int]:
    """Return the schedule and microbatches of a run: those asked for, else the plan's.

    A plan for an iteration runs as planned; InputError if something else is asked for. The default
    of mappings is ``gpipe`` and the plan's microbatches for each replica of the pipeline; that of
    others is ``1f1b`` and 8.
    """
    if isinstance(plan.problem, DeviceMapping):
        return schedule or "gpipe", microbatches or plan.problem.microbatches
    if not is_iteration(plan.problem):
        return schedule or "1f1b", microbatches or DEFAULT_MICROBATCHES
    planned = plan.problem.schedule_name, plan.problem.batch
    for what, asked, own in zip(
        ("schedule", "microbatches"), (schedule, microbatches), planned, strict=True
    ):
        if asked is not None and asked != own:
            raise InputError(
                f"{what}: {asked}; the plan was made for {own}: leave it out, or plan with "
                f"--{what} {asked}"
            )
    return planned


def usual_network(plan: Plan) -> Network:
    """Return the network with which a plan is simulated by default.

    For mapped plans it has the links of their topology, else the transfer costs of the problem,
    beside compute if the problem overlaps them.
    """
    if isinstance(plan.problem, DeviceMapping) and isinstance(plan.solution, ReplicaPlacement):
        return topology_links(plan.problem, plan.solution)
    return HostMemory(
        (isinstance(plan.problem, Throughput) or is_iteration(plan.problem))
        and plan.problem.overlap
    )


def stages_of_mapping(
    workload: Workload,
    plan: Plan,
    problem: DeviceMapping,
    solution: ReplicaPlacement,
) -> StageGraph:
    """Return the stages of a mapped plan, priced by the mapping's definition.

    InputError if the plan was made for another workload, or the workload lacks times or sizes.
    """
    plan.check_made_for(workload)
    count, unit = problem.stages, TIME_UNITS[workload.time_unit]
    costs = stage_costs(workload, solution.stage, count)
    side = workload.backward.astype(np.int64)
    compute, receive, send = (np.zeros((count, 2)) for _ in range(3))
    np.add.at(compute, (solution.stage, side), accelerator_seconds(workload) / unit)
    slow = device_slowdowns(plan.cluster)
    compute *= slow[solution.slots].max(axis=1, keepdims=True)
    trains = bool(workload.backward.any())
    replicas = chains(solution)
    routes = problem.topology.routes
    waits, present, rank = line_of(count, trains)
    moved = dict.fromkeys(waits, 0.0)
    for s in range(count - 1):
        sizes = float(costs.forward_bytes[s]), float(costs.backward_bytes[s] * problem.gradients)
        moved[2 * s, 2 * s + 2] = sizes[FORWARD]
        if trains:
            moved[2 * s + 3, 2 * s + 1] = sizes[BACKWARD]
        pairs = np.array([replicas[s], replicas[s + 1]])
        latency = routes.latency_s[pairs[0], pairs[1]]
        bandwidth = routes.bytes_per_s[pairs[0], pairs[1]]
        there, back = ((latency + size / bandwidth) * (size > 0) / unit for size in sizes)
        slowest = int((there + back).argmax())
        send[s, FORWARD], receive[s, BACKWARD] = there[slowest], back[slowest]
    edges, payload_bytes = edges_of(moved)
    weight, resident, activation = kept_bytes(workload)
    reports = stage_reports(costs, problem, solution.slots, solution.sends_to, slow)

    def summed(values: Floats) -> Floats:
        return np.bincount(solution.stage, values, count).astype(np.float64)

    return StageGraph(
        devices=problem.topology.devices,
        replicas=replicas,
        compute=compute,
        present=present,
        receive=receive,
        send=send,
        edges=edges,
        payload_bytes=payload_bytes,
        rank=rank,
        weight_bytes=summed(weight),
        activation_bytes=summed(activation),
        resident_bytes=summed(resident),
        nodes=tuple(passes_of(workload, solution.stage, count)),
        capacity_bytes=np.array(
            [plan.cluster.kinds[device.kind].memory_bytes for device in plan.cluster.devices]
        ),
        time_unit=workload.time_unit,
        all_reduce=np.array([report.allreduce_s / unit for report in reports]),
        batch=problem.microbatches * problem.replicas,
    )


def chains(solution: ReplicaPlacement) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each stage so that the r-th sends to the r-th of the next stage."""
    places = np.arange(solution.slots.shape[1])
    replicas = [solution.slots[0]]
    for sends, row in zip(solution.sends_to, solution.slots[1:], strict=True):
        places = sends[places]
        replicas.append(row[places])
    return tuple(tuple(row.tolist()) for row in replicas)


def topology_links(problem: DeviceMapping, solution: ReplicaPlacement) -> Links:
    """Return the topology as a network, for the messages between the plan's stages.

    Links carry data in both directions at once; messages that share a link in one direction get
    max–min fair rates. O(D² + messages · hops), D the devices of the topology.
    """
    topology = problem.topology
    table = link_table(topology)
    names = [*topology.devices, *(f"switch {w}" for w in range(topology.switches))]
    number: dict[tuple[int, int], int] = {}
    routes: list[tuple[int, ...]] = []
    route = np.full((topology.size, topology.size), -1, np.int64)
    rows = chains(solution)
    for here, there in pairwise(rows):
        for pair in zip(here, there, strict=True):
            for a, b in (pair, pair[::-1]):
                hops = tuple(topology.routes.hops(a, b))
                route[a, b] = len(routes)
                routes.append(tuple(number.setdefault(hop, len(number)) for hop in hops))
    return Links(
        route,
        np.array([table[hop][0] for hop in number]),
        np.array([table[hop][1] for hop in number]),
        sharing="fair",
        routes=tuple(routes),
        names=tuple(f"{names[a]} → {names[b]}" for a, b in number),
    )


def stages_of_calls(workload: Workload, cluster: Cluster, device: Ints, call: Ints) -> StageGraph:
    """Return the stages of a latency plan; simulate them with the schedule ``single``.

    `call` is the number of each node's call on its accelerator, in the order of execution; −1 on
    CPUs. InputError if the calls cannot be executed.
    """
    import networkx as nx

    placement = CallPlacement(device, call)
    report = latency.check(workload, cluster, Latency(), placement)
    if np.isinf(report.objective):
        raise InputError(f"plan: {report.violations[-1]}; verify the plan")
    nodes = [[workload.index[name] for name in one.nodes] for one in report.calls]
    count = len(nodes)
    of = np.zeros(workload.n, dtype=np.int64)
    for k, own in enumerate(nodes):
        of[own] = k
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from((a, b) for a, b in of[workload.edges].tolist() if a != b)
    edges = sorted(graph.edges)
    numbered = [k for k in range(count) if report.calls[k].number]
    numbered.sort(key=lambda k: (report.calls[k].device, report.calls[k].number))
    graph.add_edges_from(
        (a, b) for a, b in pairwise(numbered) if report.calls[a].device == report.calls[b].device
    )
    order = list(nx.lexicographical_topological_sort(graph, lambda k: report.calls[k].start))
    lanes, names = _lanes(cluster, [report.calls[k] for k in order])
    lane = dict(zip(order, lanes, strict=True))
    capacity = [cluster.kinds[one.kind].memory_bytes for one in cluster.devices]
    capacity += [np.inf] * (len(names) - len(capacity))
    compute, receive, send = (np.zeros((count, 2)) for _ in range(3))
    compute[:, FORWARD] = [one.compute for one in report.calls]
    receive[:, FORWARD] = [one.transfer_in for one in report.calls]
    send[:, FORWARD] = [one.transfer_out for one in report.calls]
    present = np.zeros((count, 2), np.bool_)
    present[:, FORWARD] = True
    rank = np.full((count, 2), count)
    rank[order, FORWARD] = np.arange(count)
    memory = np.array([workload.memory_bytes[own].sum() for own in nodes])
    return StageGraph(
        devices=tuple(names),
        replicas=tuple((lane[k],) for k in range(count)),
        compute=compute,
        present=present,
        receive=receive,
        send=send,
        edges=2 * np.array(edges, dtype=np.int64).reshape(-1, 2),
        payload_bytes=np.zeros(len(edges)),
        rank=rank.ravel(),
        weight_bytes=memory,
        activation_bytes=np.zeros(count),
        resident_bytes=memory,
        nodes=tuple((tuple(own), ()) for own in nodes),
        capacity_bytes=np.array(capacity),
        time_unit=workload.time_unit,
    )


def _lanes(cluster: Cluster, calls: Sequence[CallReport]) -> tuple[list[int], list[str]]:
    """Return the lane of each call and CPU node, in order of start, and the names of lanes."""
    names = [one.name for one in cluster.devices]
    lanes = []
    free: list[float] = []  # when each core shown is free again
    for one in calls:
        if one.number:
            lanes.append(one.device)
            continue
        core = next((c for c, until in enumerate(free) if until <= one.start), len(free))
        free[core : core + 1] = [one.finish]
        lanes.append(cluster.size + core)
    return lanes, [*names, *(f"pool core {c}" for c in range(len(free)))]
