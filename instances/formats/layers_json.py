"""Configurations of layers in our own JSON for workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ..common.units import NodeId
from ..model.layers import Layers
from ..model.workload import Workload
from .source import Source, Whole, plain_id


class ConfigurationRecord(msgspec.Struct, forbid_unknown_fields=True):
    """One configuration of a node; `sync` by the id at the other end of an edge, in and out.

    `sharding` has the signatures of the layer's operators, separated by spaces.
    """

    degree: Whole
    label: str
    time: float
    weight_bytes: float
    bytes_per_microbatch: float
    fixed_bytes: float
    recomputes: bool = False
    sync_in: list[tuple[int | str, float]] = msgspec.field(default_factory=list)
    sync_out: list[tuple[int | str, float]] = msgspec.field(default_factory=list)
    sharding: str = ""


class LayersRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What all layers share; bytes of each edge in the order of the file's edges."""

    edge_bytes: list[float]
    microbatches: int | None = None
    bandwidth: float | None = None


def read_layers(
    source: Source,
    record: LayersRecord,
    nodes: Sequence[tuple[NodeId, Sequence[ConfigurationRecord]]],
    edges: Sequence[tuple[int, int]],
) -> Layers:
    """Return the configurations of a workload.

    Parameters
    ----------
    nodes
        Id and configurations of each node.
    edges
        Numbers of both ends, in the order of the file.
    """
    if len(record.edge_bytes) != len(edges):
        source.fail(
            f"layers: edge_bytes has {len(record.edge_bytes)} values for {len(edges)} edges; "
            "give one for each edge"
        )
    size = dict(zip(edges, record.edge_bytes, strict=True))
    number = {ends: e for e, ends in enumerate(sorted(size))}
    index = {node: v for v, (node, _) in enumerate(nodes)}
    rows: list[tuple[int, ConfigurationRecord]] = []
    sync: list[dict[int, float]] = []
    for v, (node, configurations) in enumerate(nodes):
        for c in configurations:
            rows.append((v, c))
            sync.append({})
            ends = [(index.get(other, -1), v, extra) for other, extra in c.sync_in]
            ends += [(v, index.get(other, -1), extra) for other, extra in c.sync_out]
            for u, w, extra in ends:
                if (u, w) not in number:
                    source.fail(
                        f"node {plain_id(node)}: configuration {c.label}: sync_in or sync_out "
                        "names a node that no such edge leads to; remove it"
                    )
                sync[-1][number[u, w]] = extra
    return Layers(
        node=np.array([v for v, _ in rows], np.int64),
        degree=np.array([c.degree for _, c in rows], np.int64),
        label=tuple(c.label for _, c in rows),
        recomputes=np.array([c.recomputes for _, c in rows], np.bool_),
        time=np.array([c.time for _, c in rows], np.float64),
        weight_bytes=np.array([c.weight_bytes for _, c in rows], np.float64),
        bytes_per_microbatch=np.array([c.bytes_per_microbatch for _, c in rows], np.float64),
        fixed_bytes=np.array([c.fixed_bytes for _, c in rows], np.float64),
        edge_bytes=np.array([size[ends] for ends in sorted(size)], np.float64),
        sync_bytes=tuple(sync),
        microbatches=record.microbatches,
        bandwidth=record.bandwidth,
        sharding=tuple(c.sharding for _, c in rows),
    )


def write_layers(
    workload: Workload, layers: Layers
) -> tuple[dict[str, object], list[list[Mapping[str, object]]]]:
    """Return what all layers share, and the configurations of each node, as JSON values."""
    shared = LayersRecord(layers.edge_bytes.tolist(), layers.microbatches, layers.bandwidth)
    nodes: list[list[Mapping[str, object]]] = [[] for _ in workload.ids]
    for c in range(layers.size):
        v = int(layers.node[c])
        arriving, leaving = [], []
        for e, extra in sorted(layers.sync_bytes[c].items()):
            u, w = workload.edges[e].tolist()
            if w == v:
                arriving.append((workload.ids[u], extra))
            else:
                leaving.append((workload.ids[w], extra))
        record = ConfigurationRecord(
            degree=int(layers.degree[c]),
            label=layers.label[c],
            time=float(layers.time[c]),
            weight_bytes=float(layers.weight_bytes[c]),
            bytes_per_microbatch=float(layers.bytes_per_microbatch[c]),
            fixed_bytes=float(layers.fixed_bytes[c]),
            recomputes=bool(layers.recomputes[c]),
            sync_in=arriving,
            sync_out=leaving,
            sharding=layers.sharding[c],
        )
        written = msgspec.to_builtins(record)
        if not layers.sharding[c]:
            del written["sharding"]
        nodes[v].append(written)
    return msgspec.to_builtins(shared), nodes
