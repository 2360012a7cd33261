"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    InputError,
    Iteration,
    PipelineSchedule,
    Throughput,
)
from . import names, options
from .console import check_outputs, parse_bytes, tell_written
from .pose import choose_cluster, pose_problem


def export_model(
    workload: options.WorkloadArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    cluster: options.ClusterFile = None,
    objective: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.one_of("throughput", "iteration"),
            help="throughput, or iteration (default with --microbatches).",
        ),
    ] = None,
    split: options.PipelineSplit = None,
    cpu_split: options.CpuCoreSplit = None,
    pipeline: options.PipelineOrder = None,
    overlap: options.Overlap = None,
    relayed: options.Relayed = None,
    microbatches: options.Microbatches = None,
    schedule: Annotated[
        PipelineSchedule | None, typer.Option(help="Iteration; default: 1f1b.")
    ] = None,
    chunks: options.Chunks = None,
    max_stages: options.MaxStages = None,
) -> None:
    """Write the integer program of a throughput or iteration problem as MPS or LP file.

    For plans see export.
    """
    from ..formulations.task import pose
    from ..instances.formats.files import load
    from ..solvers.registry import method_of

    check_outputs(output, inputs=[workload, cluster])
    loaded = load(workload)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    chosen = objective or ("throughput" if microbatches is None else "iteration")
    if chosen not in ("throughput", "iteration"):
        raise InputError(f"--objective: {chosen!r} is not throughput or iteration")
    problem = pose_problem(
        chosen,
        {
            "throughput": {
                "split": split,
                "cpu_split": cpu_split,
                "pipeline": pipeline,
                "overlap": overlap,
            },
            "iteration": {
                "split": split,
                "overlap": overlap,
                "relayed": relayed,
                "microbatches": microbatches,
                "schedule": schedule,
                "chunks": chunks,
                "max_stages": max_stages,
            },
        },
    )
    method_of(problem.name, "milp").check("milp", pose(loaded, devices, problem))
    # Pyomo takes a second to import
    if isinstance(problem, Iteration):
        from ..solvers.iteration.milp import export_model as write_iteration

        write_iteration(pose(loaded, devices, problem), output)
    elif isinstance(problem, Throughput):
        from ..solvers.throughput.milp import export_model as write_throughput

        write_throughput(pose(loaded, devices, problem), output)
    tell_written(output)
