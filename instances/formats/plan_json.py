"""JSON format of plans: the solution by node id, its objective, bound and certificate.

A plan carries the fingerprints of its workload and cluster and is refused against others. A bound
or gap that is not known is null. Certificate and provenance hold JSON values of any shape; in them
the texts "inf", "-inf" and "nan" stand for the numbers that JSON cannot write. Certificates prove
bounds by prices, by hubs, or of shardings: see `prices`, `max_load` and `sharding` in
`runtime.verify.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np

from ..common.errors import InputError, prefix_errors, quote
from ..common.units import LARGEST
from ..model.cluster import Cluster
from ..model.pipeline_job import PipelineJob, is_stream
from ..model.plan import Plan, check_made_for
from ..model.problem import DeviceMapping, Latency, Problem, Throughput
from ..model.sharding import Sharding
from ..model.solution import Solution
from ..model.workload import Workload
from ..topologies import TopologyFile, make_topology, write_topology
from .solutions_json import (
    CallsRecord,
    MappedRecord,
    PipelineRecord,
    PlacementRecord,
    ShardedOperatorsRecord,
    StagesRecord,
    decode_calls,
    decode_mapped,
    decode_pipeline,
    decode_placement,
    decode_sharding,
    decode_stages,
    encode_calls,
    encode_mapped,
    encode_pipeline,
    encode_placement,
    encode_sharding,
    encode_stages,
)
from .source import NEWEST, PLAN, Record, Source, converted, read_file
from .stagecut_json import (
    KindRecord,
    PairLinkRecord,
    finite,
    kinds_of,
    links_of,
    make_cluster,
)

#: Origins of the certificates that can be checked; others are claims of a search.
PRICES: Final = "set partitioning"
HUBS: Final = "prices by hubs"
PASSED: Final = "message passing over a program"
ELIMINATED: Final = "elimination of a program"
PRICED: Final = "priced memory"
FITTING: Final = "elimination of what fits"
CHECKED = (PRICES, HUBS, PASSED, ELIMINATED, PRICED, FITTING)

#: Most hubs of a certificate: each multiplies the cases by three.
MOST_HUBS = 6


Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


class PriceCertificate(Record):
    """Prices that prove that no plan is below the target; K kinds of devices, n nodes."""

    origin: Literal["set partitioning"]
    target: NotNegative  # the max-load that no plan can have
    prices: list[Number]  # n: of each node, in the workload's order
    # memory_prices, transfer_prices: K: per byte, and per unit of time
    memory_prices: list[NotNegative]
    transfer_prices: list[NotNegative]
    order: list[int]  # numbers of nodes, in an order that makes the check fast
    # of a price of 1, of which each price is a whole number; 0 where there are none
    parts: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0


class HubCertificate(Record):
    """Prices of nodes by class, and hubs, on whose presence on a device cases depend; n nodes."""

    origin: Literal["prices by hubs"]
    target: NotNegative  # the max-load that no plan can have
    kind: int  # number of the kind of devices whose transfers count
    hubs: list[int]  # numbers of nodes
    classes: list[int]  # n: number of the class of each node
    # prices of each class, per unit of a node's time on that kind, and a slope for each case: the
    # price of a unit of load. Cases are in lexicographic order of the states of hubs on a device:
    # the hub is there; neither it nor its successors; neither it nor its predecessors. The last two
    # are one state for a hub without successors or predecessors, and unless splits are contiguous.
    points: list[tuple[list[Number], list[NotNegative]]]


class ShardingCertificate(Record, forbid_unknown_fields=False):
    """Certificate of a bound on a sharding; older files have potentials, too."""

    origin: Literal[
        "message passing over a program",
        "elimination of a program",
        "priced memory",
        "elimination of what fits",
    ]
    target: NotNegative  # what no sharding costs less than
    price: NotNegative = 0.0  # of a byte that a device holds
    # where gradients overlap: weights of the ends of a step, of sum 1, that of computing last
    mixture: list[NotNegative] = msgspec.field(default_factory=list)


Kind = TypeVar("Kind", PriceCertificate, HubCertificate, ShardingCertificate)


def read_certificate(
    values: Mapping[str, object], nodes: int, kinds: int
) -> PriceCertificate | HubCertificate | ShardingCertificate | None:
    """Return a plan's certificate for a number of nodes and of kinds of devices.

    None if its origin is not one of `CHECKED`. InputError if a field is missing, of another type or
    length, or holds no number up to `LARGEST`.
    """
    origin = values.get("origin")
    if origin == PRICES:
        return _price_certificate(values, nodes, kinds)
    if origin == HUBS:
        return hub_certificate(values, nodes, kinds)
    return _read(values, ShardingCertificate) if origin in CHECKED else None


def _price_certificate(values: Mapping[str, object], nodes: int, kinds: int) -> PriceCertificate:
    found = _read(values, PriceCertificate)
    _check_sizes(found, {"prices": nodes, "memory_prices": kinds, "transfer_prices": kinds})
    _check_range("order", found.order, nodes, "node")
    return found


def hub_certificate(values: Mapping[str, object], nodes: int, kinds: int) -> HubCertificate:
    """Return a certificate by hubs; errors as of `read_certificate`."""
    found = _read(values, HubCertificate)
    _check_range("kind", [found.kind], kinds, "kind")
    _check_range("hubs", found.hubs, nodes, "node")
    if not 1 <= len(found.hubs) <= MOST_HUBS:
        raise InputError(
            f"certificate: hubs has {len(found.hubs)} values; it must have 1 to {MOST_HUBS}"
        )
    _check_sizes(found, {"classes": nodes})
    if not found.points:
        raise InputError("certificate: points is empty; it must have prices and slopes")
    for rates, _ in found.points:
        _check_range("classes", found.classes, len(rates), "class")
    return found


def _read(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    found = converted(dict(values), kind, "certificate: ")
    if math.copysign(1, found.target) < 0:
        raise InputError("certificate: target is −0; no load is below 0")
    return found


def _check_sizes(found: object, sizes: Mapping[str, int]) -> None:
    for key, size in sizes.items():
        if len(getattr(found, key)) != size:
            raise InputError(
                f"certificate: {key} has {len(getattr(found, key))} values; it must have {size}"
            )


def _check_range(key: str, values: list[int], end: int, what: str) -> None:
    for v in values:
        if not 0 <= v < end:
            raise InputError(
                f"certificate: {key} holds {quote(v)}, which is no {what} from 0 to {end - 1}"
            )


_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}

#: Largest excess of a bound over the objective, as a part of the latter, for rounding.
BOUND_SLACK = 1e-6


class WorkloadRecord(Record):
    """Name and fingerprint of the plan's workload."""

    name: str
    fingerprint: str


