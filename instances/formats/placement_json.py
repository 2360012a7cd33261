"""Readers of placement JSON, the published profiled graphs for device placement, and their splits.

A split file says the device of each node.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020; https://github.com/msr-fiddle/dnn-partitioning describes the format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from ..common.arrays import Floats
from ..common.errors import InputError, prefix_errors
from ..common.units import NodeId
from ..model.cluster import ACCELERATOR, CPU, Cluster, accelerators_and_cpus
from ..model.problem import Problem, names_stages
from ..model.solution import Placement
from ..model.workload import Workload
from .source import Amount, Count, Source, converted, plain_id

#: Largest relative difference between the costs of one node's out-edges, for the rounding of the
#: file's author. It is relative, so that a file is read alike whatever its unit of time.
COST_TOLERANCE = 1e-6


class _PlacementNode(msgspec.Struct):
    id: int
    supportedOnFpga: bool | Literal[0, 1]
    cpuLatency: Amount
    isBackwardNode: bool | Literal[0, 1]
    fpgaLatency: object = None  # of any type where the node is not supported
    colorClass: int | None = None
    size: Amount | None = None
    name: object = None  # the last two are there for people and may hold anything
    layerId: object = None


class _Supported(msgspec.Struct):
    fpgaLatency: Amount


class _PlacementEdge(msgspec.Struct):
    sourceId: int
    destId: int
    cost: Amount
    size: Amount | None = None


class _PlacementFile(msgspec.Struct):
    maxSizePerFPGA: Amount
    maxFPGAs: Count
    maxCPUs: Count
    nodes: list[_PlacementNode]
    edges: list[_PlacementEdge]


def is_placement(source: Source) -> bool:
    """Whether the content looks like placement JSON."""
    ours = {"maxSizePerFPGA", "maxFPGAs", "maxCPUs"}
    return bool(source.keys & ours) or {"nodes", "edges"} <= source.keys


def read_placement(source: Source) -> Workload:
    """Return the workload that a placement JSON describes.

    Times keep the file's own unit, which it does not name. Missing colours are none, missing sizes
    are 0, unknown keys are ignored; ``layerId`` is kept in `Workload.extra`, NaN where missing.
    Edges listed twice count once. InputError names the file, the node or edge, the field.
    """
    file = source.convert(_PlacementFile)
    if not file.nodes:
        source.fail("nodes is empty; a workload needs at least one node")
    index = source.numbered(node.id for node in file.nodes)
    transfer, output = _transfers(source, file, index)
    labels: dict[int, int] = {}
    colours = [
        -1 if node.colorClass is None else labels.setdefault(node.colorClass, len(labels))
        for node in file.nodes
    ]
    accelerator = [_accelerator_time(source, node) for node in file.nodes]
    layers = [_number_or_nan(node.layerId) for node in file.nodes]
    with prefix_errors(source.file, source.stem):
        return Workload(
            name=source.stem,
            ids=tuple(node.id for node in file.nodes),
            edges=np.array(
                [(index[e.sourceId], index[e.destId]) for e in file.edges], np.int64
            ).reshape(-1, 2),
            times={
                ACCELERATOR: np.array(accelerator),
                CPU: np.array([node.cpuLatency for node in file.nodes]),
            },
            memory_bytes=np.array([node.size or 0.0 for node in file.nodes]),
            transfer=transfer,
            output_bytes=output,
            backward=np.array([bool(node.isBackwardNode) for node in file.nodes]),
            colours=np.array(colours),
            colour_labels=tuple(labels),
            names=tuple(
                node.name if isinstance(node.name, str) else str(node.id) for node in file.nodes
            ),
            extra={} if all(map(math.isnan, layers)) else {"layerId": np.array(layers)},
            cluster=accelerators_and_cpus(file.maxFPGAs, file.maxCPUs, file.maxSizePerFPGA),
        )


def _accelerator_time(source: Source, node: _PlacementNode) -> float:
    if not node.supportedOnFpga:
        return math.inf
    time = node.fpgaLatency
    if time is None:
        source.fail(
            f"node {plain_id(node.id)}: fpgaLatency is missing; add it, or set supportedOnFpga "
            "to false"
        )
    where = f"{source.file}: node {plain_id(node.id)}: "
    return converted({"fpgaLatency": time}, _Supported, where).fpgaLatency


def _number_or_nan(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**53:
        return math.nan
    return float(value)


def _transfers(
    source: Source, file: _PlacementFile, index: Mapping[NodeId, int]
) -> tuple[Floats, Floats | None]:
    """Return transfer time and output size of each node; no sizes if a sender's is not known."""
    n = len(file.nodes)
    transfer, output = [0.0] * n, [math.nan] * n  # lists: faster than arrays, one at a time
    first: dict[int, _PlacementEdge] = {}
    for edge in file.edges:
        where = source.check_ends(edge, index)
        before = first.setdefault(edge.sourceId, edge)
        if not math.isclose(edge.cost, before.cost, rel_tol=COST_TOLERANCE):
            source.fail(
                f"{where}cost is {edge.cost!r}, but that of its edge to {plain_id(before.destId)} "
                f"is {before.cost!r}; all edges out of a node carry the same data: make them equal"
            )
        u = index[edge.sourceId]
        transfer[u] = max(transfer[u], edge.cost)
        if edge.size is not None:
            output[u] = edge.size if math.isnan(output[u]) else max(output[u], edge.size)
    if any(math.isnan(output[index[u]]) for u in first):
        return np.array(transfer), None
    return np.array(transfer), np.nan_to_num(output)


