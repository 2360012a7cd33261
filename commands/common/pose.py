"""Options become a cluster, a problem, and the network of a simulation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...instances import (
    Cluster,
    DeviceMapping,
    InputError,
    Latency,
    Link,
    PipelineJob,
    PipelineSchedule,
    Plan,
    Problem,
    Sharding,
    Throughput,
    Workload,
    accelerators_and_cpus,
)
from ...instances.common.choices import Tied
from ...instances.common.errors import quote
from ...instances.formats.rules_files import load_fixed, load_rules
from ...instances.formats.source import read_source
from ...instances.model.placement_rules import NO_RULES, PlacementRules
from ...instances.model.problem import suggested_cluster
from ...instances.model.schedule import given_order
from .console import ERR, parse_bytes, show_bytes

T = TypeVar("T", bound=Problem)

if TYPE_CHECKING:
    from ...runtime.simulate.network import Network, Sharing
    from ...runtime.simulate.stages import StageGraph

#: Below, a unit was forgotten.
LEAST_MEMORY = 2**20

OBJECTIVES = ("throughput", "pipeline", "latency")
NETWORKS = ("host", "p2p", "bus", "topology")


def choose_cluster(
    workload: Workload,
    path: Path | None,
    accelerators: int | None,
    cpus: int | None,
    memory_bytes: float | None,
    objective: str = "throughput",
) -> Cluster:
    """Return the cluster that file and options give together; options win."""
    from ...instances.formats.files import load_cluster

    for option, count in (("--accelerators", accelerators), ("--cpus", cpus)):
        if count is not None and count < 0:
            raise InputError(f"{option}: {count}; it must be at least 0")
    cluster = suggested_cluster(workload, objective) if path is None else load_cluster(path)
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

    A workload with layer configurations, and one with a backward pass that is given a number of
    microbatches, is planned as a training job.

    Raises
    ------
    InputError
        If microbatches of a workload for inference are given, and not what for.
    """
    if asked is None and workload.layers is not None:
        return "pipeline"
    if asked is None and microbatches is not None:
        if workload.backward.any():
            return "pipeline"
        raise InputError(
            f"--microbatches: {workload.name} has no backward pass, so it is planned for a stream "
            "without end; give --objective job for forward passes of a batch, or a workload "
            "for training (profile --train)"
        )
    return asked or "throughput"


def choose_ties(
    workload: Workload, tied: Tied | None, objective: str, microbatches: int | None
) -> Workload:
    """Return the workload with its tied weights in the form asked for.

    Copies are reduced once in an iteration, so their all-reduce is shared by its microbatches.
    """
    from ...instances.model.tied_weights import are_copied, tied_as

    if tied is not None and not workload.ties:
        kept = (
            "; its colours, which name no weights, stay together"
            if any(len(nodes) > 1 for nodes in workload.colour_classes)
            else ""
        )
        ERR.print(
            f"--tied: {workload.name} names no tied weights{kept}", style="dim", highlight=False
        )
    iteration = objective == "pipeline" and workload.layers is None
    if tied is None and not (iteration and are_copied(workload)):
        return workload
    return tied_as(workload, tied or Tied.COPIES, microbatches or 1 if iteration else 1)


