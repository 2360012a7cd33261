"""JSON format of workloads and clusters, with layers and ties: versioned, editable by hand.

Numbers that JSON cannot write are null: a time on a kind that does not support the node, a memory
or bandwidth without limit, an extra number that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ..common.arrays import Floats
from ..common.errors import prefix_errors, quote
from ..common.units import NodeId
from ..model.cluster import Cluster, DeviceKind, Link, PairLink
from ..model.layers import PER_CONFIGURATION, Layers
from ..model.workload import Copy, Tie, Workload
from .solutions_json import RulesRecord
from .source import CLUSTER, NEWEST, WORKLOAD, Record, Source, Whole, plain_id, read_file


class CopyRecord(Record):
    """A user of a tied weight; nodes by id, deliverer null without one."""

    nodes: list[int | str]
    holder: int | str
    deliverer: int | str | None = None


class TieRecord(Record):
    """A weight that several nodes use; bytes and time of one copy, time null if not known."""

    weight: str
    copies: list[CopyRecord]
    weight_bytes: float
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    exchange_time: float | None = None
    exchange: list[int | str] = msgspec.field(default_factory=list)


class ConfigurationRecord(Record):
    """One configuration of a node; `sync_in`, `sync_out`: bytes by the id at an edge's other end.

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


class LayersRecord(Record):
    """Data shared by all layers; bytes of each edge in the order of the file's edges."""

    edge_bytes: list[float]
    microbatches: int | None = None
    bandwidth: float | None = None


class LinkRecord(Record, kw_only=True):
    """Link to host memory; bandwidth null for no limit."""

    latency_s: float
    bytes_per_s: float | None


class KindRecord(Record):
    """Devices that are alike; memory null for no limit."""

    name: str
    count: int
    memory_bytes: float | None = None
    host: bool = False
    times: str | None = None
    slowdown: float = 1.0
    link: LinkRecord | None = None


class PairLinkRecord(LinkRecord):
    """Link between two devices, each named by its name or that of its kind."""

    ends: tuple[str, str]


class ClusterFile(Record):
    """A cluster file."""

    format: Literal["stagecut-cluster"]
    version: Literal[1]
    kinds: list[KindRecord]
    links: list[PairLinkRecord] = msgspec.field(default_factory=list)
    placement_rules: RulesRecord = msgspec.field(default_factory=RulesRecord)


class NodeRecord(Record):
    """A node; times by kind of device, null where the kind does not support it."""

    id: int | str
    times: dict[str, float | None]
    memory_bytes: float = 0.0
    transfer: float | None = None
    output_bytes: float | None = None
    backward: bool = False
    colour: int | str | None = None
    name: str | None = None
    extra: dict[str, float | None] = msgspec.field(default_factory=dict)
    configurations: list[ConfigurationRecord] = msgspec.field(default_factory=list)


class WorkloadFile(Record):
    """A workload file; edges are pairs of node ids."""

    format: Literal["stagecut-workload"]
    version: Literal[1]
    name: str
    nodes: list[NodeRecord]
    edges: list[tuple[int | str, int | str]]
    time_unit: Literal["s", "ms", "us", "ns", "unspecified"] = "unspecified"
    colours: list[int | str] = msgspec.field(default_factory=list)
    cluster: list[KindRecord] | None = None
    cluster_links: list[PairLinkRecord] = msgspec.field(default_factory=list)
    provenance: dict[str, str] = msgspec.field(default_factory=dict)
    layers: LayersRecord | None = None
    ties: list[TieRecord] = msgspec.field(default_factory=list)


