"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances import (
    InputError,
    Throughput,
    is_iteration,
)
from .common import names, options
from .common.console import check_outputs, parse_bytes, tell_written
from .common.pose import (
    check_schedule_file,
    choose_cluster,
    pose_problem,
    read_schedule,
    with_rules,
)


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
            autocompletion=names.one_of("throughput", "pipeline"),
            help="throughput, or job (default with --microbatches).",
        ),
    ] = None,
    split: options.PipelineSplit = None,
    cpu_split: options.CpuCoreSplit = None,
    pipeline: options.PipelineOrder = None,
    overlap: options.Overlap = None,
    relayed: options.Relayed = None,
    microbatches: options.Microbatches = None,
    schedule: Annotated[
        str | None, typer.Option(help=f"{options.SCHEDULES}.", autocompletion=names.BATCH_SCHEDULE)
    ] = None,
    chunks: options.Chunks = None,
    pin: options.Pin = None,
    together: options.Together = None,
    apart: options.Apart = None,
    fixed: options.Fixed = None,
    max_stages: options.MaxStages = None,
) -> None:
    """Write the integer program of a throughput problem or training job as MPS or LP file.

    For plans see export.
    """
    from ..formulations.rules.reduce import only_case
    from ..formulations.task import pose
    from ..instances.formats.files import load
    from ..solvers.registry import method_of

    asked = read_schedule(schedule, microbatches)
    check_outputs(output, inputs=[workload, cluster, asked.file, fixed])
    loaded = load(workload)
    chosen = objective or ("throughput" if asked.microbatches is None else "pipeline")
    if chosen not in ("throughput", "pipeline"):
        raise InputError(f"--objective: {chosen!r} is not throughput or job")
    check_schedule_file(asked, chosen)
    limit = parse_bytes(memory, "--memory")
    devices = choose_cluster(loaded, cluster, accelerators, cpus, limit, chosen)
    problem = pose_problem(
        chosen,
        {
            "throughput": {
                "split": split,
                "cpu_split": cpu_split,
                "pipeline": pipeline,
                "overlap": overlap,
            },
            "pipeline": {
                "split": split,
                "overlap": overlap,
                "relayed": relayed,
                "microbatches": asked.microbatches,
                "schedule": asked.schedule,
                "actions": asked.actions,
                "chunks": chunks,
            },
        },
        loaded,
    )
    problem = with_rules(
        problem,
        devices,
        pin=pin,
        together=together,
        apart=apart,
        max_stages=max_stages,
        fixed=fixed,
    )
    method_of(problem.name, "milp").check("milp", pose(loaded, devices, problem))
    # Pyomo takes a second to import
    if is_iteration(problem):
        from ..solvers.job.iteration.milp import export_model as write_iteration

        write_iteration(only_case(pose(loaded, devices, problem)), output)
    elif isinstance(problem, Throughput):
        from ..solvers.throughput.milp import export_model as write_throughput

        write_throughput(only_case(pose(loaded, devices, problem)), output)
    tell_written(output)
