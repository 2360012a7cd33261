"""Output of pipelines: stages, speed-up, bubble, and the ranking of `--schedule all`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...api.gain import MAX_MICROBATCHES, BreakEven, Gain, break_even, gain
from ...instances import Cluster, PipelineJob, PipelinePlacement, Workload, is_iteration
from ...runtime import Report
from ...runtime.simulate.simulator import simulate
from ...solvers import Result
from ..common.console import (
    INFEASIBLE,
    NO_PLAN,
    OUT,
    end,
    fold_titles,
    new_table,
    print_json,
    progress,
    show_bytes,
    show_count,
    show_gap,
    show_percent,
)

if TYPE_CHECKING:
    import pandas as pd

    from ...solvers import Limits


#: Part of the time of a search that the comparison with contiguous plans may take, and its least
#: and most seconds; after a search that its time limit ended it is that part, if it is so much.
SHARE, LEAST_S, MOST_S, WORTH_S = 0.05, 3.0, 6.0, 1.0


@dataclass(frozen=True)
class Facts:
    """Speed-up, bubble and break-even of a plan."""

    gain: Gain  # over one device
    # of an iteration: the share of the devices' time in which they are idle
    bubble: float | None = None
    # for how many microbatches a plan of least max-load is the right one; None if that took too
    # long, and for what is no such plan
    right: BreakEven | None = None
    streams: bool = False  # whether that is to be said


def facts_of(workload: Workload, result: Result, *, objective_given: bool) -> Facts | None:
    """Return the facts of a result's plan; None for other problems, and without a plan.

    A user who asked for this objective need not be told what it is good for.
    """
    gained = gain(workload, result)
    if gained is None or result.plan is None:
        return None
    if is_iteration(result.plan.problem):
        return Facts(gained, simulate(workload, result.plan).bubble)
    if objective_given or not workload.backward.any():
        return Facts(gained)
    right, seconds = None, min(SHARE * result.seconds, MOST_S)
    if result.limit != "time":
        seconds = max(seconds, LEAST_S)
    if result.limit != "interrupt" and seconds >= WORTH_S:
        right = break_even(workload, result.plan, seconds)
    return Facts(gained, None, right, streams=True)


def facts_json(facts: Facts, result: Result) -> dict[str, Any]:
    """Return the facts as an object for `--json`."""
    assert result.plan is not None
    answer: dict[str, Any] = {
        "one_device": facts.gain.one_device,
        "speed_up": facts.gain.speed_up,
        "no_gain_because": facts.gain.reason,
    }
    problem, solution = result.plan.problem, result.plan.solution
    if is_iteration(problem) and isinstance(solution, PipelinePlacement):
        answer |= {
            "schedule": problem.schedule,
            "microbatches": problem.batch,
            "per_microbatch": result.plan.objective / problem.batch,
            "bubble": facts.bubble,
            "stages": list(solution.devices),
        }
    if facts.right is not None:
        answer["right_from_microbatches"] = facts.right.microbatches
        answer["over_memory_in_iteration"] = facts.right.over_memory
    return answer


def facts_rows(facts: Facts, unit: str) -> dict[str, str]:
    """Return the lines below a table of devices, by name."""
    rows = {}
    if math.isfinite(facts.gain.speed_up):
        rows["speed-up"] = facts.gain.text(unit)
    if facts.bubble is not None:
        rows["bubble"] = f"{show_percent(facts.bubble)} of the time of the devices in use"
    if facts.streams:
        rows["right for"] = _right_for(facts.right)
    return rows


def _right_for(right: BreakEven | None) -> str:
    """Return the line that says for how many microbatches a plan of least max-load is right."""
    if right is None:
        return "streams of microbatches without end; plan an iteration with --microbatches"
    if right.over_memory:
        return (
            f"no iteration under {right.schedule}: {right.over_memory}; "
            "plan for yours with --microbatches"
        )
    if right.microbatches is None:
        most = f"up to {MAX_MICROBATCHES} microbatches"
        text = f"streams without end; {most} a contiguous plan is faster"
    elif right.microbatches == 1:
        return f"iterations of any number of microbatches under {right.schedule}"
    else:
        text = f"{right.microbatches} microbatches and more; for fewer a contiguous plan is faster"
    return f"{text} under {right.schedule}: plan for yours with --microbatches"


def iteration_table(
    report: Report, problem: PipelineJob, solution: PipelinePlacement, title: str, of_unit: str
) -> Table:
    """Return the table of devices in the order of their first stages; times per microbatch."""
    numbers: dict[int, list[int]] = {}
    for s, d in enumerate(solution.devices):
        numbers.setdefault(d, []).append(s)
    chain = problem.split == "contiguous"
    first = "stages, device" if problem.chunks_per_device > 1 else "stage, device"
    titles = ("nodes", "forward + backward", f"load{of_unit}", "peak memory", "of")
    table = new_table(title, first if chain else "device", titles)
    most = max((device.load for device in report.devices), default=0.0)
    idle = [d for d in range(len(report.devices)) if d not in numbers]
    for d in [*numbers, *idle]:
        device = report.devices[d]
        stages = f"{', '.join(map(str, numbers.get(d, ['–'])))}  " if chain else ""
        table.add_row(
            f"{stages}{device.name}",
            str(len(device.nodes)),
            f"{device.forward:.4g} + {device.backward:.4g}",
            f"{device.load:.5g}",
            show_bytes(device.memory_bytes),
            show_bytes(device.capacity_bytes),
            style="bold" if device.load == most else "",
        )
    fold_titles(table)
    return table


def schedule_table(ranked: pd.DataFrame, title: str, of_unit: str) -> Table:
    """Return the table of schedules, the best first."""
    titles = (f"makespan{of_unit}", "bound", "gap", "bubble", "peak memory", "fits")
    table = new_table(title, "schedule", titles)
    for row in ranked.to_dict("records"):
        fits, known = bool(row["fits"]), math.isfinite(row["makespan"])
        table.add_row(
            str(row["schedule"]) + (f" × {row['chunks']}" if row["chunks"] > 1 else ""),
            f"{row['makespan']:.6g}" if known else "",
            f"{row['bound']:.6g}" if fits else "",
            show_gap(row["gap"]) if fits else "",
            show_percent(row["bubble"]) if known else "",
            show_bytes(row["peak_bytes"]) if known else "",
            "yes" if fits else "no" if row["status"] == "infeasible" else "?",
        )
    fold_titles(table)
    return table


def schedules_json(ranked: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the objects for `--json` of each schedule."""
    rows = ranked.drop(columns="plan").to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


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

    with progress(workload.time_unit) as on_progress:
        ranked = rank_schedules(
            workload,
            cluster,
            problem,
            chunks=chunks,
            method=method,
            limits=limits,
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
        title = f"{workload.name}: {show_count(problem.batch, 'microbatch')}"
        unit = "" if workload.time_unit == "unspecified" else f" ({workload.time_unit})"
        OUT.print(schedule_table(ranked, title, unit))
        for row in ranked[~ranked["fits"].astype(bool)].to_dict("records"):
            why = row["reason"] or "no plan found that fits; what is shown needs more memory"
            OUT.say(f"{row['schedule']}: {why}")
        if best["fits"] and output is not None:
            OUT.say(f"written: {output}, {best['schedule']}")
    if not best["fits"]:
        infeasible = (ranked["status"] == "infeasible").all()
        end(INFEASIBLE if infeasible else NO_PLAN)
    end(0)
