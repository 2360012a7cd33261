"""Options that several commands share, each with its one help text.

A command takes them as annotations of its parameters; what only one command has stays with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...instances import CpuSplit, Pipeline, Split
from ...instances.common.choices import Tied
from . import names

# What is read
WorkloadArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=names.complete_workload, help="A file, or the name of a shipped workload."
    ),
]
PlanArgument = Annotated[Path, typer.Argument(help="A plan file.")]

# The cluster
Accelerators = Annotated[int | None, typer.Option(help="Number of accelerators.")]
Cpus = Annotated[
    int | None,
    typer.Option(help="Number of CPU cores; default: the file's, for a training job none."),
]
Memory = Annotated[str | None, typer.Option(help="Memory of each accelerator, such as 16GiB.")]
ClusterFile = Annotated[Path | None, typer.Option(help="A cluster file, instead.")]

# The problem
PipelineSplit = Annotated[
    Split | None,
    typer.Option(help="Default: contiguous for a job, noncontiguous for throughput."),
]
CpuCoreSplit = Annotated[
    CpuSplit | None,
    typer.Option(help="free: a CPU core's nodes lie anywhere. Default: contiguous."),
]
PipelineOrder = Annotated[
    Pipeline | None, typer.Option(help="pipedream: 1F1B and inference, too; the default.")
]
Overlap = Annotated[bool | None, typer.Option("--overlap", help="Transfers run beside compute.")]
Relayed = Annotated[
    bool | None,
    typer.Option(
        "--relayed", help="Data is passed from stage to stage, as PyTorch does (contiguous)."
    ),
]
TiedWeights = Annotated[
    Tied | None,
    typer.Option(
        help="Weights used twice: copies, or colour (one device). Default: as the file has it."
    ),
]
Runnable = Annotated[
    bool,
    typer.Option(
        "--runnable",
        help="Plan only what stagecut run can run: code that depends on numbers is not cut.",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        autocompletion=names.LAUNCHER,
        help="A launcher that export writes for: plan what it can run, or say what to do instead.",
    ),
]
Calls = Annotated[int | None, typer.Option(help="Latency: calls per accelerator.")]
Microbatches = Annotated[int | None, typer.Option(help="Job: in a batch.")]
Chunks = Annotated[
    int | None, typer.Option(help="Job: stages per device, if interleaved; default: 2.")
]

# Placement rules
Pin = Annotated[
    list[str] | None,
    typer.Option(
        help="PATTERN=NUMBER: nodes whose id or name matches are on device NUMBER, or (chains of "
        "stages) in stage NUMBER; -1 is the last. May be given again."
    ),
]
Together = Annotated[
    list[str] | None,
    typer.Option(
        help="'PATTERN …': all nodes that match share a device (or stage). May be given again."
    ),
]
Apart = Annotated[
    list[str] | None,
    typer.Option(
        help="'PATTERN PATTERN …': nodes of different patterns share no device; of a single "
        "pattern, no two nodes. May be given again."
    ),
]
MaxStages = Annotated[int | None, typer.Option(help="At most so many stages, or devices in use.")]
Fixed = Annotated[
    Path | None,
    typer.Option(help="A plan or split file: the nodes that it names stay where they are there."),
]

#: What names and files `--schedule` takes.
SCHEDULES = (
    "Job: stream (default with layer configurations), 1f1b (default without), gpipe, interleaved, "
    "zb-h1, zb-h2; a CSV file with a row of passes such as 0F0,0B0 for each device"
)

# The search
TimeLimit = Annotated[float, typer.Option(help="Seconds.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]

WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes that search at a time; default: one per core, with --scheduler one per "
        "thread of its workers.",
        min=1,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Exchange finds between processes at the end alone: the same result for a seed, "
        "--node-limit and --workers.",
    ),
]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler whose workers search too.")
]

# The simulation
WeightShare = Annotated[
    float | None,
    typer.Option(
        help="Part of a backward pass that computes weight gradients; default: the plan's, "
        "else 0.5."
    ),
]

# The model
SampleShape = Annotated[
    str | None,
    typer.Option("--input", help="Shape of a sample, such as 3x224x224, if none is given."),
]
ModelType = Annotated[str | None, typer.Option(help="Convert the model, as to bfloat16.")]
DeviceType = Annotated[
    str, typer.Option(help="cpu (over gloo), cuda (over NCCL), or auto: cuda if there is one.")
]

# What is written
PlanOutput = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
