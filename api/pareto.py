"""Pareto fronts of training plans: time against devices, and against memory per device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..instances import Cluster, InputError, PipelineJob, StagePlacement, Workload
from ..runtime import evaluate
from ..solvers import Limits
from .solve import solve

if TYPE_CHECKING:
    import pandas as pd


def pareto(
    workload: Workload,
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
        With layer configurations; see `training_layers`.
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

    cluster = cluster or workload.cluster
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    own = [kind for kind in cluster.kinds if kind.count and not kind.host]
    if len(own) != 1:
        raise InputError("pareto: the cluster must have one kind of accelerators")
    problem = problem or PipelineJob()
    rows = []
    for count in devices if devices is not None else (own[0].count,):
        for memory in memory_bytes if memory_bytes is not None else (own[0].memory_bytes,):
            part = Cluster((replace(own[0], count=count, memory_bytes=memory),))
            result = solve(workload, part, problem, method=method, limits=limits)
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
                report = evaluate(workload, part, problem, result.plan.solution)
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
