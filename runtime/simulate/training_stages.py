"""A training plan as stages for the simulator: replicas, tensor degree, recomputation.

What the plan's problem defines per microbatch is taken apart:

- The t devices of a replica work as one, so a replica is one device here, named after its first
  and last.
- A layer's time is forward and backward together. Its forward takes the file's own share where it
  names forward and backward times, else a third. Recomputation makes the backward longer.
- A cut edge costs 2 (c + sync) / B at each end: half in the forward pass, half in the backward.
- The all-reduce of a batch takes 4 (d − 1) w / (d B); in PipeDream's asynchronous pipeline, which
  has no batches, a round of d microbatches is one.
- Memory: a layer takes `fixed_bytes` and the optimizer's state all the time, and
  `bytes_per_microbatch` for each microbatch in flight.

So the asynchronous schedules run at the plan's time per microbatch: ``2bw`` for problems with
batches, ``pipedream`` for those without.
"""

from __future__ import annotations

import numpy as np

from ...instances import Layers, Plan, StagePlacement, Training, Workload, layers_of
from ...instances.common.arrays import frozen
from ..verify.training import check, microbatches_and_bandwidth
from .stages import BACKWARD, FORWARD, StageGraph

#: The forward's share of a layer's time where the file does not say it.
FORWARD_SHARE = 1 / 3


def stages_of_training(
    workload: Workload,
    plan: Plan,
    problem: Training,
    solution: StagePlacement,
    *,
    weight_share: float = 0.5,
) -> StageGraph:
    """Return the stages of a training plan.

    Raises
    ------
    InputError
        If the plan was made for another workload, or microbatches or bandwidth are not known.

    Notes
    -----
    O(n + m + devices).
    """
    plan.check_made_for(workload)
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    reports = check(workload, plan.cluster, problem, solution).stages
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
    pairs = sorted(edges)
    rank = np.zeros(2 * count, np.int64)
    rank[0::2], rank[1::2] = np.arange(count), 2 * count - 1 - np.arange(count)
    per_batch = [r.replicas if problem.schedule == "pipedream" else microbatches for r in reports]
    configurations = [list(stage.configuration) for stage in solution.stages]
    return StageGraph(
        devices=tuple(names),
        replicas=tuple(replicas),
        compute=frozen(compute, np.float64),
        present=frozen(np.ones((count, 2)), np.bool_),
        receive=frozen(receive, np.float64),
        send=frozen(send, np.float64),
        edges=frozen(np.array(pairs, np.int64).reshape(-1, 2), np.int64),
        payload_bytes=frozen([edges[pair] for pair in pairs], np.float64),
        rank=frozen(rank, np.int64),
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
        weight_share=weight_share,
        time_unit=workload.time_unit,
        all_reduce=frozen(
            [r.synchronise * n for r, n in zip(reports, per_batch, strict=True)], np.float64
        ),
        batch=None if problem.schedule == "pipedream" else microbatches,
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
