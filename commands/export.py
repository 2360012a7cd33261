"""`stagecut export`: a plan in the words of another launcher."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..instances import InputError, Plan, Workload
from ..instances.files import load, load_plan
from ..instances.writing import write_whole
from .console import OUT


class To(StrEnum):
    """What a plan is written for."""

    csv = "csv"
    torchtitan = "torchtitan"
    megatron = "megatron"
    deepspeed = "deepspeed"
    vllm = "vllm"
    accelerate = "accelerate"


def export(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    to: Annotated[To, typer.Option("--to", help="The launcher; csv is torch's own schedule.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    schedule: Annotated[
        str | None,
        typer.Option(help="csv: gpipe, 1f1b, interleaved, zb-h1, zb-h2 or inference."),
    ] = None,
    microbatches: Annotated[int | None, typer.Option(help="csv: per step; default: 8.")] = None,
) -> None:
    """Write PLAN for another launcher; refuse with the reason if it cannot express it.

    The integer program that a plan solves is written by export-model.
    """
    loaded = load(workload)
    made = load_plan(plan, loaded)
    if to is To.csv:
        said = _write_csv(
            loaded, made, schedule, 8 if microbatches is None else microbatches, output
        )
    else:
        for option, given in (("--schedule", schedule), ("--microbatches", microbatches)):
            if given is not None:
                raise InputError(f"{option}: {to.value} has its own schedules; leave it out")
        from ..runtime.export.registry import launcher_file

        text, stages = launcher_file(loaded, made, to.value)
        write_whole(output, text)
        said = []
        if to is not To.accelerate:
            said = [stages.in_words]
            said += [f"rank {r}: {device}" for r, device in enumerate(stages.devices)]
    for line in said:
        OUT.print(line, highlight=False, soft_wrap=True)
    OUT.print(f"written: {output}", highlight=False, soft_wrap=True)


def _write_csv(
    workload: Workload, plan: Plan, schedule: str | None, microbatches: int, output: Path
) -> list[str]:
    from ..runtime.export.torch_csv import torch_csv, torch_schedule

    made, devices = torch_schedule(workload, plan, schedule, microbatches)
    write_whole(output, torch_csv(made))
    return [f"{made.name}, {microbatches} microbatches, a row per rank"] + [
        f"rank {r}: {plan.cluster.devices[d].name}, stages "
        + ", ".join(map(str, sorted({action.stage for action in made.of(r)})))
        for r, d in enumerate(devices)
    ]
