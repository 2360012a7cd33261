"""Problems, their devices, and networks of simulations, from options and problem files.

A problem is stated by its fields, which options, a problem file
(`instances/formats/problem_toml.py`) or ``--set FIELD=VALUE`` set. `state` merges the three and
refuses contradictions; `build` checks the fields and chooses the devices. The module also reads
meshes and links as they are typed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...instances import (
    Cluster,
    DeviceMapping,
    DeviceMesh,
    InputError,
    Link,
    PipelineJob,
    PipelineSchedule,
    Plan,
    PrimitiveLink,
    Problem,
    Sharding,
    Topology,
    Workload,
    accelerators_and_cpus,
)
from ...instances.common.choices import Collective, Primitive, Rounds, Tied
from ...instances.common.errors import quote
from ...instances.common.units import parse_seconds
from ...instances.formats.files import load_fixed, load_rules
from ...instances.formats.problem_toml import (
    PROBLEMS,
    FromText,
    Table,
    make_record,
    read_setting,
    read_tables,
    required_fields,
)
from ...instances.formats.source import PLAN, read_source
from ...instances.job.plan import is_job_plan
from ...instances.model.completed import complete
from ...instances.model.placement_rules import NO_RULES, PlacementRules
from ...instances.model.problem import suggested_cluster, usual_problem
from ...instances.model.schedule import given_order
from ...instances.model.tied_weights import are_copied, tied_as
from .console import ERR, file_of, parse_bytes, parse_rate, refuse, show_bytes
from .options import NETWORKS

if TYPE_CHECKING:
    from ...runtime.simulate.network import Network, Sharing
    from ...runtime.simulate.stages import StageGraph
    from ...solvers import Limits, Workers


#: Memory of a device in bytes below which the unit was probably forgotten.
LEAST_MEMORY = 2**20

R = TypeVar("R")

#: Tables of a problem file beside that of the problem: fields of `Limits` and of `Workers`.
LIMITS, WORKERS = "limits", "workers"

#: Field of a problem → the option that sets it.
OPTIONS = {
    "split": "--split",
    "microbatches": "--microbatches",
    "schedule": "--schedule",
    "mesh": "--mesh",
    "topology": "--cluster",
    "memory_bytes": "--memory",
}


#: Field that has no default → an example of it in messages.
EXAMPLES = {"mesh": ", such as 4@10us:25GB/s", "topology": ", such as torus2d:4x8"}


@dataclass(frozen=True)
class ProblemOptions:
    """Options of the problem and its devices; None where not given."""

    problem: str | None = None  # name of a problem, or a problem file
    settings: Sequence[str] = ()  # of each ``--set``
    cluster: str | None = None  # a cluster file; of a mapping its topology
    accelerators: int | None = None
    cpus: int | None = None
    memory: str | None = None
    split: str | None = None
    microbatches: int | None = None
    schedule: str | None = None
    mesh: str | None = None
    launcher: str | None = None  # of ``--for``

    @property
    def memory_bytes(self) -> float | None:
        """Bytes of ``--memory``; None where not given."""
        return None if self.memory is None else parse_bytes(self.memory, "--memory")

    @property
    def given(self) -> dict[str, bool]:
        """Options that are given, each with the value True."""
        typed = {"settings": "--set", "launcher": "--for"}
        given = [name for name, value in vars(self).items() if value not in (None, ())]
        return {typed.get(name, f"--{name}"): True for name in given}


@dataclass(frozen=True)
class Statement:
    """A problem as options and files state it; its fields are not checked yet."""

    name: str  # of the problem
    fields: Table  # by name
    others: Mapping[str, Table]  # fields of the tables beside the problem's, by table
    file: str = ""  # the problem file; empty for none
    files: Sequence[str] = field(default=())  # all files that were read

    @property
    def device_field(self) -> str:
        """Name of the field that gives the devices, for problems with one; else empty."""
        known = PROBLEMS[self.name].__dataclass_fields__
        return next((name for name in ("topology", "mesh") if name in known), "")


def state(
    requested: ProblemOptions, workload: Workload, others: Sequence[str] = (LIMITS, WORKERS)
) -> Statement:
    """Return the problem that options and files state.

    `others` are the tables beside the problem's that ``--set`` may name. InputError if a file is
    broken, the problem or a field does not exist, or a field is given two different values.
    """
    is_file = requested.problem is not None and requested.problem.lower().endswith(".toml")
    file = str(requested.problem) if is_file else ""
    name = requested.problem
    tables: dict[str, Table] = {}
    if file:
        name, tables = read_tables(file, (LIMITS, WORKERS))
    elif name is not None and name not in PROBLEMS:
        raise InputError(
            f"--problem: {quote(name)} is not one of {', '.join(PROBLEMS)}, and no file FILE.toml"
        )
    settings = _settings(requested.settings)
    apart = {table: settings.pop(table) for table in others if table in settings}
    name = name or _usual_problem(workload, requested, settings)
    told = tables.pop(name, {})
    fields = merged(told, settings, "--set {}", file)
    for table, values in apart.items():
        if not isinstance(values, dict):
            raise InputError(f"--set {table}: it has fields; write {table}.FIELD=VALUE")
        tables[table] = merged(tables.get(table, {}), values, f"--set {table}.{{}}", file)
    for key, value in _fields_of_options(requested, name).items():
        fields = merged(fields, {key: value}, OPTIONS[key], file if key in told else "--set")
    files = [path for path in (file, requested.cluster and file_of(requested.cluster)) if path]
    fields, read = _with_schedule(name, fields)
    rules = fields.get("placement_rules")
    placed = rules.get("fixed") if isinstance(rules, dict) else None
    files += [path for path in (read, placed) if isinstance(path, str)]
    return Statement(name, fields, tables, file, files)


def _usual_problem(workload: Workload, requested: ProblemOptions, settings: Table) -> str:
    """Return the name of a workload's default problem under the options."""
    usual = usual_problem(workload)
    if usual != "throughput":
        return usual
    schedule = requested.schedule or settings.get("schedule")
    given = isinstance(schedule, str) and names_file(schedule)
    if requested.microbatches is None and "microbatches" not in settings and not given:
        return usual
    if workload.backward.any():
        return "pipeline"
    raise InputError(
        f"--microbatches: {workload.name} has no backward pass, so it is planned for a stream "
        "without end; give --problem pipeline for forward passes of a batch, or a workload "
        "for training (profile --train)"
    )


