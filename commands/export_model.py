"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..formulations.rules.reduce import only_case
from ..formulations.task import pose
from ..instances import (
    CpuSplit,
    InputError,
    Iteration,
    Pipeline,
    PipelineSchedule,
    Split,
    Throughput,
)
from ..instances.formats.files import load
from ..solvers.registry import method_of
from .console import OUT, check_outputs, parse_bytes
from .pose import Apart, MaxStages, Pin, Together, choose_cluster, parse_rules, pose_problem


def export_model(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    accelerators: Annotated[int | None, typer.Option(help="Number of accelerators.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of CPU cores.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each accelerator.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file, instead.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="throughput, or iteration (default with --microbatches)."),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="As for solve.")] = None,
    cpu_split: Annotated[CpuSplit | None, typer.Option(help="As for solve.")] = None,
    pipeline: Annotated[Pipeline | None, typer.Option(help="As for solve.")] = None,
    overlap: Annotated[
        bool | None, typer.Option("--overlap", help="Transfers run beside compute.")
    ] = None,
    relayed: Annotated[
        bool | None, typer.Option("--relayed", help="Iteration: data goes from stage to stage.")
    ] = None,
    microbatches: Annotated[int | None, typer.Option(help="Iteration: in a batch.")] = None,
    schedule: Annotated[
        PipelineSchedule | None, typer.Option(help="Iteration; default: 1f1b.")
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="Iteration: stages per device.")] = None,
    pin: Pin = None,
    together: Together = None,
    apart: Apart = None,
    max_stages: MaxStages = None,
) -> None:
    """Write the integer program of a throughput or iteration problem as MPS or LP file.

    For plans see export.
    """
    check_outputs(output, inputs=[workload, cluster])
    loaded = load(workload)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    chosen = objective or ("throughput" if microbatches is None else "iteration")
    if chosen not in ("throughput", "iteration"):
        raise InputError(f"--objective: {chosen!r} is not throughput or iteration")
    rules = {"placement_rules": parse_rules(pin, together, apart, max_stages, cluster)}
    problem = pose_problem(
        chosen,
        {
            "throughput": {
                "split": split,
                "cpu_split": cpu_split,
                "pipeline": pipeline,
                "overlap": overlap,
                **rules,
            },
            "iteration": {
                "split": split,
                "overlap": overlap,
                "relayed": relayed,
                "microbatches": microbatches,
                "schedule": schedule,
                "chunks": chunks,
                **rules,
            },
        },
    )
    method_of(problem.name, "milp").check("milp", pose(loaded, devices, problem))
    # Pyomo takes a second to import
    if isinstance(problem, Iteration):
        from ..solvers.iteration.milp import export_model as write_iteration

        write_iteration(only_case(pose(loaded, devices, problem)), output)
    elif isinstance(problem, Throughput):
        from ..solvers.throughput.milp import export_model as write_throughput

        write_throughput(only_case(pose(loaded, devices, problem)), output)
    OUT.print(f"written: {output}", highlight=False)
