"""`stagecut solve MODEL --cluster NAME --global-batch N`: how a model trains fastest, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances import InputError, Status
from ..instances.common.records import from_plain, to_plain
from ..instances.formats.problem_toml import read_setting
from ..instances.job.problem import TrainingJob
from .common.console import (
    OUT,
    end,
    new_table,
    parse_bytes,
    print_json,
    show_bytes,
    show_percent,
)

if TYPE_CHECKING:
    from ..api.job import JobCandidate, JobResult
    from ..api.job_front import JobFront
    from ..instances.job.plan import JobPlan
    from .common.pose import Asked

#: Exit codes by how a search ended.
CODES = {Status.INFEASIBLE: 3, Status.NO_SOLUTION: 4}


def state_job(
    model: str,
    asked: Asked,
    global_batch: int,
    sequence: int | None,
    others: Mapping[str, object],
) -> tuple[TrainingJob, str]:
    """Return the job that options and ``--set`` state, and its cluster.

    Parameters
    ----------
    others
        Options of other problems, by name, which must be at their default.

    Raises
    ------
    InputError
        If a field is unknown, of another type or given twice, an option is for other problems, or
        there is no cluster.
    """
    stated: dict[str, Any] = {"global_batch": global_batch}
    more = {"sequence": sequence, "launcher": asked.launcher}
    stated.update({name: value for name, value in more.items() if value is not None})
    if asked.memory is not None:
        stated["memory_bytes"] = parse_bytes(asked.memory, "--memory")
    for text in asked.settings:
        for name, value in read_setting(text).items():
            if name in stated:
                raise InputError(f"{name}: {stated[name]} and {value}; give one of them")
            stated[name] = value
    if "sequence" not in stated:
        from ..instances.costs.models import model_description
        from .estimate import usual_sequence

        stated["sequence"] = usual_sequence(model_description(model))
    for name in ("problem", "accelerators", "cpus", "split", "microbatches", "schedule", "mesh"):
        if getattr(asked, name) is not None:
            field = {"schedule": "; --set schedules=[…]"}.get(name, "")
            raise InputError(f"--{name}: not of a training job{field}; leave it out")
    for option, given in others.items():
        if given not in (None, "auto"):
            raise InputError(f"{option}: not of a training job; leave it out")
    if asked.cluster is None:
        raise InputError("--cluster: it is missing; say such as h100:8x8, or a cluster file")
    return from_plain(TrainingJob, stated, "--set"), asked.cluster


def plan_job(
    model: str,
    cluster: str,
    job: TrainingJob,
    ends: tuple[float | None, float | None],
    output: Path | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Plan a training job, print what comes out, and end with the exit code that says how.

    Parameters
    ----------
    ends
        Seconds and gap at which to stop; None for the default.
    """
    from ..api.job import JOB_LIMITS, solve_job
    from ..solvers import Limits

    seconds, gap = ends
    limits = Limits(
        seconds=JOB_LIMITS.seconds if seconds is None else seconds,
        gap=JOB_LIMITS.gap if gap is None else gap,
    )
    found = solve_job(model, cluster, job, limits=limits)
    if found.plan is not None and output is not None:
        found.plan.save(output)
    if found.plan is not None and plot is not None:
        from ..runtime.pictures.style import save_picture

        save_picture(found.estimate.plot(), plot)
    if as_json:
        print_json(as_dict(found))
    else:
        print_result(found)
        if output is not None and found.plan is not None:
            OUT.print(f"written: {output}", highlight=False, soft_wrap=True)
    end(CODES.get(found.status, 0))


def verify_job(model: str, path: Path, *, bound: bool, as_json: bool) -> None:
    """Judge the plan of a training job anew, and its bound if asked."""
    from ..runtime.verify.bounds.layouts import check_job_bound
    from ..runtime.verify.layouts import verify_job_plan

    plan = _plan_of(model, path)
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
    OUT.print(
        f"verified: {plan.seconds:.4g} s, bound {plan.bound:.4g} s ({proved}), "
        f"gap {show_percent(plan.gap)}",
        highlight=False,
        soft_wrap=True,
    )


