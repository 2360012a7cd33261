"""What `stagecut run` or another launcher can take, said and chosen before it is planned."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from glob import escape
from typing import NamedTuple

from ...instances import InputError, PipelineSchedule, Plan, Split, Workload
from ...instances.common.choices import Tied
from ...instances.common.units import ON_NUMBERS, TO_RUN
from . import names
from .console import ERR


def choose_runnable(
    runnable: bool, together: list[str] | None, workload: Workload
) -> list[str] | None:
    """Return `--together` with what must share a device for a plan to run, where that is asked for.

    Where it is not, say that the plan may not run. Both is said before the search, with the reason.
    """
    if runnable:
        uncut, why = kept_together(workload)
        if uncut:
            ERR.print(why)
        return [*(together or ()), uncut] if uncut else together
    if workload.provenance.get("traced_by") == ON_NUMBERS:
        ERR.print(
            f"{workload.name} can be planned but not run: "
            f"{workload.provenance.get('torch_export_failed', '')}; to run it, {TO_RUN}; or plan "
            "with --runnable",
            style="yellow",
            soft_wrap=True,
        )
    return together


def kept_together(workload: Workload) -> tuple[str, str]:
    """Return what must share a device for a plan to run, as `--together` has it, and why.

    Both are empty if every plan can run: modules that no graph holds are single nodes already. A
    model whose outermost code depends on numbers has no border but its own.

    Raises
    ------
    InputError
        If the workload is of no PyTorch model.
    """
    made = workload.provenance
    if made.get("generator") != "stagecut.instances.pytorch":
        raise InputError(f"--runnable: {workload.name} is of no PyTorch model; profile one")
    if made.get("traced_by") != ON_NUMBERS:
        return "", ""
    return "*", (
        f"--runnable: {workload.name}: {made.get('torch_export_failed', '')}, so it is kept whole, "
        f"on one device; to cut it, {TO_RUN}, and profile again"
    )


def exports_of(workload: Workload, plan: Plan, target: str | None) -> str:
    """Return in a line which launchers can take a plan, and what would let others take it.

    Parameters
    ----------
    target
        The one that was asked for; None for none.
    """
    from ...runtime.export.registry import takers

    found = takers(workload, plan)
    able = [name for name, reason in found.items() if not reason]
    said = ", ".join(able) or "none"
    if target is not None and found.get(target):
        return f"{said}; not {target}: {found[target]}"
    operators = workload.provenance.get("granularity") == "operators"
    if len(able) < len(found) and target is None:
        profiled = "profile with --depth auto, and " if operators else ""
        said += f"; for others {profiled}plan with --for NAME"
    return said


class Fitted(NamedTuple):
    """Options of `solve` that decide whether a launcher can express the plan.

    Parameters
    ----------
    levels
        ``replicas``, ``degrees`` and ``recomputation`` of a training plan, as they were given.
    """

    split: Split | None
    cpus: int | None
    tied: Tied | None
    together: list[str] | None
    schedule: str | None
    levels: Mapping[str, str | None]


def fitted(target: str | None, objective: str, workload: Workload, given: Fitted) -> Fitted:
    """Return options narrowed so that a launcher can take the plan; say what was narrowed.

    Parameters
    ----------
    target
        The launcher's name; None where none was named, and all stays as given.
    objective
        What is planned for.
    given
        What the user gave.

    Raises
    ------
    InputError
        If no option makes the plan fit: what to profile or to plan instead.
    """
    if target is None:
        return given
    from ...runtime.export.registry import LAUNCHERS, kept_whole

    option = f"--for {target}"
    if target not in names.LAUNCHERS:
        raise InputError(f"{option}: it must be one of {', '.join(names.LAUNCHERS)}")
    if objective == "latency":
        raise InputError(f"{option}: it runs pipelines; plan with --objective job")
    staged = objective == "pipeline" and (
        workload.layers is not None or given.schedule == PipelineSchedule.STREAM
    )
    if target == "python" and staged:
        raise InputError(f"{option}: it runs placements; profile without --layers")
    launcher = LAUNCHERS.get(target)
    fit, said = given, []
    if target == "python" and workload.ties and given.tied is None:
        fit = fit._replace(tied=Tied.COLOUR)
        said.append("--tied colour")
    if launcher is not None:
        _check_levels(option, given.levels, staged=staged)
        if launcher.schedules and given.schedule not in (
            None,
            PipelineSchedule.STREAM,
            *launcher.schedules,
        ):
            runs = " and ".join(launcher.schedules)
            raise InputError(f"{option}: it runs {runs}; leave --schedule {given.schedule} out")
        groups = kept_whole(workload, target)
        if groups:
            rules = [shlex.join(escape(workload.names[v]) for v in nodes) for nodes in groups]
            fit = fit._replace(together=[*(given.together or ()), *rules])
            said.append(f"--together for each of {len(groups)} modules that it keeps whole")
    if launcher is not None and launcher.pipeline:
        if given.cpus is None:
            fit = fit._replace(cpus=0)
            said.append("--cpus 0")
        if given.split not in (None, "contiguous"):
            raise InputError(f"{option}: it runs chains; leave --split {given.split} out")
        if not staged and given.split is None:
            fit = fit._replace(split=Split.CONTIGUOUS)
            said.append("--split contiguous")
    if said:
        ERR.print(f"{option}: planned with {', '.join(said)}", style="dim", highlight=False)
    return fit


def _check_levels(option: str, levels: Mapping[str, str | None], *, staged: bool) -> None:
    """Check that all stages with replicas will have the same degrees.

    Raises
    ------
    InputError
        If they might not: what to give.
    """
    loose = [
        f"--{name}"
        for name, value in levels.items()
        if staged and (value is None or "," in value or value == "free")
    ]
    if loose:
        raise InputError(
            f"{option}: it has the same value of {', '.join(loose)} for all stages; give one of "
            "each, such as --replicas 1 --degrees 8 --recomputation off"
        )