def _fields_of_options(requested: ProblemOptions, name: str) -> Table:
    """Return the fields that options set; InputError if an option belongs to other problems."""
    known = PROBLEMS[name].__dataclass_fields__
    said: Table = {
        key: getattr(requested, key) for key in ("split", "microbatches", "schedule", "mesh")
    }
    if "topology" in known:
        said["topology"] = requested.cluster
    if "memory_bytes" in known:
        said["memory_bytes"] = requested.memory_bytes
    said = {key: value for key, value in said.items() if value is not None}
    for key in said:
        if key not in known:
            takers = [one for one, kind in PROBLEMS.items() if key in kind.__dataclass_fields__]
            raise InputError(
                f"{OPTIONS[key]}: it belongs to --problem {' or '.join(takers)}, "
                f"and the problem is {name}; leave it out"
            )
    return said


def setting_record(kind: type[R], texts: Sequence[str]) -> R:
    """Return the dataclass whose fields the texts of ``--set`` give; InputError if they do not."""
    return make_record(kind, _settings(texts), "--set")


def _settings(texts: Sequence[str]) -> Table:
    found: Table = {}
    for text in texts:
        found = merged(found, read_setting(text), "--set {}", "--set")
    return found


def merged(first: Table, second: Table, what: str, where: str) -> Table:
    """Return the union of two tables, which must have equal values of common fields.

    For the message, `what` is the option of the second, with ``{}`` for the field, and `where` the
    file or option of the first.
    """
    found = dict(first)
    for key, value in second.items():
        if key not in found:
            found[key] = value
        elif isinstance(found[key], dict) and isinstance(value, dict):
            found[key] = merged(found[key], value, what.replace("{}", f"{key}.{{}}"), where)
        elif found[key] != value:
            raise InputError(
                f"{what.replace('{}', key)}: {_shown(value)} contradicts {_shown(found[key])} of "
                f"{where}; leave one of the two out"
            )
    return found


def _shown(value: object) -> str:
    """Return a value as a user typed it, if it is short."""
    return (
        str(value)
        if isinstance(value, str | int | float) and len(str(value)) < 60
        else quote(value)
    )