def export_job(path: Path, launcher: str, folder: Path) -> None:
    """Write the files that make a launcher train under a plan into a folder."""
    from ..instances.formats.writing import write_whole
    from ..instances.job.plan import load_job_plan
    from ..runtime.export.job import job_files

    plan = load_job_plan(path)
    files = job_files(launcher, plan.model, plan.layout)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: it is no folder; name one for the files of {launcher}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text)
        OUT.print(f"written: {folder / name}", highlight=False, soft_wrap=True)


def as_dict(found: JobResult) -> dict[str, Any]:
    """Return what `--json` prints."""
    answer: dict[str, Any] = {
        "status": str(found.status),
        "search_seconds": found.seconds,
        "reason": found.reason,
        "least_memory_bytes": found.least_memory,
    }
    if found.plan is None:
        return answer
    return {
        **answer,
        "iteration_seconds": found.plan.seconds,
        "bound": found.plan.bound,
        "gap": found.plan.gap,
        "layout": to_plain(found.plan.layout),
        "points": found.plan.certificate.points,
        "estimate": found.estimate.as_dict(),
        "candidates": [_candidate(one) for one in found.candidates],
        "close": [_candidate(one) for one in found.close],
        "usual": [
            {
                "name": one.name,
                "layout": None if one.layout is None else to_plain(one.layout),
                "seconds": one.seconds,
                "reason": one.reason,
            }
            for one in found.usual
        ],
    }


def _candidate(one: JobCandidate) -> dict[str, Any]:
    return {
        "layout": to_plain(one.layout),
        "seconds": one.seconds,
        "worst_seconds": one.worst,
        "free_bytes": one.free,
    }


def print_result(found: JobResult) -> None:
    """Print the plan in one line, its bound, its time and memory, and what else is near."""
    from ..api.job import describe
    from ..instances.costs.terms import TIME_TERMS
    from .estimate import print_estimate

    if found.plan is None:
        OUT.print(found.reason, highlight=False, soft_wrap=True)
        return
    plan = found.plan
    print_estimate(found.estimate)
    OUT.print(f"plan: {describe(plan.layout)}", highlight=False, soft_wrap=True)
    if plan.layout.pipeline > 1 and plan.layout.stage_layers:
        layers = ", ".join(map(str, plan.layout.stage_layers))
        OUT.print(f"layers by stage: {layers}", highlight=False, soft_wrap=True)
    points = plan.certificate.points
    ruled = ", ".join(f"{points[key]:,} {label}" for key, label in REASONS.items() if key in points)
    OUT.print(
        f"bound: no layout of the declared space takes less than {plan.bound:.4g} s "
        f"(gap {show_percent(plan.gap)}); of {sum(points.values()):,}: {ruled}",
        highlight=False,
        soft_wrap=True,
    )
    table = new_table("layouts that differ", "layout", ("s", "behind", "at worst (s)", "free"))
    for one in found.candidates:
        table.add_row(
            describe(one.layout),
            f"{one.seconds:.4g}",
            show_percent(one.seconds / plan.seconds - 1, signed=True),
            f"{one.worst:.4g}",
            show_bytes(one.free),
        )
    OUT.print(table)
    if found.usual:
        usual = new_table("what is usually done", "choice", ("s", "slower", "most by"))
        for choice in found.usual:
            if choice.layout is None:
                usual.add_row(f"{choice.name}: {choice.reason}", "", "", "")
                continue
            most = "" if choice.most is None else TIME_TERMS[choice.most[0]]
            usual.add_row(
                f"{choice.name}: {describe(choice.layout)}",
                f"{choice.seconds:.4g}",
                show_percent(choice.seconds / plan.seconds - 1, signed=True),
                most,
            )
        OUT.print(usual)
    run = [describe(one.layout) for one in found.close[:3]]
    if len(found.close) > 1:
        OUT.print(
            f"{len(found.close)} are within what the costs are known to; run first: "
            + "; ".join(run),
            highlight=False,
            soft_wrap=True,
        )


