"""JSON format of solutions: placements, calls, training stages, mappings, shardings.

Nodes are given by id; a mapping comes with its topology, a sharding with the signatures as texts.
Placement rules have the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..common.errors import InputError, quote
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.layers import Layers
from ..model.problem import MAX_CALLS
from ..model.sharding import program_of
from ..model.solution import (
    CallPlacement,
    PipelinePlacement,
    Placement,
    ReplicaPlacement,
    Stage,
    StagePlacement,
    TensorSharding,
    in_stages,
)
from ..model.training_layers import layers_of
from ..model.workload import Workload
from .source import Record, plain_id


class ShardedRecord(Record):
    """An operator, and its signature along each axis of the mesh."""

    node: int | str
    signatures: list[str]


class ShardedOperatorsRecord(Record):
    """Solution of a sharding problem."""

    operators: list[ShardedRecord]


class ChosenRecord(Record):
    """A node of a stage by id, with label and number of its configuration, counted from 0."""

    node: int | str
    configuration: str
    number: int


class StageRecord(Record):
    """One stage of a training plan."""

    kind: str
    replicas: int
    degree: int
    nodes: list[ChosenRecord]


class StagesRecord(Record):
    """Solution of a training problem."""

    stages: list[StageRecord]


class RulesRecord(Record):
    """Rules for placements; pins: pairs of pattern and number; fixed: pairs of id and number."""

    pins: tuple[tuple[str, int], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    max_stages: int | None = None
    fixed: tuple[tuple[int | str, int], ...] = ()


class DeviceRecord(Record):
    """The nodes of one device, by id."""

    device: int
    name: str
    nodes: list[int | str]


class PlacementRecord(Record):
    """Solution of a throughput problem; devices without nodes may be left out.

    `order` numbers the devices in use stage by stage, if data is relayed.
    """

    devices: list[DeviceRecord]
    order: list[int]


class PipelineRecord(Record):
    """Solution of an iteration problem: the stages, of a chain in the order of the pipeline."""

    stages: list[DeviceRecord]


class CallRecord(Record):
    """The nodes of one call, by id; `call` is null for nodes on CPUs."""

    device: int
    name: str
    call: int | None
    nodes: list[int | str]


class CallsRecord(Record):
    """Solution of a latency problem."""

    calls: list[CallRecord]


class MappedStageRecord(Record):
    """A stage: its nodes by id, its devices in ring order, and the receiver of each device.

    `sends_to` are positions in the next stage's devices; empty for the last stage.
    """

    nodes: list[int | str]
    devices: list[int]
    sends_to: list[int]


class MappedRecord(Record):
    """Solution of a mapping problem."""

    stages: list[MappedStageRecord]


def encode_mapped(mapped: ReplicaPlacement, workload: Workload, _: Cluster) -> MappedRecord:
    """Return the solution as a record."""
    stages = len(mapped.slots)
    held = workload.ids_by_place(mapped.stage.tolist(), stages)
    sends = [*mapped.sends_to.tolist(), []]
    return MappedRecord(
        [MappedStageRecord(held[s], mapped.slots[s].tolist(), sends[s]) for s in range(stages)]
    )


def decode_mapped(record: MappedRecord, workload: Workload, cluster: Cluster) -> ReplicaPlacement:
    """Return the solution of a record; raises InputError without the file's name."""
    if not record.stages:
        raise InputError("solution: stages is empty; plan again")
    replicas = len(record.stages[0].devices)
    last = len(record.stages) - 1
    for s, part in enumerate(record.stages):
        sends = replicas if s < last else 0
        if not replicas or len(part.devices) != replicas or len(part.sends_to) != sends:
            raise InputError(f"solution: stage {s}: it must have {replicas} devices and receivers")
        check_devices(part.devices, cluster)
        for receiver in part.sends_to:
            if not 0 <= receiver < replicas:
                raise InputError(
                    f"solution: stage {s}: sends_to {quote(receiver)} is not one of 0 to "
                    f"{replicas - 1}"
                )
    sends_to = [part.sends_to for part in record.stages[:-1]]
    return ReplicaPlacement(
        np.array(_part_of([part.nodes for part in record.stages], workload)),
        np.array([part.devices for part in record.stages]),
        np.array(sends_to, np.int64).reshape(last, replicas),
    )


