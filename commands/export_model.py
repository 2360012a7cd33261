"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..instances.model.problem import objective_unit
from .common import options
from .common.console import OUT, check_outputs, tell_written
from .common.pose import Asked, build, state


def export_model(
    workload: options.WorkloadArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    formulation: Annotated[
        str | None, typer.Option(help="Which program; a wrong name is answered with all.")
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

    asked = Asked(
        problem, settings or (), cluster, accelerators, cpus, memory, split, microbatches, schedule,
        mesh,
    )  # fmt: skip
    loaded = load(workload)
    stated = state(asked, loaded, ())
    check_outputs(output, inputs=[workload, *stated.files])
    if stated.name == "mapping":  # whose program knows rings alone
        stated = replace(stated, fields={"collective": "ring", **stated.fields})
    loaded, posed, devices = build(stated, asked, loaded)
    from ..api.formulation import formulation as state_program  # Pyomo takes a second to import

    program = state_program(loaded, devices, posed, formulation)
    program.write(output)
    tell_written(output)
    unit = objective_unit(posed, loaded.time_unit)
    OUT.print(f"formulation {program.name}; its objective times {program.scale:g} is in {unit}")
