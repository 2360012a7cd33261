"""`stagecut run`: a plan, or a training job's plan, runs on PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..instances import InputError
from .common import options
from .common.console import (
    OUT,
    check_outputs,
    file_of,
    need,
    new_table,
    refuse,
    show_bytes,
    show_count,
    show_percent,
    tell_written,
)

if TYPE_CHECKING:
    from ..instances.job.plan import JobPlan
    from ..instances.pytorch.factory import Made
    from ..runtime.execution.job.measured import MeasuredStep
    from ..runtime.execution.options import RunOptions, StepResult


@dataclass(frozen=True)
class RunSettings:
    """Options of a run that `--set` gives; see `RunOptions`."""

    replicas: int = 1
    recompute: bool = False
    threads: int | None = None
    timeout: float = 120.0
    clip: float = 0.0


def run(
    plan: options.PlanArgument,
    model: Annotated[
        str | None,
        typer.Option(
            help="module:factory or file.py:factory, as profiled; of a training job the model and "
            "its ParallelizePlan, default: the plan's own model.",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="The workload of the plan; the model is checked by it."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Batches to run.")] = 10,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.RUN_SCHEDULE,
            help="gpipe, 1f1b, interleaved, zb-h1, zb-h2, or asynchronous: pipedream, 2bw; "
            "default: the plan's, else 1f1b.",
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Of a batch per replica; default: the plan's, else 8."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="<int>", help="Samples per microbatch, as for profile.", min=1),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            autocompletion=options.one_of("sgd", "adam", "adamw"),
            help="Optimizer: sgd, adam or adamw.",
        ),
    ] = "sgd",
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.01,
    device: options.DeviceType = "auto",
    dtype: options.ModelType = None,
    shape: options.SampleShape = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="A state_dict to start from (checkpoint merge, torch.save)."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Record start and end of each action; needs --workload.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; one is always written at the end.")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint, up to --steps.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare the first step's gradients with one process's."),
    ] = False,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Training jobs: .npy, .bin (16 bits), .u32; default: random."),
    ] = None,
    show_report: Annotated[
        bool,
        typer.Option("--report", help="Training jobs: the last step by term beside the plan's."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="timeout (s that a rank may keep others waiting), threads (per process), "
            "recompute=true, replicas (of the whole pipeline), clip (largest norm of gradients, "
            "training jobs).",
        ),
    ] = None,
) -> None:
    """Run PLAN: train the model, or run it forward if the plan is for inference.

    Training plans, training jobs and shardings run, too. Start it under torchrun with a process
    per device: torchrun --nproc-per-node 2 -m stagecut run plan.json --model my_model.py:make
    """
    from ..instances.formats.files import load
    from ..instances.formats.outline import read_outline
    from ..instances.job.plan import is_job_plan
    from .common.pose import setting_record

    need("torch", "runtime")
    check_outputs(
        record, inputs=[plan, workload, weights, tokens, None if model is None else file_of(model)]
    )
    import torch

    from ..runtime.execution.options import RunOptions
    from ..runtime.execution.run import run as run_plan

    rare = setting_record(RunSettings, settings or ())
    asked = RunOptions(
        steps=steps,
        schedule=schedule,
        microbatches=microbatches,
        replicas=rare.replicas,
        recompute=rare.recompute,
        optimizer=optimizer,
        learning_rate=learning_rate,
        device=device,
        threads=rare.threads,
        record=record,
        timeout_s=rare.timeout,
        checkpoint=checkpoint,
        every=every,
        resume=resume,
        check=check,
        clip=rare.clip,
        measure=show_report,
    )
    torch.manual_seed(0)  # all ranks make the same model; its factory may set another seed
    if is_job_plan(plan):
        others = {
            "--workload": workload, "--batch": batch,
            "--dtype": dtype, "--input": shape, "--weights": weights,
        }  # fmt: skip
        run_job_plan(Path(plan), model, tokens, asked, others)
        return
    if model is None:
        read_outline(plan)  # what is no plan is named first
        raise InputError("--model: name the factory that was profiled, such as my_model.py:make")
    if tokens is not None or rare.clip or show_report:
        raise InputError("--tokens, --report, --set clip: of training jobs alone; leave them out")
    factory = partial(_make, weights, model, batch=batch, shape=shape, dtype=dtype)
    known = None if workload is None else load(workload)
    done = run_plan(plan, factory, asked, workload=known, on_step=show_step)
    if os.environ.get("RANK", "0") != "0":
        return
    if resume and not done:
        OUT.print_wrapped(
            f"{checkpoint}: nothing is left; give more --steps than it has, and inputs"
        )
    if check and done:
        OUT.print_wrapped("checked: loss and gradients of the first step are those of one process")
    if len(done) < steps and not resume:
        OUT.print_wrapped(f"the inputs ended after {show_count(len(done), 'step')}")
    tell_written(record)


def _make(weights: Path | None, model: str, **options: Any) -> Made:
    """Make the model with the weights of a file, if there is one."""
    from ..instances.pytorch.factory import make
    from ..runtime.execution.checkpoint import load_weights

    made = make(model, **options)
    if weights is not None:
        load_weights(made.model, weights)
    return made


def run_job_plan(
    path: Path,
    model: str | None,
    tokens: Path | None,
    asked: RunOptions,
    others: Mapping[str, object],
) -> None:
    """Train under a job's plan and print each step, and the last one by term if asked.

    `others` are options of other plans by name, which are refused.
    """
    from ..instances.job.plan import load_job_plan
    from ..runtime.execution.job.run import planned_model, run_made, token_batches

    refuse(others, "the plan of a training job says it")
    plan = load_job_plan(path)
    if os.environ.get("RANK", "0") == "0" and tokens is None:
        OUT.print_wrapped("no --tokens: the model trains on random ones")
    make = partial(planned_model, plan, model)
    done = run_made(make, plan.layout, token_batches(plan, tokens), asked, show_step)
    if os.environ.get("RANK", "0") != "0":
        return
    if asked.resume and not done.losses:
        OUT.print_line(f"{asked.checkpoint}: it has {asked.steps} steps already; give more --steps")
    if done.measured and asked.measure:
        print_measured(plan, done.measured)
    if done.measured:
        tell_written(asked.record)


def show_step(step: StepResult) -> None:
    """Print a step."""
    OUT.print_wrapped(
        f"step {step.number + 1:>4}  loss {step.loss:<12.6g} {1e3 * step.seconds:.1f} ms"
    )


#: Measured term → the terms of an estimate that it covers.
_TERMS = {
    "compute": ("products", "attention", "pointwise", "layers", "recomputation", "host"),
    "tensor": ("tensor",), "context": ("context",), "expert": ("experts",),
    "data": ("weights", "gradients"), "bubble": ("bubble",), "optimizer": ("optimizer",),
}  # fmt: skip


def print_measured(plan: JobPlan, steps: tuple[MeasuredStep, ...]) -> None:
    """Print the step of the rank that computes longest beside the plan: time, traffic, memory."""
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
    OUT.print_wrapped(f"ranks are busy for {show_percent(share)} of the step")


def planned_terms(plan: JobPlan) -> dict[str, Any]:
    """Return the plan's seconds by measured term."""
    from ..api.estimate import estimate

    terms = estimate(plan.model, plan.layout, plan.cluster).terms
    return {name: sum(terms.get(each, 0.0) for each in of) for name, of in _TERMS.items()}
