"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..instances import InputError, PipelineJob, Throughput
from .common import options
from .common.console import check_outputs, tell_written
from .common.pose import Asked, build, state


def export_model(
    workload: options.WorkloadArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    problem: options.ProblemName = None,
    settings: options.Setting = None,
    split: options.PipelineSplit = None,
    microbatches: options.Microbatches = None,
    schedule: options.Schedule = None,
    cluster: options.ClusterFile = None,
    accelerators: options.Accelerators = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
) -> None:
    """Write the integer program of a throughput or pipeline problem as MPS or LP file.

    For plans see export.
    """
    from ..formulations.rules.cases import only_case
    from ..formulations.task import pose
    from ..instances.formats.files import load
    from ..solvers.registry import method_of

    asked = Asked(
        problem, settings or (), cluster, accelerators, cpus, memory, split, microbatches, schedule
    )
    loaded = load(workload)
    stated = state(asked, loaded, ())
    check_outputs(output, inputs=[workload, *stated.files])
    if stated.name not in ("throughput", "pipeline"):
        raise InputError(
            f"--problem: {stated.name} is not throughput or pipeline, whose programs are written"
        )
    posed, devices = build(stated, asked, loaded)
    assert devices is not None
    task = pose(loaded, devices, posed)
    method_of(posed.name, "milp").check("milp", task)
    # Pyomo takes a second to import
    if isinstance(posed, PipelineJob):
        from ..solvers.job.iteration.milp import export_model as write_iteration

        write_iteration(only_case(task), output)
    elif isinstance(posed, Throughput):
        from ..solvers.throughput.milp import export_model as write_throughput

        write_throughput(only_case(task), output)
    tell_written(output)
