"""`stagecut verify`: check a plan from the definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..instances import Plan, UncheckedError, Workload
from ..instances.formats.placement_json import is_split
from ..instances.formats.source import read_source
from ..instances.model.problem import objective_unit
from .common import options
from .common.console import (
    OUT,
    UNCHECKED,
    end,
    print_json,
    show_bytes,
    show_count,
    show_gap,
    show_time,
)
from .common.pose import named_plan

if TYPE_CHECKING:
    from ..runtime import Report


def verify(
    workload: options.WorkloadArgument,
    plan: Annotated[
        Path | None,
        typer.Argument(help="A plan file, or a split file; a training job's can stand alone."),
    ] = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="Check the certificate of the bound too.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Recompute objective, memory, colours, support and contiguity of PLAN, by definition.

    Exit code 2 if the plan breaks a rule, was made for something else, or its certificate does
    not prove its bound; 5 if the plan is valid, and --bound finds no bound, or cannot check it.
    """
    from ..instances.formats.files import load, load_plan_with_form
    from ..instances.job.plan import is_job_plan

    model, plan = named_plan(workload, plan)
    if is_job_plan(plan):
        from .job import verify_job

        verify_job(model, plan, bound=bound, as_json=as_json)
        return
    loaded = load(workload)

    from ..api.common import plan_from_split  # what a missing file need not wait for
    from ..runtime import verify as verify_plan

    if is_split(read_source(plan)):
        checked = plan_from_split(plan, loaded)
    else:
        loaded, checked = load_plan_with_form(plan, loaded)
    report = verify_plan(loaded, checked)
    why = None
    if bound:
        from ..runtime.verify.bounds.check import check_bound

        try:
            check_bound(loaded, checked)
        except UncheckedError as error:
            why = str(error)
    if as_json:
        print_json(
            {
                "workload": loaded.name,
                "verified": True,
                "objective": report.objective,
                "bound": checked.bound,
                "of_given_stages": checked.of_given_stages,
                "bound_checked": bound and why is None,
                "why_not_checked": why,
                "gap": checked.gap,
                "time_unit": objective_unit(checked.problem, loaded.time_unit),
            }
        )
    else:
        _say(loaded, checked, report, proved=bound and why is None, why=why)
    end(UNCHECKED if why else 0)


def _say(workload: Workload, plan: Plan, report: Report, *, proved: bool, why: str | None) -> None:
    """Print what was verified, and why the bound is not checked, on one line."""
    unit = objective_unit(plan.problem, workload.time_unit)
    values = [f"verified: objective {show_time(report.objective, unit)}"]
    if math.isfinite(plan.bound):
        bound = "proved bound" if proved else "claimed bound"
        bound += " for the stages given" if plan.of_given_stages else ""
        values.append(f"{bound} {show_time(plan.bound, unit)}")
        values.append(f"gap {show_gap(plan.gap)}")
    facts = [", ".join(values), _fullest(workload, plan, report)]
    OUT.print_line("; ".join([*facts, why] if why else facts))


def _fullest(workload: Workload, plan: Plan, report: Report) -> str:
    """Return a line on the device or stage that is nearest to the limit of its memory."""
    places = [(d.name, d.memory_bytes, d.capacity_bytes) for d in report.devices]
    places += [(f"stage {s.number}", s.memory_bytes, s.capacity_bytes) for s in report.stages]
    if not places:
        return f"{show_count(workload.n, 'node')} on {show_count(plan.cluster.size, 'device')}"
    name, used, limit = max(places, key=lambda place: place[1] / max(place[2], 1e-300))
    most = f"fullest {name} with {show_bytes(used)}"
    return f"{most} (no limit)" if math.isinf(limit) else f"{most} of {show_bytes(limit)}"
