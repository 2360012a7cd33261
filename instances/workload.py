"""A workload: the computation graph of a neural network, with what each node costs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pandas as pd

from .arrays import Bools, Floats, Ints, frozen
from .errors import InputError
from .layers import Layers

if TYPE_CHECKING:
    from .cluster import Cluster

NodeId = int | str

#: Seconds per unit of time; a file that names no unit cannot be priced over links in bytes/s.
TIME_UNITS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})
UNSPECIFIED = "unspecified"


@dataclass(frozen=True, eq=False)
class Workload:
    """A directed acyclic graph of operators or layers with costs.

    Nodes are numbered 0 … n−1 in the order of `ids`; every array is indexed by that number, is
    read-only, and is checked once, here.

    Parameters
    ----------
    name
        What people call it.
    ids
        The ids that the user knows the nodes by (the file's own), all different.
    edges
        Shape (m, 2): source and target. Edges listed twice are kept once, sorted.
    times
        Time of each node per kind of device, in `time_unit`; `inf` where the kind does not
        support the node. Keys are names of kinds, such as ``accelerator`` and ``cpu``.
    memory_bytes
        Memory that the node takes on an accelerator.
    transfer
        Time to move the node's output between an accelerator and host memory, in `time_unit`,
        paid once per device that it enters or leaves; None if only `output_bytes` is known.
    output_bytes
        Size of the node's output; None if only `transfer` is known.
    backward
        Whether the node belongs to the backward pass; default: none does.
    colours
        Colocation class of each node, −1 for none (the default): nodes of one class share a
        device.
    colour_labels
        The user's names of the classes 0, 1, ….
    names
        Readable names of the nodes; default: the ids.
    time_unit
        ``s``, ``ms``, ``us``, ``ns``, or ``unspecified`` where a file does not say.
    extra
        Further numbers per node that no planner needs but people ask for, by name:
        ``parameters``, ``flops``, ``weight_bytes``, ``activation_bytes``, ….
    layers
        What each node can be configured to (tensor degree, recomputation), for training plans.
    cluster
        The devices that the file suggests, if it does.
    provenance
        Where it comes from: ``source``, ``licence``, ``generator``, ….

    Raises
    ------
    InputError
        If an array has the wrong length, a time, size or transfer is negative or NaN, an edge
        leads nowhere or back to its own source, an id occurs twice, or the graph has a cycle.
    """

    name: str
    ids: tuple[NodeId, ...]
    edges: Ints
    times: Mapping[str, Floats]
    memory_bytes: Floats
    transfer: Floats | None
    output_bytes: Floats | None = None
    backward: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    colours: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    colour_labels: tuple[NodeId, ...] = ()
    names: tuple[str, ...] = ()
    time_unit: str = UNSPECIFIED
    extra: Mapping[str, Floats] = field(default_factory=dict)
    layers: Layers | None = None
    cluster: Cluster | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.ids)
        put = partial(object.__setattr__, self)
        put("ids", tuple(self.ids))
        edges = np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        put("edges", frozen(np.unique(edges, axis=0) if len(edges) else edges, np.int64))
        put("times", _columns(self.times))
        put("extra", _columns(self.extra))
        put("provenance", MappingProxyType(dict(self.provenance)))
        put("memory_bytes", frozen(self.memory_bytes, np.float64))
        for key in ("transfer", "output_bytes"):
            if getattr(self, key) is not None:
                put(key, frozen(getattr(self, key), np.float64))
        put("backward", frozen(self.backward if len(self.backward) else np.zeros(n), np.bool_))
        put("colours", frozen(self.colours if len(self.colours) else np.full(n, -1), np.int64))
        count = int(self.colours.max(initial=-1)) + 1
        put("colour_labels", tuple(self.colour_labels) or tuple(range(count)))
        put("names", tuple(self.names) or tuple(str(i) for i in self.ids))
        self._check()

    def _check(self) -> None:
        n, where = len(self.ids), self.name
        if n == 0:
            raise InputError(f"{where}: no nodes; a workload needs at least one")
        if self.time_unit != UNSPECIFIED and self.time_unit not in TIME_UNITS:
            known = ", ".join(TIME_UNITS)
            raise InputError(f"{where}: unknown time unit {self.time_unit!r}; use one of {known}")
        if len(set(self.ids)) < n:
            twice = next(i for k, i in enumerate(self.ids) if i in self.ids[:k])
            raise InputError(f"{where}: node id {twice} occurs twice; ids must differ")
        if not self.times:
            raise InputError(f"{where}: no times; give each node a time for at least one kind")
        if self.transfer is None and self.output_bytes is None:
            raise InputError(f"{where}: neither transfer times nor output bytes; give one of them")
        columns: dict[str, Floats | None] = {
            **{f"time on {kind}": values for kind, values in self.times.items()},
            "memory_bytes": self.memory_bytes,
            "transfer": self.transfer,
            "output_bytes": self.output_bytes,
        }
        for what, values in columns.items():
            if values is None:
                continue
            if len(values) != n:
                raise InputError(f"{where}: {what} has {len(values)} values for {n} nodes")
            wrong = np.isnan(values) | (values < 0)
            if not what.startswith("time on"):
                wrong |= np.isinf(values)
            if wrong.any():
                v = int(np.argmax(wrong))
                raise InputError(
                    f"{where}: node {self.ids[v]}: {what} is {values[v]:g}; "
                    "it must be a number of at least 0"
                )
        for what, length in (
            ("backward", len(self.backward)),
            ("colours", len(self.colours)),
            ("names", len(self.names)),
            *((f"extra {key}", len(values)) for key, values in self.extra.items()),
        ):
            if length != n:
                raise InputError(f"{where}: {what} has {length} values for {n} nodes")
        if self.colours.max(initial=-1) >= len(self.colour_labels) or self.colours.min() < -1:
            raise InputError(f"{where}: colours must be −1 or number one of the colour labels")
        if len(self.edges) and (self.edges.min() < 0 or self.edges.max() >= n):
            raise InputError(f"{where}: an edge names a node beyond 0 to {n - 1}")
        loops = self.edges[:, 0] == self.edges[:, 1]
        if loops.any():
            node = self.ids[int(self.edges[np.argmax(loops), 0])]
            raise InputError(
                f"{where}: edge {node} → {node}: a node cannot feed itself; remove the edge"
            )
        if self.layers is not None:
            self._check_layers(self.layers)
        self.order  # noqa: B018  # raises on a cycle

    def _check_layers(self, layers: Layers) -> None:
        if len(layers.edge_bytes) != len(self.edges):
            raise InputError(
                f"{self.name}: layers: edge_bytes has {len(layers.edge_bytes)} values "
                f"for {len(self.edges)} edges"
            )
        for v in set(range(self.n)) - set(layers.node.tolist()):
            raise InputError(f"{self.name}: node {self.ids[v]} has no configuration; give it one")
        if layers.node.min() < 0 or layers.node.max() >= self.n:
            raise InputError(f"{self.name}: a configuration names a node beyond 0 to {self.n - 1}")
        for node, sync in zip(layers.node.tolist(), layers.sync_bytes, strict=True):
            for edge in sync:
                if not 0 <= edge < len(self.edges) or node not in self.edges[edge]:
                    raise InputError(
                        f"{self.name}: node {self.ids[node]}: sync_bytes names edge number "
                        f"{edge}, which is no edge of the node"
                    )

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Successors of each node, increasing."""
        lists: list[list[int]] = [[] for _ in range(self.n)]
        for u, v in self.edges.tolist():
            lists[u].append(v)
        return tuple(map(tuple, lists))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Predecessors of each node, increasing."""
        lists: list[list[int]] = [[] for _ in range(self.n)]
        for u, v in self.edges.tolist():
            lists[v].append(u)
        return tuple(map(tuple, lists))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """A topological order: of the nodes that are ready, the lowest number comes first."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(self.n))
        graph.add_edges_from(self.edges.tolist())
        try:
            return tuple(nx.lexicographical_topological_sort(graph))
        except nx.NetworkXUnfeasible:
            cycle = [self.ids[u] for u, _ in nx.find_cycle(graph)]
            shown = " → ".join(map(str, [*cycle[:8], "…"] if len(cycle) > 8 else cycle))
            raise InputError(
                f"{self.name}: the edges close a cycle: {shown} → {cycle[0]}; remove one of them"
            ) from None

    @cached_property
    def index(self) -> Mapping[NodeId, int]:
        """Number of each node by its id."""
        return MappingProxyType({node: v for v, node in enumerate(self.ids)})

    @cached_property
    def colour_classes(self) -> tuple[tuple[int, ...], ...]:
        """Nodes of each colour, increasing; classes nobody uses are empty."""
        classes: list[list[int]] = [[] for _ in self.colour_labels]
        for v, colour in enumerate(self.colours.tolist()):
            if colour >= 0:
                classes[colour].append(v)
        return tuple(map(tuple, classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a plan depends on: ids, graph, costs, colours; not of names."""
        digest = hashlib.sha256()
        digest.update(repr((self.ids, self.time_unit, sorted(self.times))).encode())
        times = [self.times[kind] for kind in sorted(self.times)]
        costs = [*times, self.memory_bytes, self.transfer, self.output_bytes]
        for array in (self.edges, self.backward, self.colours, *costs):
            digest.update(b"-" if array is None else array.tobytes())
            digest.update(b"|")
        if self.layers is not None:
            digest.update(self.layers.fingerprint.encode())
        return digest.hexdigest()

    def to_networkx(self) -> nx.DiGraph[NodeId]:
        """Return the graph with the costs as node attributes, keyed by id.

        Returns
        -------
        networkx.DiGraph
            Node attributes are the columns of `to_pandas`.
        """
        graph: nx.DiGraph[NodeId] = nx.DiGraph(name=self.name)
        for row in self.to_pandas().reset_index().to_dict("records"):
            graph.add_node(row.pop("id"), **{str(key): value for key, value in row.items()})
        graph.add_edges_from((self.ids[u], self.ids[v]) for u, v in self.edges.tolist())
        return graph

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per node, indexed by id.

        Returns
        -------
        pandas.DataFrame
            Columns: name, time_KIND for each kind, memory_bytes, transfer and output_bytes where
            known, backward, colour (the user's label, or None), and those of `extra`.
        """
        labels = [None if c < 0 else self.colour_labels[c] for c in self.colours.tolist()]
        columns: dict[str, object] = {"name": list(self.names)}
        columns |= {f"time_{kind}": values for kind, values in self.times.items()}
        columns["memory_bytes"] = self.memory_bytes
        if self.transfer is not None:
            columns["transfer"] = self.transfer
        if self.output_bytes is not None:
            columns["output_bytes"] = self.output_bytes
        columns |= {"backward": self.backward, "colour": pd.array(labels, dtype="object")}
        columns |= self.extra
        return pd.DataFrame(columns, index=pd.Index(list(self.ids), name="id", dtype="object"))


def _columns(columns: Mapping[str, Floats]) -> Mapping[str, Floats]:
    return MappingProxyType({key: frozen(values, np.float64) for key, values in columns.items()})
