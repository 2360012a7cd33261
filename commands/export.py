"""`stagecut export`: a plan as files of another launcher."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    InputError,
    PipelinePlacement,
    Placement,
    Plan,
    ReplicaPlacement,
    Sharding,
    Workload,
)
from ..instances.common.escape import shell
from ..instances.formats.source import read_source
from ..instances.formats.writing import json_text, write_whole
from ..instances.model.problem import objective_unit
from .common import options
from .common.console import OUT, check_outputs, file_of, need, refuse, show_count, tell_written
from .common.pose import ProblemOptions, build, state, with_rings

#: Formats and launchers that a plan is written for.
To = StrEnum(
    "To", "python csv torchtitan megatron bridge maxtext deepspeed vllm accelerate dtensor"
)


def export(
    plan: options.PlanArgument,
    to: Annotated[
        To,
        typer.Option(
            "--to",
            metavar="NAME",
            help="python (a script that needs torch alone), csv (torch's schedule), torchtitan, "
            "megatron, bridge, maxtext, deepspeed, vllm, accelerate, dtensor (the placements of a "
            "sharding, as .py or .json).",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The file to write; for a training job, a folder."),
    ],
    workload: Annotated[
        str | None,
        typer.Option(help="The workload that the plan was made for; all but python need it."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.BATCH_SCHEDULE,
            help="python, csv: gpipe, 1f1b, interleaved, zb-h1 or zb-h2; default: the plan's, "
            "else 1f1b.",
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            help="python, csv: microbatches per step; default: the plan's, else 8.", min=1
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="python: module:factory or file.py:factory, as profiled.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="python: samples per microbatch, as for profile.", min=1)
    ] = None,
) -> None:
    """Write PLAN for another launcher; refuse with the reason if it cannot express it.

    The integer program that plans solve is written by export-model.
    """
    from ..instances.formats.files import load, load_plan_with_form
    from ..instances.job.plan import is_job_plan

    if is_job_plan(plan):
        from .job import export_job

        others = {
            "--schedule": schedule, "--microbatches": microbatches, "--model": model,
            "--batch": batch, "--workload": workload,
        }  # fmt: skip
        refuse(others, "not of a training job")
        export_job(Path(plan), to.value, output)
        return
    if to in (To.bridge, To.maxtext):
        raise InputError(f"{to.value}: it takes plans of training jobs alone: solve --global-batch")
    if to not in (To.python, To.csv):
        given = {"--schedule": schedule, "--microbatches": microbatches}
        refuse(given, "only for --to python or csv")
    if to is not To.python:
        refuse({"--model": model, "--batch": batch}, "only for --to python")
    inputs = [plan, workload, None if model is None else file_of(model)]
    check_outputs(output, inputs=inputs)
    loaded = None if workload is None else load(workload)
    if to is To.python:
        if model is None:
            raise InputError(
                "--model: the script makes the model; name its factory: my_model.py:make"
            )
        text, notes = _python(plan, loaded, model, batch, schedule, microbatches, output)
    elif loaded is None:
        read_source(plan)  # what is no file is told first
        raise InputError(f"--workload: {to.value} needs what the plan was made for; name it")
    else:
        loaded, made = load_plan_with_form(plan, loaded)
        if to is To.dtensor:
            text, notes = _dtensor(loaded, made, output), []
        elif to is To.csv:
            text, notes = _csv(loaded, made, schedule, microbatches)
        else:
            text, notes = _for_launcher(loaded, made, to)
    write_whole(output, text)
    for line in notes:
        OUT.print_line(line)
    tell_written(output)


def _for_launcher(workload: Workload, plan: Plan, to: To) -> tuple[str, list[str]]:
    from ..runtime.export.registry import launcher_file

    if to is To.torchtitan and isinstance(plan.problem, Sharding):
        from ..runtime.export.shardings import torchtitan_sharding

        return torchtitan_sharding(workload, plan), []
    text, stages = launcher_file(workload, plan, to.value)
    if to is To.accelerate:
        return text, []
    return text, [stages.in_words, *(f"rank {r}: {name}" for r, name in enumerate(stages.devices))]


def _dtensor(workload: Workload, plan: Plan, output: Path) -> str:
    from ..runtime.export.shardings import dtensor_json, dtensor_python

    if output.suffix == ".py":
        return dtensor_python(workload, plan)
    if output.suffix == ".json":
        return json_text(dtensor_json(workload, plan))
    raise InputError(f"--output: {output.name}; dtensor is written as .py or .json")


def _csv(
    workload: Workload, plan: Plan, schedule: str | None, microbatches: int | None
) -> tuple[str, list[str]]:
    from ..runtime.export.registry import torch_schedule
    from ..runtime.schedules import write_csv

    made, devices = torch_schedule(workload, plan, schedule, microbatches)
    return write_csv(made), [
        f"{made.name}, {show_count(made.microbatches, 'microbatch')}, a row per rank",
        *(
            f"rank {r}: {plan.device_names[d]}, stages "
            + ", ".join(map(str, sorted({action.stage for action in made.of(r)})))
            for r, d in enumerate(devices)
        ),
    ]


def _python(
    plan: Path,
    workload: Workload | None,
    model: str,
    batch: int | None,
    schedule: str | None,
    microbatches: int | None,
    output: Path,
) -> tuple[str, list[str]]:
    need("torch", "runtime")
    from ..instances.pytorch.factory import call_text, make
    from ..runtime.execution.chain import executed_schedule
    from ..runtime.execution.own_loop.loop import stage_chain
    from ..runtime.execution.prepare import split_model
    from ..runtime.export.python_script import MappedRanks, python_script
    from ..runtime.simulate.plan_stages import named_schedule, schedule_to_run

    made = make(model, batch=batch)
    if made.kwargs and made.args:
        raise InputError(f"{model}: give its inputs all by position, or all by name")
    ready = split_model(plan, made.model, made.args, made.kwargs, workload)
    if not isinstance(ready.plan.solution, Placement | PipelinePlacement | ReplicaPlacement):
        raise InputError(
            f"python: the plan is for {ready.plan.problem.name}; a script runs placements and "
            "mappings: plan with --problem pipeline, throughput or mapping"
        )
    schedule, microbatches = schedule_to_run(ready.plan, schedule, microbatches)
    stages, mapped = ready.stages, None
    if isinstance(ready.plan.solution, ReplicaPlacement):
        rank = {d: r for r, d in enumerate(ready.devices)}
        pipelines = tuple(tuple(rank[d] for d in own) for own in zip(*stages.replicas, strict=True))
        mapped = MappedRanks(pipelines, tuple(ready.plan.device_names[d] for d in ready.devices))
        rows = [[s] for s in range(stages.count)]  # of one pipeline: all replicas do the same
        stages = stage_chain(rows, stages.count, training=ready.training)
    text = python_script(
        made.model,
        ready.pieces,
        executed_schedule(named_schedule(ready.plan, schedule), stages, microbatches),
        factory=model,
        call=call_text(model, batch),
        training=ready.training,
        title=f"{ready.plan.workload_name}, planned by {ready.plan.method}",
        mapped=mapped,
    )
    cut = show_count(len(ready.pieces), "stage")
    ranks = show_count(len(ready.devices), "rank")
    start = f"torchrun --nproc-per-node {len(ready.devices)} {shell(str(output))}"
    return text, [f"{cut} on {ranks}; start: {start}"]


def export_model(
    workload: options.WorkloadArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    formulation: Annotated[
        str | None, typer.Option(help="Which program to write; an unknown name lists all.")
    ] = None,
    problem: options.ProblemName = None,
    settings: options.Setting = None,
    split: options.PipelineSplit = None,
    microbatches: options.Microbatches = None,
    schedule: options.Schedule = None,
    mesh: options.Mesh = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
) -> None:
    """Write an integer program of a problem as MPS or LP file.

    For plans see export.
    """
    from ..instances.formats.files import load

    requested = ProblemOptions(
        problem, settings or (), cluster, accelerators, cpus, memory, split, microbatches, schedule,
        mesh,
    )  # fmt: skip
    loaded = load(workload)
    stated = state(requested, loaded, ())
    check_outputs(output, inputs=[workload, *stated.files])
    loaded, posed, devices = build(stated, requested, loaded)
    posed = with_rings(stated, posed, "joint")
    from ..api.formulation import formulation as state_program  # Pyomo takes a second to import

    program = state_program(loaded, devices, posed, formulation)
    program.write(output)
    tell_written(output)
    unit = objective_unit(posed, loaded.time_unit)
    OUT.print(f"formulation {program.name}; its objective times {program.scale:g} is in {unit}")