class _ExpertDevice(msgspec.Struct):
    nodes: list[int | str]


class _ExpertFile(msgspec.Struct):
    fpgas: list[_ExpertDevice]
    cpus: list[_ExpertDevice] = []


def is_split(source: Source) -> bool:
    """Whether the content looks like a split file."""
    return bool(source.keys & {"fpgas", "cpus"}) and "nodes" not in source.keys


def read_split(source: Source, workload: Workload, cluster: Cluster | None = None) -> Placement:
    """Return the placement that a split file gives.

    The i-th of ``fpgas`` is the i-th accelerator of the cluster, the i-th of ``cpus`` its i-th host
    device; loads in the file are ignored. A node that the file leaves out follows its colour:
    splits of training workloads may list only forward nodes. InputError if a node is unknown,
    listed twice, or cannot be placed; if nodes of one colour are torn apart, or the file needs more
    devices than there are.
    """
    cluster = cluster or workload.cluster
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    device = np.full(workload.n, -1)
    for where, node, d in _listed(source, cluster):
        v = workload.index.get(node)
        if v is None:
            source.fail(
                f"{where}: unknown node {plain_id(node)}; {workload.name} has no such id: is it "
                "the split of another workload?"
            )
        if device[v] >= 0:
            source.fail(f"{where}: node {plain_id(node)} is listed twice; remove one")
        device[v] = d
    _follow_colours(source, workload, cluster, device)
    missing = np.flatnonzero(device < 0)
    if len(missing):
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        source.fail(
            f"node {plain_id(workload.ids[missing[0]])}{more} is on no device, and no listed "
            "node has its colour; list it"
        )
    return Placement(device)


def placed_numbers(
    source: Source, problem: Problem, cluster: Cluster
) -> tuple[tuple[NodeId, int], ...]:
    """Return the nodes that a split file lists, with the numbers that rules of `problem` name.

    The i-th of ``fpgas`` is the i-th accelerator, or stage i where rules name stages. InputError if
    the file is broken, or needs more devices than there are.
    """
    of = None if names_stages(problem) else cluster
    return tuple((node, place) for _, node, place in _listed(source, of))


def _listed(source: Source, cluster: Cluster | None) -> Iterator[tuple[str, NodeId, int]]:
    """Yield where the file lists a node, the node, and its device; without a cluster its stage."""
    file = source.convert(_ExpertFile)
    for key, listed, host in (("fpgas", file.fpgas, False), ("cpus", file.cpus, True)):
        there = [] if host else list(range(len(listed)))
        if cluster is not None:
            hosts = [cluster.kinds[device.kind].host for device in cluster.devices]
            there = [d for d, one in enumerate(hosts) if one == host]
        for i, part in enumerate(listed):
            if part.nodes and i >= len(there):
                source.fail(
                    f"{key}[{i}] holds nodes, but there are only {len(there)} such devices; add "
                    "devices or move the nodes"
                )
            for node in part.nodes:
                yield f"{key}[{i}]", node, there[i]


def _follow_colours(
    source: Source,
    workload: Workload,
    cluster: Cluster,
    device: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    for colour, members in enumerate(workload.colour_classes):
        placed = [v for v in members if device[v] >= 0]
        for v in placed[1:]:
            if device[v] != device[placed[0]]:
                ids = [plain_id(workload.ids[w]) for w in (placed[0], v)]
                names = [cluster.devices[device[w]].name for w in (placed[0], v)]
                source.fail(
                    f"nodes {ids[0]} and {ids[1]} have colour "
                    f"{plain_id(workload.colour_labels[colour])} but are on {names[0]} and "
                    f"{names[1]}; put them on one device"
                )
        for v in members:
            if placed and device[v] < 0:
                device[v] = device[placed[0]]
