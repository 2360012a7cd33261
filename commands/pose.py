"""Options become a cluster and a problem."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ..instances import (
    Cluster,
    DeviceMapping,
    InputError,
    Iteration,
    Latency,
    PlacementRules,
    Problem,
    Throughput,
    Training,
    TrainingObjective,
    Workload,
    accelerators_and_cpus,
)
from ..instances.common.errors import quote
from ..instances.formats.files import load_cluster, load_fixed, load_rules
from ..instances.model.placement_rules import NO_RULES

T = TypeVar("T", bound=Problem)

#: The options of placement rules, as commands have them.
Pin = Annotated[
    list[str] | None,
    typer.Option(
        help="PATTERN=NUMBER: nodes whose id or name matches are on device NUMBER, or (chains of "
        "stages) in stage NUMBER; -1 is the last. May be given again."
    ),
]
Together = Annotated[
    list[str] | None,
    typer.Option(help="'PATTERN …': all nodes that match share a device. May be given again."),
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


def parse_rules(
    pin: Sequence[str] | None,
    together: Sequence[str] | None,
    apart: Sequence[str] | None,
    max_stages: int | None,
    cluster: Path | None = None,
) -> PlacementRules:
    """Return the rules that options ask for, with those of a cluster file.

    Raises
    ------
    InputError
        If an option cannot be read.
    """
    told = NO_RULES if cluster is None else load_rules(cluster)
    return PlacementRules(
        pins=(*told.pins, *(_pin(text) for text in pin or ())),
        together=(*told.together, *(_patterns(text, "--together") for text in together or ())),
        apart=(*told.apart, *(_patterns(text, "--apart") for text in apart or ())),
        max_stages=told.max_stages if max_stages is None else max_stages,
        fixed=told.fixed,
    )


def with_fixed(problem: T, fixed: Path | None, cluster: Cluster) -> T:
    """Return the problem with the nodes of a file fixed."""
    if fixed is None or isinstance(problem, DeviceMapping):
        return problem
    rules, more = problem.placement_rules, load_fixed(fixed, problem, cluster)
    return replace(problem, placement_rules=replace(rules, fixed=(*rules.fixed, *more)))


def _pin(text: str) -> tuple[str, int]:
    pattern, _, number = text.rpartition("=")
    try:
        where = int(number) if pattern else None
    except ValueError:
        where = None
    if where is None:
        raise InputError(
            f"--pin: {quote(text)} is no PATTERN=NUMBER; write for example 'embed*=0'"
        )
    return pattern, where


def _patterns(text: str, option: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{option}: {quote(text)}: {error}; quotes come in pairs") from None
    if not found:
        raise InputError(f"{option}: it is empty; name patterns, such as 'attention* mlp*'")
    return found
