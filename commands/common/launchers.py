"""Demands of launchers on a plan: changes of the problem, and notes before the search."""

from __future__ import annotations

from dataclasses import replace
from glob import escape

from ...instances import InputError, PipelineSchedule, Plan, Workload
from ...instances.common.units import FROM_PYTORCH, ON_NUMBERS, TO_RUN
from ...instances.formats.problem_toml import Table
from . import options
from .console import ERR
from .pose import ProblemOptions, Statement

#: Name of `stagecut run` as a value of `--for`.
RUN = "run"


def kept_together(workload: Workload) -> tuple[str, str]:
    """Return a pattern of the nodes that must share a device for a plan to run, and the reason.

    Both are empty if every plan can run: modules that no graph holds are single nodes already. A
    model whose outermost code depends on numbers has no border but its own.
    """
    made = workload.provenance
    if made.get("traced_by") != ON_NUMBERS:
        return "", ""
    return "*", (
        f"--for run: {workload.name}: {made.get('torch_export_failed', '')}, so it is kept whole, "
        f"on one device; to cut it, {TO_RUN}, and profile again"
    )


def exports_of(workload: Workload, plan: Plan, target: str | None) -> str:
    """Return a line on the launchers that can take a plan, and what would let others take it.

    `target` is the requested launcher, if any.
    """
    from ...runtime.export.registry import takers

    found = takers(workload, plan)
    able = [name for name, reason in found.items() if not reason]
    names = ", ".join(able) or "none"
    if target is not None and found.get(target):
        return f"{names}; not {target}: {found[target]}"
    operators = workload.provenance.get("granularity") == "operators"
    if len(able) < len(found) and target is None:
        profiled = "profile with --depth auto, and " if operators else ""
        names += f"; for others {profiled}plan with --for NAME"
    return names


def narrow_for_launcher(
    stated: Statement, requested: ProblemOptions, workload: Workload
) -> tuple[Statement, ProblemOptions]:
    """Return the user's problem, narrowed so that a launcher can take the plan; print the changes.

    The launcher is that of ``--for``, or ``run`` for `stagecut run`. Without one nothing changes,
    but a warning says if the plan may not run. InputError if no change makes the plan fit, with
    what to profile or plan instead.
    """
    target, problem = requested.launcher, stated.name
    if target is None:
        _warn_of_numbers(workload)
        return stated, requested
    from ...runtime.export.registry import LAUNCHERS, PYTHON, kept_whole

    option = f"--for {target}"
    traced = workload.provenance.get("generator") == FROM_PYTORCH
    if target in (RUN, PYTHON) and not traced:
        raise InputError(f"{option}: {workload.name} is of no PyTorch model; profile one")
    if target == RUN:
        uncut, why = kept_together(workload)
        if uncut:
            ERR.print(why)
        return _together(stated, [[uncut]]) if uncut else stated, requested
    if target not in options.LAUNCHERS:
        raise InputError(f"{option}: it must be one of {', '.join((RUN, *options.LAUNCHERS))}")
    if problem in ("latency", "sharding") or (problem == "mapping" and target != PYTHON):
        raise InputError(f"{option}: it runs pipelines; plan with --problem pipeline")
    schedule, split = (stated.fields.get(key) for key in ("schedule", "split"))
    staged = problem == "pipeline" and (
        workload.layers is not None or schedule == PipelineSchedule.STREAM
    )
    if target == PYTHON and staged:
        raise InputError(f"{option}: it runs placements; profile without --layers")
    launcher = LAUNCHERS.get(target)
    if launcher is None:
        return stated, requested
    if staged:
        _check_levels(option, stated.fields)
    if launcher.schedules and schedule not in (None, PipelineSchedule.STREAM, *launcher.schedules):
        runs = " and ".join(launcher.schedules)
        raise InputError(f"{option}: it runs {runs}; leave --schedule {schedule} out")
    changes = []
    if groups := kept_whole(workload, target):
        rules = [[escape(workload.names[v]) for v in nodes] for nodes in groups]
        stated = _together(stated, rules)
        changes.append(f"each of {len(groups)} modules that it keeps whole together")
    if launcher.pipeline:
        if requested.cpus is None:
            requested = replace(requested, cpus=0)
            changes.append("--cpus 0")
        if split not in (None, "contiguous"):
            raise InputError(f"{option}: it runs chains; leave --split {split} out")
        if not staged and split is None:
            stated = replace(stated, fields={**stated.fields, "split": "contiguous"})
            changes.append("--split contiguous")
    if changes:
        ERR.print(f"{option}: planned with {', '.join(changes)}", style="dim", highlight=False)
    return stated, requested


def _warn_of_numbers(workload: Workload) -> None:
    """Warn before the search that a plan may not run, with the reason."""
    if workload.provenance.get("traced_by") == ON_NUMBERS:
        ERR.print(
            f"{workload.name} can be planned but not run: "
            f"{workload.provenance.get('torch_export_failed', '')}; to run it, {TO_RUN}; or plan "
            "with --for run",
            style="yellow",
            soft_wrap=True,
        )


def _together(stated: Statement, rules: list[list[str]]) -> Statement:
    """Return a problem with rules that keep nodes together."""
    given = stated.fields.get("placement_rules", {})
    joined = {**given, "together": [*given.get("together", ()), *rules]}
    return replace(stated, fields={**stated.fields, "placement_rules": joined})


def _check_levels(option: str, fields: Table) -> None:
    """Check that all stages with replicas have the same degrees; InputError says what to give."""
    loose = [key for key in ("replicas", "degrees") if len(fields.get(key) or ()) != 1]
    loose += ["recomputation"] if fields.get("recomputation", "free") == "free" else []
    if loose:
        raise InputError(
            f"{option}: it has the same value of {', '.join(loose)} for all stages; give one of "
            "each, such as --set replicas=[1],degrees=[8] --set recomputation=off"
        )
