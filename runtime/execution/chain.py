"""Chains of stages as executed: each sends its live tensors to the next."""

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

#: Schedules that are one batch after the other.
SYNCHRONOUS = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
#: Schedules with weight versions.
ASYNCHRONOUS = ("pipedream", "2bw")


def executed_stages(
    workload: Workload, plan: Plan, *, weight_share: float | None = None
) -> StageGraph:
    """Return the stages of a plan as the runtime executes them, relayed data included.

    Pieces are numbered as by `pieces.cut`, or as the plan orders them, but each waits for the one
    before it alone: what is needed later passes through. What a backward pass needs of its forward
    pass stays where it is. The r-th replica of a mapping's stage sends to the r-th of the next. A
    backward node runs with the forward piece that it undoes. Stages of a training plan are those
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
    """Return a schedule, given or by its name, a row per device in use, checked before it runs.

    Inference takes a schedule's forward passes alone, whatever its name. Raises InputError if it
    is no schedule that runs one batch after the other.
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
    """Return the piece of every node, shape (n,): of a backward node that which it undoes."""
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
