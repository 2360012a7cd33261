"""The stages of a plan for an iteration: a chain, or the convex pieces of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...instances import Cluster, PipelinePlacement, TrainingJob, Workload
from ..schedules.actions import Action, Schedule, schedule_of
from .pieces import Passes, cut, price_stages
from .relay import line_of, relay_line
from .stages import StageGraph


def stages_of_iteration(
    workload: Workload,
    cluster: Cluster,
    problem: TrainingJob,
    solution: PipelinePlacement,
    *,
    weight_share: float | None = None,
) -> StageGraph:
    """Return the stages of a plan for an iteration.

    Parameters
    ----------
    weight_share
        The part of a backward pass that computes gradients of weights; default: the problem's.

    Raises
    ------
    InputError
        If the plan cannot be executed.
    """
    device = solution.device.tolist()
    share = problem.weight_share if weight_share is None else weight_share
    if problem.split != "contiguous":
        graph = cut(workload, cluster, device, weight_share=share)
    elif problem.relayed:
        stages = passes_of(workload, solution)
        graph = relay_line(workload, cluster, device, stages, weight_share=share)
    else:
        stages = passes_of(workload, solution)
        waits, present, rank = line_of(len(stages), bool(workload.backward.any()))
        graph = price_stages(workload, cluster, device, stages, present, rank, share, waits)
    return replace(graph, batch=problem.batch)


def iteration_schedule(
    problem: TrainingJob, solution: PipelinePlacement, devices: int
) -> str | Schedule:
    """Return the schedule by its name; if it is given, its rows on the devices of their stages.

    Parameters
    ----------
    devices
        Of the cluster.
    """
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
