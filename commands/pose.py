"""Options become a cluster and a problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..instances import (
    Cluster,
    InputError,
    Iteration,
    Latency,
    Problem,
    Throughput,
    Training,
    TrainingObjective,
    Workload,
    accelerators_and_cpus,
)
from ..instances.formats.files import load_cluster
from .console import ERR, show_bytes

#: Below, a unit was forgotten.
LEAST_MEMORY = 2**20

#: The last one is the old name of ``iteration`` for workloads with layer configurations.
OBJECTIVES = ("throughput", "iteration", "latency", "training", "training-batch")


def choose_cluster(
    workload: Workload,
    path: Path | None,
    accelerators: int | None,
    cpus: int | None,
    memory_bytes: float | None,
) -> Cluster:
    """Return the cluster that file and options give together; options win."""
    for option, count in (("--accelerators", accelerators), ("--cpus", cpus)):
        if count is not None and count < 0:
            raise InputError(f"{option}: {count}; it must be at least 0")
    cluster = workload.cluster if path is None else load_cluster(path)
    if cluster is None:
        if accelerators is None and cpus is None:
            raise InputError(
                f"{workload.name}: it suggests no cluster; give --accelerators, or --cluster FILE"
            )
        cluster = accelerators_and_cpus(1, 0)
    if memory_bytes is not None and memory_bytes < LEAST_MEMORY:
        text = f"--memory: {show_bytes(memory_bytes)} on each device; for GiB write 16GiB"
        ERR.print(text, style="dim", highlight=False)
    return cluster.with_counts(accelerators, cpus, memory_bytes)


def parse_degrees(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return the whole numbers in a text such as ``1,2,4``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{option}: {text!r} is no list of whole numbers; write for example 1,2,4"
        ) from None


def choose_objective(workload: Workload, asked: str | None, microbatches: int | None) -> str:
    """Return the objective that is asked for, or what a user of such a workload wants.

    A training workload that is given a number of microbatches is planned for the time of an
    iteration. With layer configurations, an iteration is a batch of `Training`.
    """
    if workload.layers is not None:
        return "training-batch" if asked == "iteration" else asked or "training"
    if asked is None and microbatches is not None and workload.backward.any():
        return "iteration"
    return asked or "throughput"


def pose_problem(objective: str, options: Mapping[str, Mapping[str, object]]) -> Problem:
    """Return the problem that the options ask for.

    Parameters
    ----------
    options
        By the problems they belong to; None where an option is not given.

    Raises
    ------
    InputError
        If the objective does not exist, or an option belongs to others.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"--objective: {objective!r} is not one of {', '.join(OBJECTIVES)}")
    mine = objective.removesuffix("-batch")
    own = options.get(mine, {})
    for values in options.values():
        for name, value in values.items():
            if value is not None and name not in own:
                takers = " or ".join(problem for problem in options if name in options[problem])
                raise InputError(
                    f"--{name.replace('_', '-')}: it belongs to --objective {takers}, "
                    f"and the objective is {mine}; leave it out"
                )
    given = {name: value for name, value in own.items() if value is not None}
    if mine == "throughput":
        return Throughput(**given)  # type: ignore[arg-type]  # the problem checks its fields
    if mine == "latency":
        return Latency(**given)  # type: ignore[arg-type]
    if mine == "iteration":
        if "microbatches" not in given:
            raise InputError("--microbatches: say how many an iteration has")
        return Iteration(**given)  # type: ignore[arg-type]
    if objective == "training-batch":
        given["objective"] = TrainingObjective.BATCH
    return Training(**given)  # type: ignore[arg-type]
