"""What places nodes in our files: solutions, on devices and in calls, and rules for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..common.errors import InputError, quote
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.problem import MAX_CALLS
from ..model.solution import CallPlacement, PipelinePlacement, Placement
from ..model.workload import Workload
from .source import Record, plain_id


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


def encode_placement(placement: Placement, workload: Workload, cluster: Cluster) -> PlacementRecord:
    """Return a placement device by device."""
    nodes: list[list[NodeId]] = [[] for _ in cluster.devices]
    for node, d in zip(workload.ids, placement.device.tolist(), strict=True):
        nodes[d].append(node)
    return PlacementRecord(
        [DeviceRecord(d, dev.name, nodes[d]) for d, dev in enumerate(cluster.devices)],
        list(placement.order),
    )


def decode_placement(record: PlacementRecord, workload: Workload, cluster: Cluster) -> Placement:
    """Return the placement; raises InputError if nodes or devices are wrong."""
    part_of = _part_of(record.devices, workload, cluster)
    device = np.array([record.devices[i].device for i in part_of])
    for d in record.order:
        if not 0 <= d < cluster.size:
            raise InputError(
                f"solution: order: device {quote(d)} is not one of 0 to {cluster.size - 1}"
            )
    return Placement(device, tuple(record.order))


def encode_pipeline(
    pipeline: PipelinePlacement, workload: Workload, cluster: Cluster
) -> PipelineRecord:
    """Return the stages in their order."""
    nodes: list[list[NodeId]] = [[] for _ in pipeline.devices]
    for node, stage in zip(workload.ids, pipeline.stage.tolist(), strict=True):
        nodes[stage].append(node)
    return PipelineRecord(
        [DeviceRecord(d, cluster.devices[d].name, nodes[s]) for s, d in enumerate(pipeline.devices)]
    )


def decode_pipeline(
    record: PipelineRecord, workload: Workload, cluster: Cluster
) -> PipelinePlacement:
    """Return the stages; raises InputError if nodes or devices are wrong."""
    stage = np.array(_part_of(record.stages, workload, cluster))
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
    part_of = _part_of(record.calls, workload, cluster)
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


def _part_of(
    parts: Sequence[DeviceRecord | CallRecord],
    workload: Workload,
    cluster: Cluster,
) -> list[int]:
    """Return which part each node is in, by its number."""
    part_of = [-1] * workload.n
    for i, part in enumerate(parts):
        d = part.device
        if not 0 <= d < cluster.size:
            raise InputError(
                f"solution: device {quote(d)} is not one of the cluster's 0 to {cluster.size - 1}"
            )
        if part.name != cluster.devices[d].name:
            raise InputError(
                f"solution: device {d} is called {quote(part.name)}, in the cluster "
                f"{quote(cluster.devices[d].name)}; correct it"
            )
        for node in part.nodes:
            v = workload.index.get(node)
            if v is None:
                raise InputError(f"solution: unknown node {plain_id(node)} on {part.name}")
            if part_of[v] >= 0:
                raise InputError(f"solution: node {plain_id(node)} is placed twice")
            part_of[v] = i
    if -1 in part_of:
        node = workload.ids[part_of.index(-1)]
        raise InputError(f"solution: node {plain_id(node)} is missing; plan again")
    return part_of