def _with_schedule(name: str, fields: Table) -> tuple[Table, str | None]:
    """Return the fields with a schedule's actions in place of its file's name, and that file.

    InputError, with row and column, if the file holds no schedule, or if it is for another number
    of microbatches.
    """
    schedule = fields.get("schedule")
    if not isinstance(schedule, str):
        return fields, None
    if not names_file(schedule):
        if schedule == PipelineSchedule.GIVEN and "actions" not in fields:
            raise InputError("--schedule: name the CSV file that gives it, such as my.csv")
        return fields, None
    if "actions" not in PROBLEMS[name].__dataclass_fields__:
        raise InputError(f"--schedule: a file is for --problem pipeline, not {name}")
    order = given_order(read_source(schedule).text.splitlines(), schedule)
    microbatches = fields.get("microbatches", order.microbatches)
    if microbatches != order.microbatches:
        raise InputError(
            f"--microbatches: {quote(microbatches)}; {schedule} is of {order.microbatches}: "
            "leave it out"
        )
    given = {"schedule": PipelineSchedule.GIVEN, "microbatches": order.microbatches}
    return {**fields, **given, "actions": list(order.texts)}, schedule


def named_plan(workload: str, plan: Path | None) -> tuple[str | None, Path]:
    """Return the workload and the plan that two arguments name; InputError if there is no plan.

    The plan of a training job holds its model and may be the only argument: the workload is then
    None.
    """
    if plan is not None:
        return workload, plan
    if is_job_plan(workload):
        return None, Path(workload)
    if Path(workload).is_file() and read_source(workload).format_name == PLAN:
        raise InputError(f"{workload}: it is a plan; name the workload that it is for before it")
    if workload.endswith(".json") and not Path(workload).exists():
        raise InputError(f"{workload}: no such file; check the path")
    raise InputError(f"PLAN: it is missing; name the plan's file after {workload}")


def names_file(schedule: str) -> bool:
    """Whether ``--schedule`` names a file."""
    return schedule.lower().endswith(".csv")


def build(
    statement: Statement, requested: ProblemOptions, workload: Workload
) -> tuple[Workload, Problem, Cluster | None]:
    """Return the workload, completed for the problem, the problem with its rules, and its devices.

    Tied weights of an iteration are all-reduced once. The devices are None if a field of the
    problem gives them. InputError if a field is missing or wrong, or there are no devices.
    """
    kind, fields = PROBLEMS[statement.name], dict(statement.fields)
    for key in required_fields(kind):
        if key not in fields:
            option = OPTIONS.get(key, f"--set {key}=…")
            example = EXAMPLES.get(key, "")
            raise InputError(f"{option}: {statement.name} needs it; say its {key}{example}")
    rules, placed = fields.get("placement_rules"), None
    if isinstance(rules, dict) and isinstance(rules.get("fixed"), str):
        placed = rules["fixed"]
        fields["placement_rules"] = {key: rules[key] for key in rules if key != "fixed"}
    problem = make_record(kind, fields, statement.file, _texts(workload))
    if statement.device_field:
        _refuse_devices(statement, requested)
        if isinstance(problem, DeviceMapping) and requested.memory is not None:
            each = np.full(problem.topology.size, requested.memory_bytes, np.float64)
            problem = replace(problem, topology=replace(problem.topology, memory_bytes=each))
        return complete(workload, problem), problem, None
    cluster = choose_cluster(workload, requested, statement.name)
    if isinstance(problem, PipelineJob) and workload.layers is None and are_copied(workload):
        workload = tied_as(workload, Tied.COPIES, problem.microbatches or 1)
    workload = complete(workload, problem, cluster)
    if isinstance(problem, PipelineJob):
        problem = problem.for_workload(workload)
    return workload, _with_rules(problem, cluster, requested.cluster, placed), cluster


def _texts(workload: Workload) -> FromText:
    """Return the readers of texts in fields of problems, by type of the field."""

    def read_topology(text: str) -> object:
        from ...instances.topologies import topology

        return topology(text)

    return {
        Topology: read_topology,
        DeviceMesh: lambda text: parse_mesh(text, workload),
        Link: parse_link,
    }


def _refuse_devices(statement: Statement, requested: ProblemOptions) -> None:
    """Raise InputError for options of devices where a field of the problem gives them."""
    known = PROBLEMS[statement.name].__dataclass_fields__
    said: dict[str, object] = {"--accelerators": requested.accelerators, "--cpus": requested.cpus}
    said |= {} if "topology" in known else {"--cluster": requested.cluster}
    said |= {} if {"memory_bytes", "topology"} & known.keys() else {"--memory": requested.memory}
    refuse(said, f"{statement.name} is planned for the devices of its {statement.device_field}")


