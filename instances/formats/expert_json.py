"""Reader of split files: the device of each node in the published splits."""

from __future__ import annotations

import msgspec
import numpy as np

from ..common.errors import InputError
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.problem import Problem, names_stages
from ..model.solution import Placement
from ..model.workload import Workload
from .source import Source, plain_id


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
    file = source.convert(_ExpertFile)
    cluster = cluster or workload.cluster
    if cluster is None:
        raise InputError(f"{workload.name}: it suggests no cluster; give one")
    device = np.full(workload.n, -1)
    for key, listed, host in (("fpgas", file.fpgas, False), ("cpus", file.cpus, True)):
        there = [d for d, dev in enumerate(cluster.devices) if cluster.kinds[dev.kind].host == host]
        for i, part in enumerate(listed):
            if part.nodes and i >= len(there):
                source.fail(
                    f"{key}[{i}] holds nodes, but the cluster has only {len(there)} such devices; "
                    "add devices or move the nodes"
                )
            for node in part.nodes:
                v = workload.index.get(node)
                if v is None:
                    source.fail(
                        f"{key}[{i}]: unknown node {plain_id(node)}; {workload.name} has no such "
                        "id: is it the split of another workload?"
                    )
                if device[v] >= 0:
                    source.fail(f"{key}[{i}]: node {plain_id(node)} is listed twice; remove one")
                device[v] = there[i]
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
    file = source.convert(_ExpertFile)
    found: list[tuple[NodeId, int]] = []
    for key, listed, host in (("fpgas", file.fpgas, False), ("cpus", file.cpus, True)):
        there = [d for d, dev in enumerate(cluster.devices) if cluster.kinds[dev.kind].host == host]
        if names_stages(problem):
            there = [] if host else list(range(len(listed)))
        for i, part in enumerate(listed):
            if part.nodes and i >= len(there):
                source.fail(f"{key}[{i}] holds nodes, and there are only {len(there)} such places")
            found += [(node, there[i]) for node in part.nodes]
    return tuple(found)


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
