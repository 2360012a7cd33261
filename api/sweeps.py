"""Sweeps: the best plan under each schedule, and for each number of devices and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances import (
    Cluster,
    InputError,
    PipelineJob,
    PipelineSchedule,
    Plan,
    Split,
    StagePlacement,
    Workload,
)
from ..instances.common.choices import NAMED_SCHEDULES
from ..runtime import evaluate
from ..runtime.simulate.simulator import simulate
from ..solvers import DEFAULT_LIMITS, Limits, Progress, Result
from .common import with_defaults
from .solve import solve

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("schedule", "chunks", "makespan", "bound", "gap", "bubble", "peak_bytes", "fits",
           "status", "reason", "plan")  # fmt: skip


def rank_schedules(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: PipelineJob | None = None,
    *,
    microbatches: int | None = None,
    schedules: Sequence[PipelineSchedule | str] | None = None,
    chunks: int | None = None,
    method: str = "auto",
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> pd.DataFrame:
    """Plan an iteration under every schedule, at the memory that there is.

    Parameters
    ----------
    workload, cluster, method, on_progress
        As in `solve`. The workload has a backward pass.
    problem
        The problem, whose schedule is replaced.
    microbatches
        In place of a problem: `PipelineJob(microbatches)`.
    schedules
        Default: all that the problem can have.
    chunks
        Stages per device of ``interleaved``; default: 2.
    limits
        For all schedules together; what one leaves of the time is the others'.

    Returns
    -------
    pandas.DataFrame
        One row per schedule, those that fit first, the fastest first: schedule, chunks, makespan,
        bound and gap (of plans for the memory), bubble, peak_bytes (of the device that comes
        closest to its memory, or exceeds it most), fits, status, reason (why there is no plan) and
        plan. Where nothing fits or was found, makespan, bubble and peak_bytes are those of a plan
        for unlimited memory, if there is one, and plan is None.

    Raises
    ------
    InputError
        If neither problem nor microbatches are given, or the workload has no backward pass.

    Examples
    --------
    >>> import stagecut
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> limits = stagecut.Limits(gap=0.1)
    >>> names = ["1f1b", "zb-h1"]
    >>> table = rank_schedules(
    ...     "resnet50-training", cluster, microbatches=4, schedules=names, limits=limits
    ... )
    >>> table[["schedule", "chunks", "fits"]]
      schedule  chunks  fits
    0    zb-h1       1  True
    1     1f1b       1  True
    """
    import pandas as pd

    if problem is None and microbatches is None:
        raise InputError("schedules: give a problem, or microbatches")
    workload, cluster, posed = with_defaults(
        workload, cluster, problem or PipelineJob(microbatches)
    )
    assert isinstance(posed, PipelineJob)
    if not workload.backward.any():
        raise InputError(
            f"{workload.name}: it has no backward pass, without which schedules do not differ"
        )
    limits = limits or DEFAULT_LIMITS[posed.name]
    asked = _problems(posed, schedules or NAMED_SCHEDULES, chunks)
    begun = time.monotonic() if limits.since is None else limits.since
    rows = []
    for i, one in enumerate(asked):
        part = limits
        if limits.seconds is not None:
            left = limits.seconds - (time.monotonic() - begun)
            part = replace(limits, seconds=max(left / (len(asked) - i), 0.1), since=None)
        result = solve(workload, cluster, one, method=method, limits=part, on_progress=on_progress)
        rows.append(_row(workload, cluster, one, result, part, method))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(
        ["fits", "makespan"], ascending=[False, True], kind="stable", ignore_index=True
    )


def _problems(
    problem: PipelineJob, schedules: Sequence[PipelineSchedule | str], chunks: int | None
) -> list[PipelineJob]:
    """Return the problem under each schedule that it can have."""
    chain = problem.split is Split.CONTIGUOUS and not problem.relayed
    return [
        replace(
            problem,
            schedule=name,
            chunks=chunks if name == PipelineSchedule.INTERLEAVED else None,
            actions=problem.actions if name == PipelineSchedule.GIVEN else (),
        )
        for name in schedules
        if chain or name != PipelineSchedule.INTERLEAVED
    ]


def _row(
    workload: Workload,
    cluster: Cluster,
    problem: PipelineJob,
    result: Result,
    limits: Limits,
    method: str,
) -> dict[str, object]:
    row: dict[str, object] = {
        "schedule": problem.schedule,
        "chunks": problem.chunks_per_device,
        "makespan": math.inf,
        "bound": result.bound,
        "gap": result.gap,
        "bubble": math.nan,
        "peak_bytes": math.nan,
        "fits": result.plan is not None,
        "status": result.status,
        "reason": result.reason,
        "plan": result.plan,
    }
    shown = result.plan
    if shown is None:
        kinds = tuple(replace(kind, memory_bytes=math.inf) for kind in cluster.kinds)
        roomy = replace(cluster, kinds=kinds)
        shown = solve(workload, roomy, problem, method=method, limits=limits).plan
    if shown is not None:
        row |= {"makespan": shown.objective, **_simulated(workload, shown, cluster)}
    return row


def _simulated(workload: Workload, plan: Plan, cluster: Cluster) -> dict[str, object]:
    run = simulate(workload, plan)
    sizes = [
        (m.peak / max(cluster.kinds[device.kind].memory_bytes, 1e-300), m.peak)
        for m, device in zip(run.memory, cluster.devices, strict=True)
    ]
    return {"bubble": run.bubble, "peak_bytes": max(sizes)[1]}


def pareto(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: PipelineJob | None = None,
    *,
    devices: Iterable[int] | None = None,
    memory_bytes: Iterable[float] | None = None,
    method: str = "auto",
    limits: Limits | None = None,
) -> pd.DataFrame:
    """Plan for every number of devices and every memory per device.

    Parameters
    ----------
    workload
        A workload with layer configurations (see `training_layers`), its file or name.
    cluster
        Accelerators of one kind; default: the workload's suggestion.
    problem
        Default: `PipelineJob()`.
    devices, memory_bytes
        Values to plan for; default: the cluster's own. Every pair is planned.
    method, limits
        As in `solve`, for each plan.

    Returns
    -------
    pandas.DataFrame
        One row per pair: devices, memory_bytes, objective and bound (in the workload's time
        unit), gap, devices_used, memory_used_bytes, stages, status, and ``efficient``: whether no
        other row has at most as many devices, as much memory and time, and less of one. What no
        plan fits has objective `inf`.

    Raises
    ------
    InputError
        If the cluster has several kinds of accelerators, or none is known.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    >>> cluster = stagecut.accelerators_and_cpus(4, memory_bytes=80e9)
    >>> problem = stagecut.PipelineJob(microbatches=8, bandwidth=1e8)
    >>> front = stagecut.pareto(workload, cluster, problem, devices=(2, 4), method="equal-stages")
    >>> front["devices"].tolist()
    [2, 4]
    """
    import pandas as pd

    workload, cluster, posed = with_defaults(workload, cluster, problem or PipelineJob())
    own = [kind for kind in cluster.kinds if kind.count and not kind.host]
    if len(own) != 1:
        raise InputError("pareto: the cluster must have one kind of accelerators")
    rows = []
    for count in devices if devices is not None else (own[0].count,):
        for memory in memory_bytes if memory_bytes is not None else (own[0].memory_bytes,):
            part = Cluster((replace(own[0], count=count, memory_bytes=memory),))
            result = solve(workload, part, posed, method=method, limits=limits)
            row: dict[str, object] = {
                "devices": count,
                "memory_bytes": memory,
                "objective": float("inf") if result.plan is None else result.plan.objective,
                "bound": result.bound,
                "gap": result.gap,
                "status": result.status,
            }
            if result.plan is not None and isinstance(result.plan.solution, StagePlacement):
                stages = result.plan.solution.stages
                report = evaluate(workload, part, posed, result.plan.solution)
                row["stages"] = len(stages)
                row["devices_used"] = sum(stage.replicas * stage.degree for stage in stages)
                row["memory_used_bytes"] = max(stage.memory_bytes for stage in report.stages)
            rows.append(row)
    columns = ["devices", "memory_bytes", "objective", "bound", "gap", "status", "stages",
               "devices_used", "memory_used_bytes"]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    points = list(zip(frame.devices, frame.memory_bytes, frame.objective, strict=True))
    frame["efficient"] = [
        point[2] < float("inf")
        and not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )
        for point in points
    ]
    return frame