def _with_rules(
    problem: Problem, cluster: Cluster, file: str | None, placed: str | None
) -> Problem:
    """Return a problem with the rules of a cluster file, and the nodes of a plan file, added."""
    assert not isinstance(problem, DeviceMapping | Sharding)  # which have no rules
    mine = problem.placement_rules
    told = NO_RULES if file is None else load_rules(file)
    fixed = () if placed is None else load_fixed(placed, problem, cluster)
    rules = PlacementRules(
        pins=(*told.pins, *mine.pins),
        together=(*told.together, *mine.together),
        apart=(*told.apart, *mine.apart),
        max_stages=told.max_stages if mine.max_stages is None else mine.max_stages,
        fixed=(*told.fixed, *mine.fixed, *fixed),
    )
    return replace(problem, placement_rules=rules)


def limits_of(
    statement: Statement, seconds: float | None = None, gap: float | None = None
) -> Limits:
    """Return the limits of a search: those given, else the problem's defaults.

    With a given gap the search stops there, without going on to a smaller one that is cheap.
    """
    from ...solvers import DEFAULT_LIMITS, Limits

    given = dict(statement.others.get(LIMITS, {}))
    for option, key, value in (("--time-limit", "seconds", seconds), ("--gap", "gap", gap)):
        if value is not None:
            given = merged(given, {key: value}, option, statement.file or "--set")
    exact = {"cheap_gap": None} if "gap" in given else {}
    usual = {**asdict(DEFAULT_LIMITS[statement.name]), **exact}
    return make_record(
        Limits, {**usual, **given}, statement.file if LIMITS in statement.others else ""
    )


def load_workload(name: str) -> Workload:
    """Return a workload by name or file; for a model, InputError names the options of a job."""
    from ...instances.formats.files import load

    try:
        return load(name)
    except InputError as error:
        from ...instances.costs.models import shipped_model

        try:
            model = shipped_model(name)
        except InputError:
            raise error from None
        if Path(name).exists() or "@" in name:
            raise
    raise InputError(
        f"--global-batch: it is missing; {model.name} is a model, and planned as a training job: "
        "give the sequences of an iteration, and --cluster, such as h100:8x8"
    )


def workers_of(statement: Statement) -> Workers:
    """Return the processes of a search: their number and place."""
    from ...solvers import Workers

    return make_record(Workers, dict(statement.others.get(WORKERS, {})), statement.file)


def choose_cluster(workload: Workload, requested: ProblemOptions, problem: str) -> Cluster:
    """Return the cluster of a file or a workload, with the options' numbers in place of its own."""
    from ...instances.formats.files import load_cluster

    path, memory_bytes = requested.cluster, requested.memory_bytes
    accelerators, cpus = requested.accelerators, requested.cpus
    for option, count in (("--accelerators", accelerators), ("--cpus", cpus)):
        if count is not None and count < 0:
            raise InputError(f"{option}: {count}; it must be at least 0")
    try:
        cluster = suggested_cluster(workload, problem) if path is None else load_cluster(path)
    except InputError as error:
        from ...instances.costs.clusters import training_cluster
        from ...instances.topologies import RANDOM, REGULAR

        try:
            training_cluster(str(path))
        except InputError:
            if not Path(str(path)).exists() and str(path).partition(":")[0] in (*REGULAR, *RANDOM):
                raise InputError(
                    f"--cluster: {path} is a topology, of --problem mapping; for {problem} give "
                    "--accelerators, or a cluster file"
                ) from None
            raise error from None
        raise InputError(
            f"--cluster: {path} is of training jobs, which --global-batch asks for; for "
            f"{workload.name} give --accelerators, or a cluster file"
        ) from None
    if cluster is None:
        if accelerators is None and cpus is None:
            raise InputError(
                f"{workload.name}: it suggests no cluster; give --accelerators, or --cluster FILE"
            )
        cluster = accelerators_and_cpus(1, 0)
    if memory_bytes is not None and memory_bytes < LEAST_MEMORY:
        text = f"--memory: {show_bytes(memory_bytes)} on each device; for GiB write 16GiB"
        ERR.print_wrapped(text, style="dim")
    return cluster.with_counts(accelerators, cpus, memory_bytes)