class ClusterRecord(Record):
    """Fingerprint, kinds of devices and links of the plan's cluster."""

    fingerprint: str
    kinds: list[KindRecord]
    links: list[PairLinkRecord]


class PlanFile(Record):
    """A plan file; problem and solution have a shape per problem."""

    format: Literal["stagecut-plan"]
    version: Literal[5]
    workload: WorkloadRecord
    problem: dict[str, Any]
    objective: float
    bound: float | None
    gap: float | None
    time_unit: str
    method: str
    cluster: ClusterRecord
    solution: dict[str, Any]
    certificate: dict[str, Any]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Codec:
    """Writer and reader of one problem's solutions."""

    problem: type[Problem]  # frozen dataclass of the problem; its fields are written by name
    # what `encode` returns and `decode` gets: a `Record`, or any type that msgspec converts
    record: type[Any]
    # from the solution, the workload and the cluster
    encode: Callable[[Any, Workload, Cluster], Any]
    # from the record, the workload and the cluster; raises InputError without the file's name
    decode: Callable[[Any, Workload, Cluster], Solution]


#: Codec of streams, whose stages have replicas and configurations.
STREAM = Codec(PipelineJob, StagesRecord, encode_stages, decode_stages)

#: Codecs of solutions by the name of the problem; that of pipelines is for iterations.
CODECS: dict[str, Codec] = {
    "throughput": Codec(Throughput, PlacementRecord, encode_placement, decode_placement),
    "pipeline": Codec(PipelineJob, PipelineRecord, encode_pipeline, decode_pipeline),
    "mapping": Codec(DeviceMapping, MappedRecord, encode_mapped, decode_mapped),
    "latency": Codec(Latency, CallsRecord, encode_calls, decode_calls),
    "sharding": Codec(Sharding, ShardedOperatorsRecord, encode_sharding, decode_sharding),
}


def write_plan(plan: Plan, workload: Workload) -> dict[str, object]:
    """Return the file of a plan as JSON values; InputError if it was made for another workload."""
    plan.check_made_for(workload)
    if not math.isfinite(plan.objective):
        raise InputError(f"plan: its objective is {plan.objective!r}; only finite ones are saved")
    record = codec_of(plan.problem).encode(plan.solution, workload, plan.cluster)
    return {
        "format": PLAN,
        "version": NEWEST[PLAN],
        "workload": {"name": plan.workload_name, "fingerprint": plan.workload_fingerprint},
        "problem": {"name": plan.problem.name, **problem_values(plan.problem)},
        "objective": plan.objective,
        "bound": finite(plan.bound),
        "gap": finite(plan.gap),
        "time_unit": plan.time_unit,
        "method": plan.method,
        "cluster": {
            "fingerprint": plan.cluster.fingerprint,
            "kinds": kinds_of(plan.cluster),
            "links": links_of(plan.cluster),
        },
        "solution": msgspec.to_builtins(record),
        "certificate": to_json(plan.certificate),
        "provenance": to_json(plan.provenance),
    }


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return a problem's fields as JSON values; a topology as in its own file."""
    if isinstance(problem, DeviceMapping):
        plain = {item.name: getattr(problem, item.name) for item in fields(problem)}
        return {**plain, "topology": write_topology(problem.topology)}
    return asdict(problem)


