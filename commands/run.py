"""`stagecut run`: a plan runs on PyTorch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..instances import InputError
from .common import names, options
from .common.console import OUT, check_outputs, file_of, need, tell_written
from .run_job import run_job_plan, show_step

if TYPE_CHECKING:
    from ..instances.pytorch.factory import Made


@dataclass(frozen=True)
class RunSettings:
    """Options of a run that `--set` gives; see `RunOptions` and `JobOptions`."""

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
            help="module:factory or file.py:factory, as profiled. Of a training job: the model and "
            "its ParallelizePlan; default: the plan's own model.",
        ),
    ] = None,
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
    optimizer: Annotated[
        str,
        typer.Option(
            autocompletion=names.one_of("sgd", "adam", "adamw"), help="sgd, adam or adamw."
        ),
    ] = "sgd",
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.01,
    device: options.DeviceType = "auto",
    dtype: options.ModelType = None,
    shape: options.SampleShape = None,
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
    check: Annotated[
        bool, typer.Option("--check", help="Compare the first step's gradients with one process's.")
    ] = False,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Training jobs: .npy, or .bin (16 bits), .u32; default: random ones."),
    ] = None,
    show_report: Annotated[
        bool,
        typer.Option("--report", help="Training jobs: the last step by term, beside the plan's."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="timeout (s that a rank may keep others waiting), threads (per process), "
            "recompute=true, replicas (of the whole pipeline), clip (largest norm of gradients, "
            "training jobs). May be given again.",
        ),
    ] = None,
) -> None:
    """Run PLAN: train the model, or run it forward if the plan is for inference.

    Training plans, training jobs and shardings run, too. Start it under torchrun with a process
    per device: torchrun --nproc-per-node 2 -m stagecut run plan.json --model my_model.py:make
    """
    from ..instances.formats.files import load
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
    )
    torch.manual_seed(0)  # all ranks make the same model; its factory may set another seed
    if is_job_plan(plan):
        others = {
            "--workload": workload, "--microbatches": microbatches, "--batch": batch,
            "--dtype": dtype, "--input": shape, "--weights": weights,
        }  # fmt: skip
        run_job_plan(Path(plan), model, tokens, asked, (rare.clip, show_report), others)
        return
    if model is None:
        raise InputError("--model: name the factory that was profiled, such as my_model.py:make")
    if tokens is not None or rare.clip or show_report:
        raise InputError("--tokens, --report, --set clip: of training jobs alone; leave them out")
    factory = partial(_make, weights, model, batch=batch, shape=shape, dtype=dtype)
    known = None if workload is None else load(workload)
    done = run_plan(plan, factory, asked, workload=known, on_step=show_step)
    if os.environ.get("RANK", "0") != "0":
        return
    if resume and not done:
        OUT.print(f"{checkpoint}: it has {steps} steps already; give more --steps", highlight=False)
    if len(done) < steps and not resume:
        OUT.print(f"the inputs ended after {len(done)} steps", highlight=False)
    tell_written(record)


def _make(weights: Path | None, model: str, **options: Any) -> Made:
    """Make the model with the weights of a file, if there is one."""
    from ..instances.pytorch.factory import make
    from ..runtime.execution.model_state import load_weights

    made = make(model, **options)
    if weights is not None:
        load_weights(made.model, weights)
    return made
