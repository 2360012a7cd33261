"""`stagecut run` of a training job's plan, and the report of a step by term."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances import InputError
from ..instances.common.records import to_plain
from ..instances.formats.writing import layout, write_whole
from .common.console import OUT, new_table, show_bytes, show_percent, tell_written

if TYPE_CHECKING:
    from ..instances.job.plan import JobPlan
    from ..runtime.execution.job.measured import MeasuredStep
    from ..runtime.execution.options import RunOptions
    from ..runtime.execution.steps import StepResult


def run_job_plan(
    path: Path,
    model: str | None,
    tokens: Path | None,
    asked: RunOptions,
    own: tuple[float, bool],
    others: Mapping[str, object],
) -> None:
    """Train under a job's plan, print each step, and write or print the last one by term.

    Parameters
    ----------
    asked
        Options that other plans have, too.
    own
        Largest norm of gradients, and whether the last step is reported.
    others
        Options of other plans by name, which must be left out.
    """
    from ..instances.job.plan import load_job_plan
    from ..runtime.execution.job.planned import run_planned_job
    from ..runtime.execution.job.run import JobOptions

    others = {**others, "--set replicas": asked.replicas > 1 or None}
    others = {**others, "--set recompute": asked.recompute or None}
    for option, given in others.items():
        if given is not None:
            raise InputError(f"{option}: the plan of a training job says it; leave it out")
    plan, (clip, report) = load_job_plan(path), own
    if report and asked.steps < 2:
        raise InputError("--report: the first step does more than others; take at least 2 --steps")
    options = JobOptions(
        schedule=asked.schedule, clip=clip, device=asked.device, threads=asked.threads,
        checkpoint=asked.checkpoint, every=asked.every or 0, resume=asked.resume,
        measure=report or asked.record is not None, timeout_s=asked.timeout_s,
    )  # fmt: skip
    if os.environ.get("RANK", "0") == "0" and tokens is None:
        OUT.print("no --tokens: the model trains on random ones", highlight=False)
    done = run_planned_job(
        plan, model, tokens, asked.steps, asked.make_optimizer, options, on_step=show_step
    )
    if os.environ.get("RANK", "0") != "0":
        return
    if asked.resume and not done.losses:
        OUT.print(
            f"{asked.checkpoint}: it has {asked.steps} steps already; give more --steps",
            highlight=False,
            soft_wrap=True,
        )
    if done.measured and report:
        print_measured(plan, done.measured)
    if done.measured and asked.record is not None:
        ranks = [to_plain(one) for one in done.measured]
        write_whole(asked.record, layout({"format": "stagecut-job-run", "ranks": ranks}))
        tell_written(asked.record)


def show_step(step: StepResult) -> None:
    """Print a step."""
    OUT.print(
        f"step {step.number + 1:>4}  loss {step.loss:<12.6g} {1e3 * step.seconds:.1f} ms",
        highlight=False,
    )


#: Terms of an estimate by those that are measured.
_TERMS = {
    "compute": ("products", "attention", "pointwise", "layers", "recomputation", "host"),
    "tensor": ("tensor",), "context": ("context",), "expert": ("experts",),
    "data": ("weights", "gradients"), "bubble": ("bubble",), "optimizer": ("optimizer",),
}  # fmt: skip


def print_measured(plan: JobPlan, steps: tuple[MeasuredStep, ...]) -> None:
    """Print the rank that computes longest beside the plan: seconds, collectives, memory."""
    from ..instances.costs.memory import rank_memory
    from ..instances.costs.traffic import collectives

    step = max(steps, key=lambda one: one.terms.get("compute", 0.0))
    terms = planned_terms(plan)
    table = new_table(
        f"rank {step.rank}: a step, collectives waited for one by one", "", ("here", "plan")
    )
    for name in dict.fromkeys((*_TERMS, *step.terms)):
        seconds = (step.terms.get(name), terms.get(name))
        if any(seconds):
            table.add_row(name, *("" if x is None else f"{x:.4g} s" for x in seconds))
    table.add_row("all", f"{step.seconds:.4g} s", f"{plan.seconds:.4g} s")
    OUT.print(table)
    planned = {
        (one.axis, one.kind): one
        for one in collectives(plan.model, plan.layout, step.pipeline_rank)
    }
    counted = {(one.axis, one.kind): one for one in step.collectives}
    table = new_table("collectives", "axis, kind", ("count", "planned", "bytes", "planned"))
    for key in dict.fromkeys((*planned, *counted)):
        both = (counted.get(key), planned.get(key))
        counts = ("" if one is None else str(one.count) for one in both)
        sizes = ("" if one is None else show_bytes(one.size) for one in both)
        table.add_row(", ".join(key), *counts, *sizes)
    OUT.print(table)
    memory = rank_memory(plan.model, plan.layout, step.pipeline_rank)
    planned_bytes = {name: getattr(memory, name) for name in step.memory}
    planned_bytes["activations"] += memory.logits  # which autograd keeps, too
    table = new_table("memory", "", ("here", "plan"))
    for name, size in step.memory.items():
        table.add_row(name, show_bytes(size), show_bytes(planned_bytes[name]))
    if step.peak:
        table.add_row("all allocated", show_bytes(step.peak), show_bytes(memory.allocated))
    OUT.print(table)
    share = 1 - sum(one.terms.get("bubble", 0.0) for one in steps) / sum(s.seconds for s in steps)
    OUT.print(f"ranks are busy for {show_percent(share)} of the step", highlight=False)


def planned_terms(plan: JobPlan) -> dict[str, Any]:
    """Return the plan's seconds by measured term."""
    from ..instances.costs.calibration import calibration
    from ..runtime.estimate import iteration_time

    table = calibration(plan.cluster.accelerator.family, plan.layout.software)
    terms = iteration_time(plan.model, plan.layout, plan.cluster, table).terms
    return {name: sum(terms.get(each, 0.0) for each in of) for name, of in _TERMS.items()}