def read_workload(source: Source) -> Workload:
    """Return the workload in a Stagecut workload file."""
    file = read_file(source, WorkloadFile, WORKLOAD)
    if not file.nodes:
        source.fail("nodes is empty; a workload needs at least one node")
    index = source.numbered(node.id for node in file.nodes)
    kinds = list(file.nodes[0].times)
    extras = list(dict.fromkeys(key for node in file.nodes for key in node.extra))
    for node in file.nodes:
        if set(node.times) != set(kinds):
            source.fail(
                f"node {plain_id(node.id)}: times has other kinds than that of node "
                f"{plain_id(file.nodes[0].id)} ({', '.join(map(quote, kinds))}); "
                "give every node a time for each kind, null where it cannot run"
            )
    labels: dict[NodeId, int] = {label: c for c, label in enumerate(file.colours)}
    for node in file.nodes:
        if node.colour is not None and node.colour not in labels:
            if file.colours:
                source.fail(
                    f"node {plain_id(node.id)}: unknown colour {quote(node.colour)}; "
                    "list it in colours"
                )
            labels[node.colour] = len(labels)
    edges = []
    for tail, head in file.edges:
        for end in (tail, head):
            if end not in index:
                source.fail(
                    f"edge {plain_id(tail)} → {plain_id(head)}: unknown node {plain_id(end)}; "
                    "add the node or remove the edge"
                )
        edges.append((index[tail], index[head]))
    with prefix_errors(source.file, file.name):
        layers = None
        if file.layers is not None:
            configurations = [(node.id, node.configurations) for node in file.nodes]
            layers = read_layers(source, file.layers, configurations, edges)
        return Workload(
            name=file.name,
            ids=tuple(index),
            edges=np.array(edges, np.int64).reshape(-1, 2),
            times={
                kind: np.array([_or(node.times[kind], math.inf) for node in file.nodes])
                for kind in kinds
            },
            memory_bytes=np.array([node.memory_bytes for node in file.nodes]),
            transfer=_all_or_none(source, file.nodes, "transfer"),
            output_bytes=_all_or_none(source, file.nodes, "output_bytes"),
            backward=np.array([node.backward for node in file.nodes]),
            colours=np.array([-1 if n.colour is None else labels[n.colour] for n in file.nodes]),
            colour_labels=tuple(file.colours or labels),
            names=tuple(str(n.id) if n.name is None else n.name for n in file.nodes),
            time_unit=file.time_unit,
            extra={
                key: np.array([_or(node.extra.get(key), math.nan) for node in file.nodes])
                for key in extras
            },
            layers=layers,
            cluster=None
            if file.cluster is None
            else make_cluster(source, file.cluster, file.cluster_links),
            provenance=file.provenance,
            ties=tuple(read_tie(source, tie, index) for tie in file.ties),
        )


def write_workload(workload: Workload) -> dict[str, object]:
    """Return the file of `workload`, as JSON values."""
    nodes: list[dict[str, object]] = []
    times = {kind: values.tolist() for kind, values in workload.times.items()}
    extra = {key: values.tolist() for key, values in workload.extra.items()}
    for v, node in enumerate(workload.ids):
        record: dict[str, object] = {"id": node}
        if workload.names[v] != str(node):
            record["name"] = workload.names[v]
        record["times"] = {kind: finite(values[v]) for kind, values in times.items()}
        record["memory_bytes"] = float(workload.memory_bytes[v])
        if workload.transfer is not None:
            record["transfer"] = float(workload.transfer[v])
        if workload.output_bytes is not None:
            record["output_bytes"] = float(workload.output_bytes[v])
        if workload.backward[v]:
            record["backward"] = True
        if workload.colours[v] >= 0:
            record["colour"] = workload.colour_labels[workload.colours[v]]
        if extra:
            record["extra"] = {key: finite(values[v]) for key, values in extra.items()}
        nodes.append(record)
    cluster = workload.cluster
    shared: dict[str, object] = {}
    if cluster is not None and cluster.links:
        shared["cluster_links"] = links_of(cluster)
    if workload.layers is not None:
        shared["layers"], configurations = write_layers(workload, workload.layers)
        for record, given in zip(nodes, configurations, strict=True):
            record["configurations"] = given
    if workload.ties:
        shared["ties"] = [write_tie(tie, workload.ids) for tie in workload.ties]
    return {
        "format": WORKLOAD,
        "version": NEWEST[WORKLOAD],
        "name": workload.name,
        "time_unit": workload.time_unit,
        "provenance": dict(workload.provenance),
        "cluster": None if cluster is None else kinds_of(cluster),
        "colours": list(workload.colour_labels),
        **shared,
        "nodes": nodes,
        "edges": [[workload.ids[u], workload.ids[v]] for u, v in workload.edges.tolist()],
    }


def write_cluster(cluster: Cluster) -> dict[str, object]:
    """Return the file of `cluster`, as JSON values."""
    kinds, links = kinds_of(cluster), links_of(cluster)
    return {"format": CLUSTER, "version": NEWEST[CLUSTER], "kinds": kinds, "links": links}


def make_cluster(source: Source, kinds: list[KindRecord], links: list[PairLinkRecord]) -> Cluster:
    """Return the cluster of these kinds and links."""
    made, joined = [], []
    with prefix_errors(source.file, "cluster"):
        for kind in kinds:
            values: dict[str, Any] = msgspec.structs.asdict(kind)
            values["memory_bytes"] = _or(kind.memory_bytes, math.inf)
            if kind.link is not None:
                with prefix_errors(kind.name, "link"):
                    values["link"] = _link(kind.link)
            made.append(DeviceKind(**values))
        for pair in links:
            with prefix_errors(" – ".join(pair.ends), "link"):
                joined.append(PairLink(pair.ends, _link(pair)))
        return Cluster(tuple(made), tuple(joined))