def with_rings(statement: Statement, problem: Problem, method: str) -> Problem:
    """Return a mapping with rings for a method that knows them alone, unless others are given."""
    known = method in ("milp", "joint") and "collective" not in statement.fields
    if isinstance(problem, DeviceMapping) and known:
        return replace(problem, collective=Collective.RING)
    return problem


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
        raise InputError(
            f"--network topology: the plan is for {plan.problem.name}, not mapped; use another"
        )
    link = None if bandwidth is None else Link(latency, parse_rate(bandwidth, "--bandwidth"))
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


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the devices along each axis that a text such as ``2x4`` means.

    Examples
    --------
    >>> parse_shape("2x4")
    (2, 4)
    """
    parts = text.split("x")
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"--mesh: {text!r} is no mesh; write the devices of each axis: 4 or 2x4")
    return tuple(int(part) for part in parts)


def parse_mesh(text: str, workload: Workload) -> DeviceMesh:
    """Return the mesh that a text such as ``2x4@20us:25GB/s,10us:300GB/s`` means.

    Behind ``@`` stands the link of each axis, or one for all, or a cluster such as ``h100:8x2``,
    whose links are those by which estimates price its collectives; default: the link that the
    workload's file suggests. A link may be followed by those that collectives have of their own, in
    a ring or by a tree: ``10us:25GB/s+gather=5us:20GB/s+broadcast=tree:5us:20GB/s``.
    """
    devices, at, links = text.partition("@")
    shape = parse_shape(devices)
    if not at:
        kinds = () if workload.cluster is None else workload.cluster.kinds
        known = [kind.link for kind in kinds if kind.link is not None]
        if not known:
            raise InputError(
                f"--mesh: {workload.name} suggests no links; give them: {devices}@10us:25GB/s"
            )
        return DeviceMesh(shape, (known[0],) * len(shape))
    if links[:1].isalpha() and ":" in links:
        return DeviceMesh(shape, _links_of(links, shape))
    texts = links.split(",")
    if len(texts) == 1:
        texts *= len(shape)
    if len(texts) != len(shape):
        raise InputError(
            f"--mesh: {len(texts)} links for {len(shape)} axes of the mesh; give one each"
        )
    each = [re.split(r"\+(?=[a-z])", text) for text in texts]
    primitives = [
        _parse_primitive(text, axis) for axis, (_, *own) in enumerate(each) for text in own
    ]
    return DeviceMesh(shape, tuple(parse_link(one[0]) for one in each), tuple(primitives))


def parse_link(text: str) -> Link:
    """Return the link that a text such as ``10us:25GB/s`` means.

    Examples
    --------
    >>> parse_link("10us:25GB/s")
    Link(latency_s=9.999999999999999e-06, bytes_per_s=25000000000.0)
    """
    latency, colon, bandwidth = text.partition(":")
    with suppress(InputError):
        if colon:
            return Link(parse_seconds(latency, "--mesh"), parse_rate(bandwidth, "--mesh"))
    raise InputError(f"--mesh: {text!r} is no link; write for example 10us:25GB/s")


def show_link(link: Link) -> str:
    """Return a link as it is typed.

    Examples
    --------
    >>> show_link(Link(1e-5, 25e9))
    '10us:25GB/s'
    """
    return f"{1e6 * link.latency_s:.4g}us:{link.bytes_per_s / 1e9:.4g}GB/s"


def _parse_primitive(text: str, axis: int) -> PrimitiveLink:
    """Return the collective, with its link, that a text such as ``gather=5us:20GB/s`` means."""
    name, equals, link = text.partition("=")
    if not equals:
        raise InputError(f"--mesh: {text!r} is no collective; write for example gather=5us:20GB/s")
    algorithm = Rounds.RING
    if link[:1].isalpha():
        written, _, link = link.partition(":")
        algorithm = Rounds.of("--mesh", written)
    return PrimitiveLink(Primitive.of("--mesh", name), parse_link(link), algorithm, axis)


def _links_of(text: str, shape: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the links of a cluster of just so many devices."""
    from ...instances.costs.calibration import calibration
    from ...instances.costs.clusters import training_cluster
    from ...instances.costs.collectives import mesh_links
    from ...instances.costs.layout import Software

    cluster = training_cluster(text)
    if cluster.devices != math.prod(shape):
        raise InputError(
            f"--mesh: {text} has {cluster.devices} devices, and the mesh {math.prod(shape)}; "
            "give a cluster of as many"
        )
    table = calibration(cluster.accelerator.family, Software.MEGATRON)
    return mesh_links(shape, cluster, table.links)