def read_plan(
    source: Source,
    workload: Workload,
    cluster: Cluster | None = None,
    *,
    same_costs: bool = True,
) -> Plan:
    """Return the plan in one of our files, for `cluster` if that is given.

    With `same_costs` it must have been made for this very workload. Otherwise only the nodes' names
    must be the same, and the plan returned is for `workload`. InputError if the file breaks the
    format, was made for another workload or cluster, or was changed: nodes are missing, unknown or
    placed twice, or a device is not the cluster's.
    """
    file = read_file(source, PlanFile, PLAN)
    for what, value in (("objective", file.objective), ("bound", file.bound), ("gap", file.gap)):
        if value is not None and not math.isfinite(value):
            source.fail(f"{what} is {quote(value)}; it must be a finite number (or null)")
    made_on = make_cluster(source, file.cluster.kinds, file.cluster.links)
    if made_on.fingerprint != file.cluster.fingerprint:
        source.fail("cluster: its kinds do not have its fingerprint; they were changed: plan again")
    if cluster is not None and cluster != made_on:
        source.fail(
            f"the plan was made for another cluster (fingerprint {made_on.fingerprint[:12]}, "
            f"not {cluster.fingerprint[:12]}); plan again, or leave the cluster to the plan"
        )
    with prefix_errors(source.file, "plan"):
        problem, codec = read_problem(source, file.problem)
        if same_costs:
            check_made_for(file.workload.name, file.workload.fingerprint, workload)
        if file.time_unit != workload.time_unit:
            source.fail(
                f"time_unit is {quote(file.time_unit)}, that of {workload.name} is "
                f"{quote(workload.time_unit)}; they must be equal"
            )
        record = converted(file.solution, codec.record, "solution: ")
        plan = Plan(
            workload_name=file.workload.name,
            workload_fingerprint=workload.fingerprint,
            cluster=made_on,
            problem=problem,
            solution=codec.decode(record, workload, made_on),
            objective=file.objective,
            bound=-math.inf if file.bound is None else file.bound,
            method=file.method,
            time_unit=file.time_unit,
            certificate=_from_json(file.certificate),
            provenance=_from_json(file.provenance),
        )
        read_certificate(plan.certificate, workload.n, len(made_on.kinds))
    if plan.bound > plan.objective * (1 + BOUND_SLACK):
        source.fail(
            f"bound is {quote(file.bound)}, above the objective {quote(file.objective)}; "
            "the file was changed: plan again"
        )
    gap = math.inf if file.gap is None else file.gap
    if not math.isclose(gap, plan.gap, rel_tol=1e-9, abs_tol=1e-12):
        source.fail(
            f"gap is {quote(file.gap)}, but objective and bound give {finite(plan.gap)!r}; "
            "the file was changed: plan again"
        )
    return plan


def read_problem(source: Source, values: dict[str, Any]) -> tuple[Problem, Codec]:
    """Return the problem that a plan file states, and the codec of its solutions."""
    name = values.get("name")
    if not isinstance(name, str) or name not in CODECS:
        source.fail(f"problem: name is {quote(name)}; it must be one of {', '.join(CODECS)}")
    codec = CODECS[name]
    options = {key: value for key, value in values.items() if key != "name"}
    known = [item.name for item in fields(codec.problem)]
    for key in known:
        if key not in options:
            source.fail(f"problem: {key} is missing; add it")
    if codec.problem is DeviceMapping:
        file = converted(options["topology"], TopologyFile, f"{source.file}: problem: topology: ")
        with prefix_errors(source.file, "problem"):
            options["topology"] = make_topology(file)
    problem = converted(options, codec.problem, f"{source.file}: problem: ")
    _refuse_unknown(source, options, problem_values(problem), "problem")
    return problem, codec_of(problem)


def _refuse_unknown(source: Source, given: object, known: Any, where: str) -> None:
    """Refuse keys, at any depth of a problem's values, that its dataclasses do not have."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key not in known:
                source.fail(f"{where}: unknown key {quote(key)}; remove it or correct its spelling")
            _refuse_unknown(source, value, known[key], f"{where}: {key}")
    elif isinstance(given, list):
        for one, other in zip(given, known, strict=False):
            _refuse_unknown(source, one, other, where)


def codec_of(problem: Problem) -> Codec:
    """Return the codec of a problem's solutions."""
    return STREAM if is_stream(problem) else CODECS[problem.name]


def to_json(value: object) -> object:
    """Return a value as JSON values: arrays and tuples as lists, infinities and NaN as texts."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [to_json(item) for item in items]
    raise InputError(f"plan: its certificate holds a {type(value).__name__}, which is no JSON")


def _from_json(value: Any) -> Any:
    """Return JSON values with the texts of infinities and NaN replaced by numbers."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value
