"""`stagecut export-model`: write the integer program for any other solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..formulations.task import pose
from ..instances import CpuSplit, Pipeline, Split, Throughput
from ..instances.formats.files import load
from .console import OUT, check_outputs, parse_bytes
from .pose import choose_cluster, pose_problem


def export_model(
    workload: Annotated[str, typer.Argument(help="A file, or the name of a shipped workload.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .mps or .lp file.")],
    accelerators: Annotated[int | None, typer.Option(help="Number of accelerators.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of CPU cores.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each accelerator.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file, instead.")] = None,
    split: Annotated[Split, typer.Option(help="As for solve.")] = Split.NONCONTIGUOUS,
    cpu_split: Annotated[CpuSplit, typer.Option(help="As for solve.")] = CpuSplit.CONTIGUOUS,
    pipeline: Annotated[Pipeline, typer.Option(help="As for solve.")] = Pipeline.PIPEDREAM,
    overlap: Annotated[bool, typer.Option(help="Transfers run beside compute.")] = False,
) -> None:
    """Write the compact integer program of a throughput problem as MPS or LP file.

    For plans see export.
    """
    from ..solvers.throughput.milp import (
        export_model as write_model,  # Pyomo takes a second to import
    )

    check_outputs(output, inputs=[workload, cluster])
    loaded = load(workload)
    devices = choose_cluster(loaded, cluster, accelerators, cpus, parse_bytes(memory, "--memory"))
    options: dict[str, object] = {"split": split, "cpu_split": cpu_split}
    options |= {"pipeline": pipeline, "overlap": overlap}
    problem = pose_problem("throughput", {"throughput": options})
    assert isinstance(problem, Throughput)
    write_model(pose(loaded, devices, problem), output)
    OUT.print(f"written: {output}", highlight=False)