def pose_problem(
    objective: str,
    options: Mapping[str, Mapping[str, object]],
    workload: Workload | None = None,
) -> Problem:
    """Return the problem that the options ask for.

    Parameters
    ----------
    options
        By the problems they belong to; None where an option is not given.
    workload
        Whose usual schedule a training job has if none is given.

    Raises
    ------
    InputError
        If the objective does not exist, an option belongs to others, or options contradict each
        other.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"--objective: {objective!r} is not one of {', '.join(OBJECTIVES)}")
    own = options.get(objective, {})
    for values in options.values():
        for name, value in values.items():
            if value is not None and name not in own:
                takers = " or ".join(problem for problem in options if name in options[problem])
                raise InputError(
                    f"--{name.replace('_', '-')}: it belongs to --objective {takers}, "
                    f"and the objective is {objective}; leave it out"
                )
    given = {name: value for name, value in own.items() if value is not None}
    if objective == "throughput":
        return Throughput(**given)  # type: ignore[arg-type]  # the problem checks its fields
    if objective == "latency":
        return Latency(**given)  # type: ignore[arg-type]
    job = PipelineJob(**given)  # type: ignore[arg-type]
    return job if workload is None else job.for_workload(workload)


def choose_network(
    stages: StageGraph,
    plan: Plan,
    name: str | None,
    bandwidth: str | None,
    latency: float,
    sharing: Sharing | None,
    overlap: bool | None,
) -> Network:
    """Return the network that the options describe."""
    from ...runtime.simulate.network import HostMemory, Links, Sharing, point_to_point, shared
    from ...runtime.simulate.plan_stages import usual_network

    usual = usual_network(plan)
    own = "topology" if isinstance(usual, Links) else "host"
    name = name or own
    if name not in NETWORKS:
        raise InputError(f"--network: {name!r} is not one of {', '.join(NETWORKS)}")
    if name == "topology" and own != name:
        raise InputError(f"--network topology: the plan is for {plan.problem.name}, not mapped")
    speed = parse_bytes(bandwidth, "--bandwidth")
    link = None if speed is None else Link(latency, speed)
    if sharing is not None and name != "bus":
        raise InputError("--sharing: it is the bus's; leave it out, or add --network bus")
    if isinstance(usual, Links) and name == "topology":
        if link is not None or latency:
            option = "--latency" if link is None else "--bandwidth"
            raise InputError(f"{option}: the topology has its own; leave it out")
        return replace(usual, overlap=overlap is not False)
    if latency and link is None:
        raise InputError("--latency: it is a link's; give its --bandwidth too")
    if name == "host":
        default = isinstance(usual, HostMemory) and usual.overlap
        return HostMemory(default if overlap is None else overlap, all_reduce=link)
    if link is None:
        raise InputError(f"--network {name}: give --bandwidth, such as 25GB/s")
    beside = overlap is not False
    if name == "p2p":
        return point_to_point(len(stages.devices), link, overlap=beside)
    return shared(len(stages.devices), link, sharing=sharing or Sharing.FAIR, overlap=beside)


def with_rules(
    problem: T,
    cluster: Cluster,
    *,
    pin: Sequence[str] | None,
    together: Sequence[str] | None,
    apart: Sequence[str] | None,
    max_stages: int | None,
    fixed: Path | None = None,
    file: Path | None = None,
) -> T:
    """Return the problem with the rules that options ask for, and those of a cluster file.

    Raises
    ------
    InputError
        If an option cannot be read, or a file is broken.
    """
    if isinstance(problem, DeviceMapping | Sharding):
        return problem
    told = NO_RULES if file is None else load_rules(file)
    placed = () if fixed is None else load_fixed(fixed, problem, cluster)
    rules = PlacementRules(
        pins=(*told.pins, *(_pin(text) for text in pin or ())),
        together=(*told.together, *(_patterns(text, "--together") for text in together or ())),
        apart=(*told.apart, *(_patterns(text, "--apart") for text in apart or ())),
        max_stages=told.max_stages if max_stages is None else max_stages,
        fixed=(*told.fixed, *placed),
    )
    return replace(problem, placement_rules=rules)


def _pin(text: str) -> tuple[str, int]:
    pattern, _, number = text.rpartition("=")
    try:
        where = int(number) if pattern else None
    except ValueError:
        where = None
    if where is None:
        raise InputError(f"--pin: {quote(text)} is no PATTERN=NUMBER, such as 'embed*=0'")
    return pattern, where


def _patterns(text: str, option: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{option}: {quote(text)}: {error}; quotes come in pairs") from None
    if not found:
        raise InputError(f"{option}: it is empty; name patterns, such as 'attention* mlp*'")
    return found


class Asked(NamedTuple):
    """What `--schedule` and `--microbatches` say, None where they say nothing."""

    schedule: str | None
    microbatches: int | None
    actions: tuple[str, ...] | None = None
    file: str | None = None


def read_schedule(schedule: str | None, microbatches: int | None) -> Asked:
    """Return what the options say; a file also says how many microbatches there are.

    Raises
    ------
    InputError
        If the file holds no schedule, with row and column, or is of other microbatches.
    """
    if schedule == PipelineSchedule.GIVEN:
        raise InputError("--schedule: name the CSV file that gives it, such as my.csv")
    if schedule is None or not names_file(schedule):
        return Asked(schedule, microbatches)
    order = given_order(read_source(schedule).text.splitlines(), schedule)
    if microbatches not in (None, order.microbatches):
        raise InputError(
            f"--microbatches: {microbatches}; {schedule} is of {order.microbatches}: leave it out"
        )
    return Asked(PipelineSchedule.GIVEN, order.microbatches, order.texts, schedule)


def names_file(schedule: str) -> bool:
    """Whether `--schedule` names a file."""
    return schedule.lower().endswith(".csv")


def check_schedule_file(asked: Asked, objective: str) -> None:
    """Raise InputError if a file is given for another objective than a training job."""
    if asked.actions is not None and objective != "pipeline":
        raise InputError(f"--schedule: a file is for --objective job, not {objective}")
