"""`stagecut run`: a plan runs on PyTorch."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..instances import InputError
from ..instances.common.errors import quote
from .common import names, options
from .common.console import OUT, check_outputs, file_of, need, tell_written

if TYPE_CHECKING:
    from ..instances import Workload
    from ..instances.pytorch.factory import Made
    from ..runtime.execution.steps import StepResult


def run(
    plan: options.PlanArgument,
    model: Annotated[str, typer.Option(help="module:factory or file.py:factory, as profiled.")],
    workload: Annotated[
        str | None,
        typer.Option(help="What the plan was made for: the model is checked against it."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Batches to run.")] = 10,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.RUN_SCHEDULE,
            help="gpipe, 1f1b, interleaved, zb-h1, zb-h2; asynchronous: pipedream, 2bw. "
            "Default: what the plan was made for, else 1f1b.",
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Per batch and replica; default: what the plan was made for, else 8."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples per microbatch, as for profile.", min=1)
    ] = None,
    replicas: Annotated[int, typer.Option(help="Copies of the whole pipeline.")] = 1,
    optimizer: Annotated[
        str,
        typer.Option(
            autocompletion=names.one_of("sgd", "adam", "adamw"), help="sgd, adam or adamw."
        ),
    ] = "sgd",
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.01,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute activations again in the backward pass.")
    ] = False,
    device: options.DeviceType = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads per process; default: the cores, shared.")
    ] = None,
    dtype: options.ModelType = None,
    shape: options.SampleShape = None,
    seed: Annotated[int, typer.Option(help="Of torch, before the model is made.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(help="state_dict to begin with, as checkpoint merge and torch.save write it."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write when each action began and ended; needs --workload.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; one at the end in any case.")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, up to --steps.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds that a rank may keep others waiting, at work or at the start."),
    ] = 120.0,
    report: Annotated[
        bool, typer.Option("--report", help="Compare what was recorded with its simulation.")
    ] = False,
) -> None:
    """Run PLAN: train the model, or run it forward if the plan is for inference.

    Training plans and shardings run, too. Start it under torchrun with a process per device of
    the plan: torchrun --nproc-per-node 2 -m stagecut run plan.json --model my_model.py:make
    """
    from ..instances.formats.files import load

    need("torch", "runtime")
    if report and record is None:
        raise InputError("--report: it compares what --record writes; give both")
    if not 0 <= seed < 2**31:
        raise InputError(f"--seed: {quote(seed)}; it must be from 0 to {2**31 - 1}")
    check_outputs(record, inputs=[plan, workload, weights, file_of(model)])
    import torch

    from ..runtime.execution.options import RunOptions
    from ..runtime.execution.run import run as run_plan

    asked = RunOptions(
        steps=steps,
        schedule=schedule,
        microbatches=microbatches,
        replicas=replicas,
        recompute=recompute,
        optimizer=optimizer,
        learning_rate=learning_rate,
        device=device,
        threads=threads,
        record=record,
        timeout_s=timeout,
        checkpoint=checkpoint,
        every=every,
        resume=resume,
    )
    torch.manual_seed(seed)
    factory = partial(_make, weights, model, batch=batch, shape=shape, dtype=dtype)
    known = None if workload is None else load(workload)
    done = run_plan(plan, factory, asked, workload=known, on_step=_show)
    if os.environ.get("RANK", "0") != "0":
        return
    if resume and not done:
        OUT.print(f"{checkpoint}: it has {steps} steps already; give more --steps", highlight=False)
    if len(done) < steps and not resume:
        OUT.print(f"the inputs ended after {len(done)} steps", highlight=False)
    tell_written(record)
    if report and record is not None and known is not None:
        _report(plan, known, record)


def _report(plan: Path, known: Workload, record: Path) -> None:
    from ..instances import Sharding
    from ..instances.formats.files import load_plan_with_form

    known, made = load_plan_with_form(plan, known)
    if isinstance(made.problem, Sharding):
        from ..runtime.accuracy.sharded import compare_sharded_run
        from ..runtime.execution.sharded.recording import load_sharded_recording
        from .show.recorded_run import print_sharded_run

        print_sharded_run(compare_sharded_run(known, made, load_sharded_recording(record)))
        return
    from ..runtime.accuracy.join import compare_run
    from ..runtime.execution.recording_file import load_recording
    from .show.recorded_run import print_report

    print_report(compare_run(known, made, load_recording(record)))


def _make(weights: Path | None, model: str, **options: Any) -> Made:
    """Make the model with the weights of a file, if there is one."""
    from ..instances.pytorch.factory import make
    from ..runtime.execution.model_state import load_weights

    made = make(model, **options)
    if weights is not None:
        load_weights(made.model, weights)
    return made


def _show(step: StepResult) -> None:
    OUT.print(
        f"step {step.number + 1:>4}  loss {step.loss:<12.6g} {1e3 * step.seconds:.1f} ms",
        highlight=False,
    )