def _link(record: LinkRecord) -> Link:
    return Link(record.latency_s, _or(record.bytes_per_s, math.inf))


def kinds_of(cluster: Cluster) -> list[dict[str, object]]:
    """Return the kinds of devices as JSON values."""
    records = []
    for kind in cluster.kinds:
        record: dict[str, object] = dict(vars(kind))
        record["memory_bytes"] = finite(kind.memory_bytes)
        if kind.link is not None:
            record["link"] = _write_link(kind.link)
        records.append(record)
    return records


def links_of(cluster: Cluster) -> list[dict[str, object]]:
    """Return the links between devices as JSON values."""
    return [{"ends": list(pair.ends), **_write_link(pair.link)} for pair in cluster.links]


def _write_link(link: Link) -> dict[str, object]:
    return {"latency_s": link.latency_s, "bytes_per_s": finite(link.bytes_per_s)}


def finite(value: float) -> float | None:
    """Return `value`, or None for a number that JSON cannot write."""
    return value if math.isfinite(value) else None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _all_or_none(
    source: Source, nodes: list[NodeRecord], what: Literal["transfer", "output_bytes"]
) -> Floats | None:
    values = [getattr(node, what) for node in nodes]
    missing = [k for k, value in enumerate(values) if value is None]
    if len(missing) == len(nodes):
        return None
    if missing:
        source.fail(
            f"node {plain_id(nodes[missing[0]].id)}: {what} is missing, other nodes have it; "
            "give it for all nodes or for none"
        )
    return np.array(values)


def read_layers(
    source: Source,
    record: LayersRecord,
    nodes: Sequence[tuple[NodeId, Sequence[ConfigurationRecord]]],
    edges: Sequence[tuple[int, int]],
) -> Layers:
    """Return the configurations of a workload, given ids and configurations of its nodes.

    Edges are the numbers of both ends, in the order of the file.
    """
    if len(record.edge_bytes) != len(edges):
        source.fail(
            f"layers: edge_bytes has {len(record.edge_bytes)} values for {len(edges)} edges; "
            "give one for each edge"
        )
    size = dict(zip(edges, record.edge_bytes, strict=True))
    if len(size) < len(edges):
        source.fail("edges: one is listed twice, so that its edge_bytes are not clear; remove one")
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
    columns: dict[str, Any] = {k: [getattr(c, k) for _, c in rows] for k in PER_CONFIGURATION}
    return Layers(
        node=np.array([v for v, _ in rows], np.int64),
        **columns,
        edge_bytes=np.array([size[ends] for ends in sorted(size)], np.float64),
        sync_bytes=tuple(sync),
        microbatches=record.microbatches,
        bandwidth=record.bandwidth,
        sharding=tuple(c.sharding for _, c in rows),
    )


def write_layers(
    workload: Workload, layers: Layers
) -> tuple[dict[str, object], list[list[Mapping[str, object]]]]:
    """Return the data shared by layers, and each node's configurations, as JSON values."""
    shared: dict[str, object] = {"edge_bytes": layers.edge_bytes.tolist()}
    shared |= {"microbatches": layers.microbatches, "bandwidth": layers.bandwidth}
    columns = {key: np.array(getattr(layers, key)).tolist() for key in PER_CONFIGURATION}
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
        record: dict[str, object] = {key: column[c] for key, column in columns.items()}
        record |= {"sync_in": arriving, "sync_out": leaving}
        if layers.sharding[c]:
            record["sharding"] = layers.sharding[c]
        nodes[v].append(record)
    return shared, nodes


def read_tie(source: Source, record: TieRecord, index: Mapping[NodeId, int]) -> Tie:
    """Return the tie of a record; `index` has the number of each node."""

    def number(node: NodeId) -> int:
        if node not in index:
            source.fail(
                f"tie {quote(record.weight)}: unknown node {plain_id(node)}; add the node or "
                "remove the tie"
            )
        return index[node]

    values: dict[str, Any] = msgspec.structs.asdict(record)
    values["copies"] = tuple(
        Copy(
            tuple(map(number, copy.nodes)),
            number(copy.holder),
            None if copy.deliverer is None else number(copy.deliverer),
        )
        for copy in record.copies
    )
    values["exchange"] = tuple(map(number, record.exchange))
    return Tie(**values)


def write_tie(tie: Tie, ids: Sequence[NodeId]) -> dict[str, object]:
    """Return a tie as JSON values."""
    copies = [
        {
            "nodes": [ids[v] for v in copy.nodes],
            "holder": ids[copy.holder],
            "deliverer": None if copy.deliverer is None else ids[copy.deliverer],
        }
        for copy in tie.copies
    ]
    return {**vars(tie), "copies": copies, "exchange": [ids[v] for v in tie.exchange]}