def encode_placement(placement: Placement, workload: Workload, cluster: Cluster) -> PlacementRecord:
    """Return a placement device by device."""
    nodes = workload.ids_by_place(placement.device.tolist(), cluster.size)
    return PlacementRecord(
        [DeviceRecord(d, dev.name, nodes[d]) for d, dev in enumerate(cluster.devices)],
        list(placement.order),
    )


def decode_placement(record: PlacementRecord, workload: Workload, cluster: Cluster) -> Placement:
    """Return the placement; raises InputError if nodes or devices are wrong."""
    part_of = _on_devices(record.devices, workload, cluster)
    device = np.array([record.devices[i].device for i in part_of])
    check_devices(record.order, cluster)
    return Placement(device, tuple(record.order))


def encode_pipeline(
    pipeline: PipelinePlacement, workload: Workload, cluster: Cluster
) -> PipelineRecord:
    """Return the stages in their order."""
    nodes = workload.ids_by_place(pipeline.stage.tolist(), len(pipeline.devices))
    return PipelineRecord(
        [DeviceRecord(d, cluster.devices[d].name, nodes[s]) for s, d in enumerate(pipeline.devices)]
    )


def decode_pipeline(
    record: PipelineRecord, workload: Workload, cluster: Cluster
) -> PipelinePlacement:
    """Return the stages; raises InputError if nodes or devices are wrong."""
    stage = np.array(_on_devices(record.stages, workload, cluster))
    return PipelinePlacement(stage, tuple(part.device for part in record.stages))


def encode_calls(calls: CallPlacement, workload: Workload, cluster: Cluster) -> CallsRecord:
    """Return calls in the order of devices, then of calls."""
    nodes: dict[tuple[int, int], list[NodeId]] = {}
    for v, key in enumerate(zip(calls.device.tolist(), calls.call.tolist(), strict=True)):
        nodes.setdefault(key, []).append(workload.ids[v])
    return CallsRecord(
        [
            CallRecord(d, cluster.devices[d].name, None if call < 0 else call, nodes[d, call])
            for d, call in sorted(nodes)
        ]
    )


def decode_calls(record: CallsRecord, workload: Workload, cluster: Cluster) -> CallPlacement:
    """Return the calls; raises InputError if nodes, devices or numbers of calls are wrong."""
    part_of = _on_devices(record.calls, workload, cluster)
    for part in record.calls:
        if part.call is not None and not 0 <= part.call < MAX_CALLS:
            raise InputError(
                f"solution: call {quote(part.call)} on {quote(part.name)}; calls number from 0 to "
                f"{MAX_CALLS - 1}"
            )
    numbers = [-1 if part.call is None else part.call for part in record.calls]
    return CallPlacement(
        np.array([record.calls[i].device for i in part_of]),
        np.array([numbers[i] for i in part_of]),
    )


def _on_devices(
    parts: Sequence[DeviceRecord | CallRecord], workload: Workload, cluster: Cluster
) -> list[int]:
    """Return the part of each node, of parts on devices; InputError unless each is in just one."""
    check_devices((part.device for part in parts), cluster)
    for part in parts:
        d = part.device
        if part.name != cluster.devices[d].name:
            raise InputError(
                f"solution: device {d} is called {quote(part.name)}, in the cluster "
                f"{quote(cluster.devices[d].name)}; correct it"
            )
    return _part_of([part.nodes for part in parts], workload)


def check_devices(devices: Iterable[int], cluster: Cluster) -> None:
    """Raise InputError unless a cluster has all these devices."""
    for d in devices:
        if not 0 <= d < cluster.size:
            raise InputError(
                f"solution: device {quote(d)} is not one of the cluster's 0 to {cluster.size - 1}"
            )


def _part_of(parts: Sequence[Sequence[NodeId]], workload: Workload) -> list[int]:
    """Return the part of each node; InputError unless each node is in just one."""
    part_of = [-1] * workload.n
    for i, nodes in enumerate(parts):
        for node in nodes:
            v = workload.index.get(node)
            if v is None:
                raise InputError(f"solution: unknown node {plain_id(node)}; plan again")
            if part_of[v] >= 0:
                raise InputError(f"solution: node {plain_id(node)} is placed twice")
            part_of[v] = i
    if -1 in part_of:
        node = workload.ids[part_of.index(-1)]
        raise InputError(f"solution: node {plain_id(node)} is missing; plan again")
    return part_of