def explain_plan(model: str, path: Path, seconds: float) -> None:
    """Print what each decision of a plan is worth, and what a change would bring.

    Parameters
    ----------
    seconds
        Of each search of what would help; 0: none.
    """
    from ..api.job import describe, what_would_help
    from ..solvers import Limits

    plan = _plan_of(model, path)
    print_explanation(plan)
    if not seconds:
        return
    table = new_table("what would help", "change", ("s", "saves", "at most", "layout"))
    for one in what_would_help(plan, Limits(seconds=seconds, gap=1e-2)):
        if one.layout is None:
            continue
        table.add_row(
            one.change,
            f"{one.seconds:.4g}",
            show_percent(1 - one.seconds / plan.seconds, signed=True),
            show_percent(1 - one.bound / plan.seconds, signed=True),
            describe(one.layout),
        )
    OUT.print(table)


def diff_plans(first: Path, second: Path) -> None:
    """Print what tells the plans in two files apart."""
    from ..instances.job.plan import load_job_plan

    print_difference(load_job_plan(first), load_job_plan(second))


def _plan_of(model: str, path: Path) -> JobPlan:
    """Return the plan in a file, which must be of a model.

    Raises
    ------
    InputError
        If it is of another.
    """
    from ..instances.costs.models import model_description
    from ..instances.job.plan import load_job_plan

    plan = load_job_plan(path)
    if model_description(model) != plan.model:
        raise InputError(f"{path}: it is a plan of {plan.model.name}, not of {model}")
    return plan


def print_explanation(plan: JobPlan) -> None:
    """Print what each decision of a plan is worth, and what is usually done."""
    from ..api.explain_job import explain_job
    from ..api.job import describe
    from ..instances.costs.terms import TIME_TERMS

    why = explain_job(plan)
    OUT.print(f"plan: {describe(plan.layout)}", highlight=False, soft_wrap=True)
    table = new_table(
        "decided otherwise", "decision", ("best known", "s", "slower", "at least", "most by")
    )
    for one in why.decisions:
        if one.layout is None:
            table.add_row(one.field, "nothing fits", "", "", "", "")
            continue
        most = next(iter(one.behind), None)
        table.add_row(
            one.field,
            describe(one.layout),
            f"{one.seconds:.4g}",
            show_percent(one.seconds / plan.seconds - 1, signed=True),
            show_percent(max(0.0, one.bound / plan.seconds - 1)),
            "" if most is None else TIME_TERMS[most],
        )
    OUT.print(table)
    OUT.print(f"free memory: {show_bytes(why.memory['free'])}", highlight=False)


def print_difference(one: JobPlan, two: JobPlan) -> None:
    """Print what tells two plans apart: fields, seconds and bytes by term."""
    from ..api.explain_job import diff_jobs
    from ..instances.costs.terms import TIME_TERMS

    found = diff_jobs(one, two)
    table = new_table("differences", "", ("first", "second"))
    for name, pair in {**found.asked, **found.layout}.items():
        table.add_row(name, *(str(to_plain(value)) for value in pair))
    table.add_row("s per iteration", *(f"{seconds:.4g}" for seconds in found.seconds))
    OUT.print(table)
    terms = new_table("the second takes longer by", "term", ("s",))
    for name, seconds in found.terms.items():
        terms.add_row(TIME_TERMS[name], f"{seconds:+.4g}")
    OUT.print(terms)


def print_front(found: JobFront) -> None:
    """Print the best plans by number of devices."""
    from ..api.job import describe

    table = new_table(
        "front", "devices", ("layout", "s", "at least", "tokens/s", "price per million tokens")
    )
    for one in found.points:
        if one.layout is None:
            table.add_row(str(one.gpus), one.reason, "", "", "", "")
            continue
        price = "" if one.price is None else f"{one.price:.4g}"
        row = (f"{one.seconds:.4g}", f"{one.bound:.4g}", f"{one.tokens_per_s:,.0f}", price)
        table.add_row(str(one.gpus), describe(one.layout), *row)
    OUT.print(table)


#: What reasons of a certificate are called in a sentence.
REASONS = {
    "capacity": "do not fit",
    "work": "have too much work",
    "relaxation": "refuted by their relaxation",
    "program": "by their program",
    "exhausted": "judged whole",
    "open": "open",
}
