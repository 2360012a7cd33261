"""Chains of stages that are executed: each sends its live set of tensors to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...instances import InputError, Plan, ReplicaPlacement, StagePlacement, Workload
from ...instances.model.contiguity import representatives
from ..schedules import Schedule, make_schedule, validate
from ..schedules.actions import schedule_of
from ..simulate.pieces import Passes, forward_pieces_of, groups_of, relay_line, weight_share_of
from ..simulate.plan_stages import chains, stages_of
from ..simulate.stages import BACKWARD, StageGraph

#: Schedules that finish a batch before the next one begins.
SYNCHRONOUS = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
#: Schedules with weight versions.
ASYNCHRONOUS = ("pipedream", "2bw")


def executed_stages(
    workload: Workload, plan: Plan, *, weight_share: float | None = None
) -> StageGraph:
    """Return the stages of a plan as the runtime executes them, relayed data included.

    Pieces are in the order of `forward_pieces_of`, and each waits for the one before it alone:
    tensors that are needed later pass through. Tensors that a backward pass needs of its forward
    pass stay on their device. The r-th replica of a mapping's stage sends to the r-th of the next.
    A backward node runs with the piece of its forward node. Stages of a training plan are those
    that it was planned with. `weight_share` is the part of a backward pass that computes gradients
    of weights; default: the plan's, else a half.
    """
    if isinstance(plan.solution, StagePlacement):
        return stages_of(workload, plan, weight_share=weight_share)
    weight_share = weight_share_of(plan) if weight_share is None else weight_share
    groups, order = groups_of(plan)
    pieces = forward_pieces_of(workload, groups, order)
    piece_of = _pieces_of_all(workload, pieces, groups)
    passes: list[Passes] = []
    for p in range(len(pieces)):
        own = np.flatnonzero(piece_of == p)
        backward = workload.backward[own]
        passes.append((tuple(own[~backward].tolist()), tuple(own[backward].tolist())))
    u, v = workload.edges.T
    side, up = workload.backward[u], piece_of[v] - piece_of[u]
    handed = (side == workload.backward[v]) & (np.where(side, -up, up) >= 0)
    apart = replace(workload, edges=workload.edges[handed])
    stages = relay_line(apart, plan.cluster, plan.placement.tolist(), passes)
    if isinstance(plan.solution, ReplicaPlacement):
        stages = replace(stages, replicas=chains(plan.solution))
    return replace(stages, weight_share=weight_share)


def executed_schedule(
    schedule: str | Schedule,
    stages: StageGraph,
    microbatches: int,
    devices: Sequence[int] | None = None,
) -> Schedule:
    """Return a validated schedule, given or by its name, with a row per device in use.

    Of inference it has the forward passes alone. Raises InputError if it is asynchronous, or does
    not fit the stages.
    """
    if isinstance(schedule, Schedule):
        name, whole = schedule.name, schedule
    elif schedule not in SYNCHRONOUS:
        raise InputError(f"schedule: {schedule!r} is not one of {', '.join(SYNCHRONOUS)}")
    else:
        name, trains = schedule, bool(stages.present[:, BACKWARD].any())
        whole = make_schedule(name if trains else "inference", stages, microbatches)
    validate(whole, stages)
    return schedule_of(
        [whole.of(d) for d in devices or ranks_of(stages)], name=name, microbatches=microbatches
    )


def ranks_of(stages: StageGraph) -> list[int]:
    """Return the device of each rank: the devices in use, in their order."""
    return sorted({d for devices in stages.replicas for d in devices})


def _pieces_of_all(
    workload: Workload, pieces: Sequence[Sequence[int]], group: Sequence[int]
) -> np.ndarray:
    """Return the piece of every node, shape (n,): of a backward node that of its forward node."""
    piece_of = np.full(workload.n, -1, np.int64)
    for p, members in enumerate(pieces):
        piece_of[list(members)] = p
    stands_for = representatives(workload).tolist()
    last = {group[members[0]]: p for p, members in enumerate(pieces)}
    for v in np.flatnonzero(workload.backward).tolist():
        before = [u for u in workload.predecessors[v] if not workload.backward[u]]
        own = [int(piece_of[u]) for u in (*before, stands_for[v]) if group[u] == group[v]]
        piece_of[v] = max((p for p in own if p >= 0), default=last.get(group[v], len(pieces) - 1))
    return piece_of
