"""Output of `stagecut solve --schedule all`: a ranking of schedules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...instances import Cluster, PipelineJob, Workload
from ..common.clock import STARTED
from ..common.console import INFEASIBLE, NO_PLAN, OUT, end, print_json, progress

if TYPE_CHECKING:
    from ...solvers import Limits


def rank(
    workload: Workload,
    cluster: Cluster,
    problem: PipelineJob,
    chunks: int | None,
    method: str,
    limits: Limits,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Plan an iteration under every schedule, show the table, and write the best plan that fits."""
    from ...api.rank_schedules import rank_schedules
    from ...instances.formats.files import save
    from .pipeline import schedule_table, schedules_json

    with progress(workload.time_unit) as on_progress:
        ranked = rank_schedules(
            workload,
            cluster,
            problem,
            chunks=chunks,
            method=method,
            limits=replace(limits, since=STARTED),
            on_progress=on_progress,
        )
    best = ranked.iloc[0]
    if best["fits"] and output is not None:
        save(best["plan"], output, workload)
    if as_json:
        rows = schedules_json(ranked)
        head = {"workload": workload.name, "problem": problem.name, "time_unit": workload.time_unit}
        print_json({**head, "microbatches": problem.batch, "schedules": rows})
    else:
        title = f"{workload.name}: {problem.batch} microbatches"
        unit = "" if workload.time_unit == "unspecified" else f" ({workload.time_unit})"
        OUT.print(schedule_table(ranked, title, unit))
        for row in ranked[~ranked["fits"].astype(bool)].to_dict("records"):
            why = row["reason"] or "no plan found that fits; what is shown needs more memory"
            OUT.print(f"{row['schedule']}: {why}", highlight=False, soft_wrap=True)
        if best["fits"] and output is not None:
            OUT.print(f"written: {output}, {best['schedule']}", highlight=False, soft_wrap=True)
    if not best["fits"]:
        infeasible = (ranked["status"] == "infeasible").all()
        end(INFEASIBLE if infeasible else NO_PLAN)
    end(0)