def encode_stages(solution: StagePlacement, workload: Workload, cluster: Cluster) -> StagesRecord:
    """Return the record of a plan's stages."""
    layers = layers_of(workload)
    own = _by_node(layers, workload.n)
    return StagesRecord(
        [
            StageRecord(
                kind=cluster.kinds[stage.kind].name,
                replicas=stage.replicas,
                degree=stage.degree,
                nodes=[
                    ChosenRecord(workload.ids[v], layers.label[c], own[v].index(c))
                    for v, c in zip(stage.nodes, stage.configuration, strict=True)
                ],
            )
            for stage in solution.stages
        ]
    )


def decode_stages(record: StagesRecord, workload: Workload, cluster: Cluster) -> StagePlacement:
    """Return the stages in a record; raises InputError where they do not fit the workload."""
    layers = layers_of(workload)
    own = _by_node(layers, workload.n)
    kinds = [kind.name for kind in cluster.kinds]
    _part_of([[entry.node for entry in part.nodes] for part in record.stages], workload)
    stages = []
    for s, part in enumerate(record.stages):
        if part.kind not in kinds:
            raise InputError(f"solution: stage {s}: the cluster has no kind {quote(part.kind)}")
        for what, value in (("replicas", part.replicas), ("degree", part.degree)):
            if not 1 <= value <= cluster.size:
                raise InputError(
                    f"solution: stage {s}: {what} is {quote(value)}; it must be from 1 to "
                    f"{cluster.size}, the number of devices"
                )
        chosen = []
        for entry in part.nodes:
            v = workload.index[entry.node]
            if not 0 <= entry.number < len(own[v]):
                raise InputError(
                    f"solution: node {plain_id(entry.node)} has no configuration "
                    f"number {quote(entry.number)}; it has {len(own[v])}: give the workload that "
                    "the plan was made for"
                )
            c = own[v][entry.number]
            if entry.configuration != layers.label[c]:
                raise InputError(
                    f"solution: node {plain_id(entry.node)}: configuration "
                    f"{quote(entry.configuration)}; number {entry.number} is "
                    f"{quote(layers.label[c])}"
                )
            chosen.append((v, c))
        chosen.sort()
        nodes, configuration = tuple(v for v, _ in chosen), tuple(c for _, c in chosen)
        kind = kinds.index(part.kind)
        stages.append(Stage(nodes, configuration, part.replicas, part.degree, kind))
    return in_stages(stages, cluster)


def _by_node(layers: Layers, nodes: int) -> list[list[int]]:
    """Return the numbers of each node's configurations."""
    found: list[list[int]] = [[] for _ in range(nodes)]
    for c, v in enumerate(layers.node.tolist()):
        found[v].append(c)
    return found


def encode_sharding(
    solution: TensorSharding, workload: Workload, _: Cluster
) -> ShardedOperatorsRecord:
    """Return the solution as a record."""
    operators = program_of(workload).operators
    return ShardedOperatorsRecord(
        [
            ShardedRecord(operator.name, [operator.signatures[k].text for k in row])
            for operator, row in zip(operators, solution.signature.tolist(), strict=True)
        ]
    )


def decode_sharding(
    record: ShardedOperatorsRecord, workload: Workload, _: Cluster
) -> TensorSharding:
    """Return the solution of a record; raises InputError without the file's name."""
    operators = program_of(workload).operators
    _part_of([[part.node] for part in record.operators], workload)
    axes = len(record.operators[0].signatures) if record.operators else 0
    rows = np.empty((workload.n, axes), np.int64)
    for part in record.operators:
        v = workload.index[part.node]
        where = f"solution: operator {plain_id(part.node)}"
        known = [signature.text for signature in operators[v].signatures]
        if len(part.signatures) != axes:
            raise InputError(f"{where}: give a signature for each axis of the mesh")
        for text in part.signatures:
            if text not in known:
                raise InputError(f"{where}: no signature {quote(text)}; it has {', '.join(known)}")
        rows[v] = [known.index(text) for text in part.signatures]
    return TensorSharding(rows)
