"""Commands on training jobs: planning, verification, export, explanation and comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances import InputError
from ..instances.formats.problem_toml import make_record, read_setting
from ..instances.formats.writing import PICTURES, write_whole
from ..instances.job.problem import TrainingJob
from .common.clock import seconds_left
from .common.console import (
    INFEASIBLE,
    OUT,
    check_plan_file,
    check_table_file,
    end,
    end_with,
    print_json,
    refuse,
    show_percent,
    tell_written,
)
from .show.job import (
    comparison_rows,
    difference_dict,
    explanation_dict,
    front_dict,
    print_comparison,
    print_difference,
    print_explanation,
    print_front,
    print_result,
    result_dict,
)

if TYPE_CHECKING:
    from ..api.job import WhatIf
    from ..instances.job.plan import JobPlan
    from ..solvers import Limits
    from .common.pose import ProblemOptions

#: Options that state a field of the job.
OPTIONS = {
    "global_batch": "--global-batch",
    "sequence": "--sequence",
    "memory_bytes": "--memory",
    "launcher": "--for",
}


@dataclass(frozen=True)
class PosedJob:
    """Training job and cluster that options state, with the arguments of a front."""

    job: TrainingJob
    cluster: str  # as `training_cluster` takes it; of a front without the number of devices
    limits: Limits  # of each search
    # numbers of devices of a front; empty if there is one number, that of the cluster
    gpus: tuple[int, ...] = ()
    price: float | None = None  # of a device for an hour
    rate: float | None = None  # tokens per second to reach


def state_job(
    models: Sequence[str],
    requested: ProblemOptions,
    global_batch: int,
    sequence: int | None,
    ends: Mapping[str, float | None],
    others: Mapping[str, object],
) -> PosedJob:
    """Return the job that options and ``--set`` state.

    The default length of sequences is the first model's. `ends` are fields of the limits, None for
    the default; `others` are options of other problems, by name. InputError if a field is unknown,
    of another type or given twice, an option of another problem is given, or there is no cluster.
    """
    stated: dict[str, Any] = {"global_batch": global_batch}
    launcher = "stagecut" if requested.launcher == "run" else requested.launcher
    more = {
        "sequence": sequence,
        "launcher": launcher,
        "memory_bytes": requested.memory_bytes,
    }
    stated.update({name: value for name, value in more.items() if value is not None})
    for text in requested.settings:
        for name, value in read_setting(text).items():
            if name in stated:
                raise InputError(f"{name}: {stated[name]} and {value}; give one of them")
            stated[name] = value
    if "sequence" not in stated:
        from ..instances.costs.models import model_description
        from .estimate import usual_sequence

        stated["sequence"] = usual_sequence(model_description(models[0]))
    for name in ("problem", "accelerators", "cpus", "split", "microbatches", "schedule", "mesh"):
        if getattr(requested, name) is not None:
            remedy = {
                "schedule": f"say --set schedules={requested.schedule}",
                "accelerators": "say how many in --cluster, such as h100:8",
            }.get(name, "leave it out")
            raise InputError(f"--{name}: not of a training job; {remedy}")
    refuse(others, "not of a training job")
    if requested.cluster is None:
        raise InputError("--cluster: it is missing; say such as h100:8x8, or a cluster file")
    front: dict[str, Any] = {}
    for name in ("gpus", "price", "rate"):
        if name in stated:
            front[name] = stated.pop(name)
    try:
        job = make_record(TrainingJob, stated, "--set")
    except InputError as error:
        message = str(error)
        for name, option in OPTIONS.items():
            message = re.sub(rf"^--set: {name}\b", option, message)
        raise InputError(message) from None
    given = {name: value for name, value in ends.items() if value is not None}
    return _posed(job, requested.cluster, front, given)


#: Reason for refusing options of a problem beside the plan of a training job.
PLAN_SAYS = "the plan of a training job says it, or has none"


def _posed(
    job: TrainingJob, cluster: str, front: Mapping[str, Any], ends: Mapping[str, Any]
) -> PosedJob:
    """Return a job on a cluster, or on several numbers of devices if the cluster gives none."""
    from ..api.job import JOB_LIMITS
    from ..api.job_front import FRONT_LIMITS, GPUS, leaves_number_open

    if not leaves_number_open(cluster) and "gpus" not in front:
        for name in front:
            raise InputError(f"{name}: of a front alone; leave the cluster's number out: h100")
        return PosedJob(job, cluster, replace(JOB_LIMITS, **ends))
    for name in ("price", "rate"):
        if not isinstance(front.get(name, 1.0), int | float):
            raise InputError(f"{name}: {front[name]!r}; it must be a number")
    numbers = _numbers(front["gpus"]) if "gpus" in front else GPUS
    limits = replace(FRONT_LIMITS, **ends)
    return PosedJob(job, cluster, limits, numbers, front.get("price"), front.get("rate"))


def _numbers(given: object) -> tuple[int, ...]:
    """Return numbers of devices: one, a list, or doublings such as ``8:512``."""
    values = given if isinstance(given, list) else [given]
    if isinstance(given, str):
        ends = given.split(":")
        if len(ends) == 2 and all(end.isdigit() and int(end) > 0 for end in ends):
            first, last = map(int, ends)
            values = [first << k for k in range(MOST_DOUBLINGS) if first << k <= last]
    if not values or not all(type(value) is int and value > 0 for value in values):
        raise InputError(f"gpus: {given}; write a number, a list [8, 24], or doublings 8:512")
    return tuple(values)


#: Doublings of a front at most.
MOST_DOUBLINGS = 24


def plan_job(
    model: str, posed: PosedJob, output: Path | None, plot: Path | None, *, as_json: bool
) -> None:
    """Plan a training job, print the result, and end with the exit code of its status."""
    from ..api.job import solve_job

    if posed.gpus:
        _plan_front(model, posed, output, plot, as_json=as_json)
        return
    check_plan_file(output)
    found = solve_job(model, posed.cluster, posed.job, limits=posed.limits)
    if found.plan is not None and output is not None:
        found.plan.save(output)
    if found.plan is not None and plot is not None:
        _draw_estimate(found.plan, plot)
    if as_json:
        print_json(result_dict(found))
    else:
        print_result(found)
        if found.plan is not None:
            tell_written(output, plot)
    end_with(found.status)


def _plan_front(
    model: str, posed: PosedJob, output: Path | None, plot: Path | None, *, as_json: bool
) -> None:
    """Plan a job on several numbers of devices; print the front and write it as CSV."""
    from ..api.job_front import front

    check_table_file(output)
    found = front(
        model, posed.cluster, posed.job, posed.gpus, price=posed.price, limits=posed.limits
    )
    if output is not None:
        write_whole(output, found.to_pandas().to_csv(index=False))
    if plot is not None:
        from ..runtime.pictures.charts import plot_front
        from ..runtime.pictures.style import save_picture

        save_picture(plot_front(found.to_pandas().assign(memory_bytes=0.0), "s"), plot)
    if as_json:
        print_json(front_dict(found))
    else:
        print_front(found, posed.rate)
        tell_written(output, plot)
    end(INFEASIBLE if found.fewest is None else 0)


def verify_job(model: str | None, path: Path, *, bound: bool, as_json: bool) -> None:
    """Judge the plan of a training job anew, and its bound if asked."""
    from ..runtime.verify.layouts import check_job_bound, verify_job_plan

    plan = plan_of(model, path)
    verify_job_plan(plan)
    programs = check_job_bound(plan).programs if bound else 0
    if as_json:
        print_json(
            {
                "model": plan.model.name,
                "verified": True,
                "iteration_seconds": plan.seconds,
                "bound": plan.bound,
                "bound_checked": bound,
                "gap": plan.gap,
            }
        )
        return
    proved = f"proved, {programs} points by a program" if bound else "claimed"
    OUT.print_line(
        f"verified: {plan.seconds:.4g} s, bound {plan.bound:.4g} s ({proved}), "
        f"gap {show_percent(plan.gap)}"
    )


def export_job(path: Path, launcher: str, folder: Path) -> None:
    """Write the files that make a launcher train under a plan into a folder."""
    from ..instances.job.plan import load_job_plan
    from ..runtime.export.job import job_files

    plan = load_job_plan(path)
    files = job_files(launcher, plan.model, plan.layout)
    endings = {*PICTURES, *(Path(name).suffix for name in files)}
    if not folder.is_dir() and (folder.exists() or folder.suffix.lower() in endings):
        raise InputError(f"{folder}: it is no folder; name one for the files of {launcher}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text)
        OUT.print_line(f"written: {folder / name}")


def explain_job_plan(
    model: str | None, path: Path, seconds: float, plot: Path | None, *, as_json: bool
) -> None:
    """Print the alternatives to each decision of a plan, and the effects of changes.

    Half of `seconds`, counted from the start of the process, are for the alternatives; 0: neither.
    """
    from ..api.explain_job import explain_job
    from ..api.job import what_would_help
    from ..solvers import Limits

    plan = plan_of(model, path)
    why = explain_job(plan, seconds=seconds_left(seconds) / 2)
    changes: tuple[WhatIf, ...] = ()
    if seconds:
        changes = what_would_help(plan, Limits(seconds=seconds_left(seconds, 0.25), gap=1e-2))
    if plot is not None:
        _draw_estimate(plan, plot)
    if as_json:
        print_json(explanation_dict(why, changes))
        return
    print_explanation(why, changes)
    tell_written(plot)


def diff_plans(first: Path, second: Path, *, as_json: bool) -> None:
    """Print the differences of the plans in two files."""
    from ..api.explain_job import diff_jobs
    from ..instances.job.plan import load_job_plan

    found = diff_jobs(load_job_plan(first), load_job_plan(second))
    if as_json:
        print_json(difference_dict(found))
    else:
        print_difference(found, (first.name, second.name))


def compare_jobs(
    names: Sequence[str],
    posed: PosedJob | None,
    output: Path | None,
) -> None:
    """Print plans of models, or plans in files, beside layouts by common rules; write a CSV file.

    Models are planned as `posed`; without it, names are files of plans.
    """
    import pandas as pd

    from ..api.job import job_costs, judge_usual, solve_job
    from ..instances.job.plan import load_job_plan

    if posed is not None and posed.gpus:
        raise InputError("--cluster: it leaves the number of devices open; write such as h100:8x8")
    rows: list[dict[str, object]] = []
    for name in names:
        if posed is None:
            plan = load_job_plan(name)
            costs = job_costs(plan.model, plan.cluster, plan.job)
            usual = judge_usual(costs, plan.layout, costs.usual())
        else:
            found = solve_job(name, posed.cluster, posed.job, limits=posed.limits)
            if found.plan is None:
                OUT.print_line(found.reason)
                rows.append({"plan": name, "choice": "planned", "reason": found.reason})
                continue
            plan, usual = found.plan, found.usual
        print_comparison(name, plan, usual)
        rows += comparison_rows(name, plan, usual)
    if output is not None:
        write_whole(output, pd.DataFrame(rows).to_csv(index=False))
        tell_written(output)


def plan_of(model: str | None, path: Path) -> JobPlan:
    """Return the plan in a file; InputError if it is for another model than the one named."""
    from ..instances.costs.models import model_description
    from ..instances.job.plan import load_job_plan

    plan = load_job_plan(path)
    if model is None:
        return plan
    try:
        same = model_description(model) == plan.model
    except InputError:  # a graph of operators, for one
        same = False
    if not same:
        raise InputError(
            f"{path}: it is a plan of {plan.model.name}, not of {model}; leave {model} out"
        )
    return plan


def _draw_estimate(plan: JobPlan, path: Path) -> None:
    """Draw seconds by term, and bytes by term and rank, of a plan."""
    from ..api.estimate import estimate
    from ..runtime.pictures.style import save_picture

    save_picture(estimate(plan.model, plan.layout, plan.cluster).plot(), path)
