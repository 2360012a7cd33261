"""Options that several commands share, each with its help text, and completion of names.

Commands annotate their parameters with them; options of one command alone stand with it. Modules
that are slow to import are imported when the shell completes a name, so that help is immediate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ...instances import Split
from ...instances.common.choices import NAMED_SCHEDULES, PipelineSchedule

Complete = Callable[[str], list[str]]

#: Networks of a simulation.
NETWORKS = ("host", "p2p", "bus", "topology")

#: Formats and launchers that `stagecut export` writes placements for.
LAUNCHERS = ("python", "csv", "torchtitan", "megatron", "deepspeed", "vllm", "accelerate")


def one_of(*names: str) -> Complete:
    """Return a completion of beginnings of these names.

    Examples
    --------
    >>> one_of("greedy", "gpipe", "milp")("g")
    ['greedy', 'gpipe']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def on_request(module: str, names: Callable[[Any], Iterable[str]]) -> Complete:
    """Return a completion of names from a module of the package, imported at the first request."""
    return lambda incomplete: one_of(*names(import_module(f"stagecut.{module}")))(incomplete)


complete_method = on_request(
    "solvers", lambda m: dict.fromkeys(name for methods in m.METHODS.values() for name in methods)
)
complete_simulated = on_request("runtime.schedules", lambda m: m.SCHEDULES)
complete_topology = on_request(
    "instances.topologies",
    lambda m: (f"{kind}:" for kind in (*m.REGULAR, *m.RANDOM, "nvidia")),
)
complete_workload = on_request("instances.generate.catalogue", lambda m: sorted(m.CATALOGUE))
complete_machine = on_request(
    "instances.costs.clusters", lambda m: (device.name for device in m.accelerators())
)
complete_description = on_request("instances.costs.models", lambda m: m.shipped_models())
complete_recipe = on_request("instances.costs.layout", lambda m: m.RECIPES)


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_method(last)]


LAUNCHER = one_of("run", *LAUNCHERS)
PROBLEM = one_of("throughput", "pipeline", "latency", "mapping", "sharding")
SCHEDULE = one_of(*NAMED_SCHEDULES, PipelineSchedule.STREAM, "all")
RUN_SCHEDULE = one_of(*NAMED_SCHEDULES, "pipedream", "2bw")
BATCH_SCHEDULE = one_of(*NAMED_SCHEDULES)


# What is read
WorkloadArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=complete_workload, help="A file, or the name of a shipped workload."
    ),
]
PlanArgument = Annotated[Path, typer.Argument(help="A plan file.")]

# The problem
ProblemName = Annotated[
    str | None,
    typer.Option(
        autocompletion=PROBLEM,
        help="throughput, pipeline, latency, mapping, sharding, or a problem file: "
        "FILE.toml; default: as WORKLOAD suggests.",
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field of the problem: overlap=true. Repeatable.",
    ),
]
PipelineSplit = Annotated[
    Split | None,
    typer.Option(
        metavar="NAME",
        help="contiguous (default of pipelines), noncontiguous (default of throughput), or "
        "per-device.",
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(help="Microbatches of a batch per replica; makes it a pipeline."),
]
_SCHEDULES = (
    "stream (default with layer configurations), 1f1b (default), gpipe, interleaved, zb-h1, zb-h2, "
    "or a CSV file with a row of passes such as 0F0,0B0 per device"
)
Schedule = Annotated[str | None, typer.Option(autocompletion=SCHEDULE, help=f"{_SCHEDULES}.")]
ScheduleOrAll = Annotated[
    str | None,
    typer.Option(autocompletion=SCHEDULE, help=f"{_SCHEDULES}; all: a table."),
]
Mesh = Annotated[
    str | None,
    typer.Option(help="Mesh of a sharding: 4 or 2x4; with links: 2x4@20us:25GB/s,9us:9GB/s."),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        autocompletion=LAUNCHER,
        help="Plan only what run, or this launcher of export, can take.",
    ),
]

# The training job
GlobalBatch = Annotated[
    int | None,
    typer.Option(help="Training job: sequences per iteration."),
]
SequenceTokens = Annotated[
    int | None,
    typer.Option(help="Tokens per sequence of a job; default: the model's or 4096."),
]

# The devices
ClusterFile = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete_topology,
        help="A cluster file; of a training job h100:8x8; of a mapping torus2d:4x8, or a file.",
    ),
]
Accelerators = Annotated[int | None, typer.Option(help="Number of accelerators.")]
Cpus = Annotated[
    int | None,
    typer.Option(help="CPU cores; default: the workload's; none in a pipeline."),
]
Memory = Annotated[str | None, typer.Option(help="Memory of each accelerator, such as 16GiB.")]

# The search
TimeLimit = Annotated[
    float | None, typer.Option(help="Seconds; default: 60; of each search of a front 20.")
]
Gap = Annotated[
    float | None,
    typer.Option(help="Stop at this gap; default: 0.01 or less; of jobs 0.001."),
]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]

# The simulation
WeightShare = Annotated[
    float | None,
    typer.Option(
        help="Share of a backward pass that computes weight gradients; default: the plan's, "
        "else 0.5."
    ),
]

NetworkName = Annotated[
    str | None,
    typer.Option(
        autocompletion=one_of(*NETWORKS),
        help="host (default): as the plan's problem says, through host memory; p2p; bus: one "
        "shared link; topology (default if mapped).",
    ),
]
LinkBandwidth = Annotated[
    str | None,
    typer.Option(help="Bandwidth of p2p links or of the bus: 25GB/s; with host, of all-reduces."),
]
LinkLatency = Annotated[
    float, typer.Option(show_default=False, help="Latency of p2p links or of the bus, in seconds.")
]
Overlap = Annotated[
    bool | None,
    typer.Option(help="Whether transfers run beside compute; default: the plan's, over links yes."),
]

# The model
SampleShape = Annotated[
    str | None,
    typer.Option("--input", help="Shape of one sample if the factory gives none: 3x224x224."),
]
ModelType = Annotated[
    str | None, typer.Option(help="Convert the model to this type, such as bfloat16.")
]
DeviceType = Annotated[
    str,
    typer.Option(
        show_default=False, help="cpu (gloo), cuda (NCCL), or auto (default): cuda if there is one."
    ),
]

# What is written
PlanOutput = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
