"""Reader of Piper JSON: layers with tensor-parallel and recomputation configurations.

References
----------
Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization",
NeurIPS 2021; https://github.com/msr-fiddle/piper describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

from ..common.errors import prefix_errors, quote
from ..common.units import LARGEST, NodeId
from ..model.cluster import ACCELERATOR, accelerators_and_cpus
from ..model.layers import Layers
from ..model.workload import Workload
from .source import Amount, Source, plain_id

AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]


class _Configuration(msgspec.Struct):
    timePerSample: Amount
    parameterSize: Amount
    memoryUsageA: Amount
    memoryUsageB: Amount
    id: object = ""
    syncTimeFw: dict[int, Amount] = {}
    syncTimeBw: dict[int, Amount] = {}


class _PiperNode(msgspec.Struct):
    id: int
    TMPCs: dict[AtLeast1, list[_Configuration]]
    name: object = None


class _PiperEdge(msgspec.Struct):
    sourceId: int
    destId: int
    communicationCost: Amount


class _PiperFile(msgspec.Struct):
    maxMemoryPerDevice: Amount
    maxDevices: AtLeast1
    bandwidth: Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
    nodes: list[_PiperNode]
    edges: list[_PiperEdge]
    mbsInBatch: AtLeast1 | None = None
    maxBatchSize: AtLeast1 | None = None


def is_piper(source: Source) -> bool:
    """Whether the content looks like Piper JSON."""
    ours = {"maxMemoryPerDevice", "maxDevices", "mbsInBatch", "maxBatchSize"}
    return len(source.keys & ours) >= 2


def read_piper(source: Source) -> Workload:
    """Return the workload that a Piper JSON describes.

    Times keep the file's own unit, which it does not name; its bandwidth counts bytes per that
    unit. A configuration recomputes if its id holds ``recomp``. An edge that is listed twice
    carries the sum. ``syncTimeFw`` belongs to edges that come in, ``syncTimeBw`` to those that
    leave; unknown keys are ignored. For problems without configurations a node has the time and
    memory of its fastest configuration at its lowest degree. InputError names the file, the node or
    edge, the field.
    """
    file = source.convert(_PiperFile)
    if not file.nodes:
        source.fail("nodes is empty; a workload needs at least one node")
    microbatches = _microbatches(source, file)
    index = source.numbered(node.id for node in file.nodes)
    carried = _edges(source, file, index)
    edges = sorted(carried)
    with prefix_errors(source.file, source.stem):
        layers = _layers(source, file, index, carried, microbatches)
        first = [_plain(layers, v) for v in range(len(file.nodes))]
        sent = np.zeros(len(file.nodes))
        for (u, _), size in carried.items():
            sent[u] = max(sent[u], size)
        return Workload(
            name=source.stem,
            ids=tuple(node.id for node in file.nodes),
            edges=np.array(edges, np.int64).reshape(-1, 2),
            times={ACCELERATOR: layers.time[first]},
            memory_bytes=(layers.bytes_per_microbatch + layers.fixed_bytes)[first],
            transfer=None,
            output_bytes=sent,
            names=tuple(
                node.name if isinstance(node.name, str) else str(node.id) for node in file.nodes
            ),
            layers=layers,
            cluster=accelerators_and_cpus(file.maxDevices, 0, file.maxMemoryPerDevice),
        )


def _microbatches(source: Source, file: _PiperFile) -> int:
    given = {count for count in (file.mbsInBatch, file.maxBatchSize) if count is not None}
    if not given:
        source.fail("mbsInBatch is missing; add it (microbatches in a batch)")
    if len(given) > 1:
        source.fail(
            f"mbsInBatch is {file.mbsInBatch} but maxBatchSize is {file.maxBatchSize}; "
            "both mean microbatches in a batch: remove one"
        )
    return given.pop()


def _edges(
    source: Source, file: _PiperFile, index: Mapping[NodeId, int]
) -> dict[tuple[int, int], float]:
    """Return the bytes that each edge carries, by the numbers of its ends."""
    carried: dict[tuple[int, int], float] = {}
    for edge in file.edges:
        source.check_ends(edge, index)
        ends = index[edge.sourceId], index[edge.destId]
        carried[ends] = carried.get(ends, 0.0) + edge.communicationCost
    return carried


def _layers(
    source: Source,
    file: _PiperFile,
    index: Mapping[NodeId, int],
    carried: dict[tuple[int, int], float],
    microbatches: int,
) -> Layers:
    edges = sorted(carried)
    number = {edge: e for e, edge in enumerate(edges)}
    rows: list[tuple[int, int, str, _Configuration, dict[int, float]]] = []
    for v, node in enumerate(file.nodes):
        where = f"node {plain_id(node.id)}: TMPCs"
        if not any(node.TMPCs.values()):
            source.fail(f"{where} is empty; give at least one configuration")
        for degree, configurations in node.TMPCs.items():
            for c in configurations:
                sync: dict[int, float] = {}
                for field, others in (("syncTimeFw", c.syncTimeFw), ("syncTimeBw", c.syncTimeBw)):
                    for other, size in others.items():
                        u = index.get(other, -1)
                        ends = (u, v) if field == "syncTimeFw" else (v, u)
                        if ends not in number:
                            source.fail(
                                f"{where}: degree {degree}: {quote(c.id)}: {field} names node "
                                f"{plain_id(other)}, but there is no such edge; add the edge or "
                                "remove the entry"
                            )
                        sync[number[ends]] = size
                rows.append((v, degree, str(c.id), c, sync))
    return Layers(
        node=np.array([row[0] for row in rows]),
        degree=np.array([row[1] for row in rows]),
        label=tuple(row[2] for row in rows),
        recomputes=np.array(["recomp" in row[2].lower() for row in rows]),
        time=np.array([row[3].timePerSample for row in rows]),
        weight_bytes=np.array([row[3].parameterSize for row in rows]),
        bytes_per_microbatch=np.array([row[3].memoryUsageA for row in rows]),
        fixed_bytes=np.array([row[3].memoryUsageB for row in rows]),
        edge_bytes=np.array([carried[edge] for edge in edges]),
        sync_bytes=tuple(row[4] for row in rows),
        microbatches=microbatches,
        bandwidth=file.bandwidth,
    )


def _plain(layers: Layers, node: int) -> int:
    """Return the fastest configuration of the lowest degree of a node."""
    mine = np.flatnonzero(layers.node == node).tolist()
    return int(min(mine, key=lambda c: (layers.degree[c], layers.time[c])))
