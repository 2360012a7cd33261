"""Workloads: computation graphs of neural networks, with the costs of each node.

Workloads are validated here, once: nothing downstream checks again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from heapq import heappop, heappush
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import Bools, Floats, Ints, checked, frozen, grouped, increasing, rebuild
from ..common.errors import InputError, all_differ, quote
from ..common.units import LARGEST, TIME_UNITS, UNSPECIFIED, NodeId
from .layers import Layers
from .summary import Summarised
from .tensor_program import TensorProgram

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from .cluster import Cluster


@dataclass(frozen=True)
class Copy:
    """A user of a tied weight, with the nodes that hold its copy."""

    # its forward and backward nodes, which share a device in any case
    nodes: tuple[int, ...]
    holder: int  # the forward node that holds the weight
    # the backward node that delivers its gradient, and holds that and the optimizer's state; None
    # without
    deliverer: int | None = None


@dataclass(frozen=True)
class Tie:
    """A tied weight, or several with the same users."""

    weight: str  # its name in the model
    copies: tuple[Copy, ...]  # its users, at least two; the first holds it if there is one copy
    weight_bytes: float  # weight_bytes, gradient_bytes, optimizer_bytes: of one copy
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    # time of each device for the all-reduce of two copies, per batch, in the unit of
    # `Workload.transfer`; None if the workload has no such times
    exchange_time: float | None = None
    exchange: tuple[int, ...] = field(default=())  # the exchange nodes, where there are some

    @property
    def exchange_bytes(self) -> float:
        """Bytes between two copies, per batch, there and back."""
        return 2 * self.gradient_bytes

    def bytes_of(self, copy: Copy) -> list[tuple[str, int, float]]:
        """Return column of `Workload.extra`, node and bytes of each part of a copy."""
        late = copy.holder if copy.deliverer is None else copy.deliverer
        return [
            ("weight_bytes", copy.holder, self.weight_bytes),
            ("gradient_bytes", late, self.gradient_bytes),
            ("optimizer_bytes", late, self.optimizer_bytes),
        ]


def check_ties(where: str, backward: Bools, ties: Sequence[Tie]) -> None:
    """Raise InputError unless every tie has two users or more, with nodes of their own."""
    known = range(len(backward))
    exchange = [x for tie in ties for x in tie.exchange]
    for tie in ties:
        what = f"{where}: tie {quote(tie.weight)}"
        nodes = [v for copy in tie.copies for v in copy.nodes]
        sizes = (tie.weight_bytes, tie.gradient_bytes, tie.optimizer_bytes, tie.exchange_time or 0)
        if len(tie.copies) < 2:
            raise InputError(f"{what}: it has {len(tie.copies)} users; a tied weight has two")
        if any(v not in known for v in (*nodes, *tie.exchange)):
            raise InputError(f"{what}: it names a node that does not exist")
        if len(set(nodes)) < len(nodes):
            raise InputError(f"{what}: two of its users have a node in common")
        if set(nodes) & set(exchange) or len(set(exchange)) < len(exchange):
            raise InputError(f"{what}: an exchange node has one tie, and is no user's")
        if not all({c.holder, c.deliverer} - {None} <= set(c.nodes) for c in tie.copies):
            raise InputError(f"{what}: holder and deliverer must be nodes of their user")
        late = [c.deliverer for c in tie.copies if c.deliverer is not None]
        if backward[[c.holder for c in tie.copies]].any() or not backward[late].all():
            raise InputError(f"{what}: its holders are forward nodes, its deliverers backward ones")
        if not all(0 <= size < math.inf for size in sizes):
            raise InputError(f"{what}: its bytes and times must be finite and at least 0")


#: Columns of `Workload.to_pandas` that an extra may not be called.
RESERVED = frozenset(
    {"id", "name", "memory_bytes", "transfer", "output_bytes"} | {"backward", "colour"}
)

#: Most colours without labels: a mistyped colour must not exhaust the memory.
MAX_COLOURS = 1_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Workload(Summarised):
    """A directed acyclic graph of operators or layers with costs.

    Nodes are numbered 0 … n−1 in the order of `ids`; every array is indexed by that number, is
    read-only, and is checked once, here.

    Parameters
    ----------
    name
        Name of the workload.
    ids
        The user's ids of the nodes, all different.
    edges
        Shape (m, 2): source and target. Edges listed twice are kept once, sorted.
    times
        Time of each node per kind of device, in `time_unit`; `inf` where the kind does not
        support the node. Keys are names of kinds, such as ``accelerator`` and ``cpu``.
    memory_bytes
        Memory that the node takes on an accelerator.
    transfer
        Time to move the node's output between an accelerator and host memory, in `time_unit`,
        once per device that it enters or leaves; None if only `output_bytes` is known.
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
        Further numbers per node by name, NaN where unknown: ``parameters``, ``flops``, …; names
        of sizes end in ``_bytes``. Pipelines count ``weight_bytes`` and ``activation_bytes``, in
        mappings ``gradient_bytes`` or ``weight_bytes`` are reduced.
    layers
        Configurations of each node (tensor degree, recomputation), for training plans.
    program
        The tensors that each node reads and makes, for sharding.
    cluster
        The devices that the file suggests, if it does.
    ties
        Weights that several nodes use; `tied_as` turns copies into one shared weight and back.
    provenance
        Origin: ``source``, ``licence``, ``generator``, ….

    Raises
    ------
    InputError
        If an array has the wrong length, a time, size or transfer is negative or NaN (in `extra`:
        a size is negative), an edge leads nowhere or back to its own source, an id occurs twice,
        or the graph has a cycle.

    Examples
    --------
    >>> workload = Workload(
    ...     name="chain",
    ...     ids=("a", "b", "c"),
    ...     edges=np.array([(0, 1), (1, 2)]),
    ...     times={"accelerator": np.array([1.0, 2.0, 3.0])},
    ...     memory_bytes=np.zeros(3),
    ...     transfer=np.array([0.5, 0.5, 0.0]),
    ... )
    >>> workload.n, workload.successors
    (3, ((1,), (2,), ()))
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
    ties: tuple[Tie, ...] = ()
    program: TensorProgram | None = None

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        put("name", str(self.name))
        where = self.name
        put("ids", plain_ids(self.ids, f"{where}: ids"))
        n = len(self.ids)
        edges = checked(self.edges, np.int64, f"{where}: edges", columns=2)
        put("edges", frozen(increasing(edges), np.int64))
        put("times", _columns(self.times, f"{where}: time on"))
        put("extra", _columns(self.extra, f"{where}: extra"))
        texts = {str(key): str(value) for key, value in self.provenance.items()}
        put("provenance", MappingProxyType(texts))
        for key in ("memory_bytes", "transfer", "output_bytes"):
            if getattr(self, key) is not None:
                put(key, checked(getattr(self, key), np.float64, f"{where}: {key}"))
        for key, dtype, default in (("backward", np.bool_, False), ("colours", np.int64, -1)):
            given = checked(getattr(self, key), dtype, f"{where}: {key}")
            put(key, given if len(given) else frozen(np.full(n, default), dtype))
        count = int(self.colours.max(initial=-1)) + 1
        labels = plain_ids(self.colour_labels, f"{where}: colour_labels")
        put("colour_labels", labels or tuple(range(min(count, MAX_COLOURS))))
        put("names", tuple(str(name) for name in self.names) or tuple(str(i) for i in self.ids))
        _check(self)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Successors of each node, increasing."""
        return grouped(self.edges, self.n)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Predecessors of each node, increasing."""
        turned = self.edges[:, ::-1]
        return grouped(turned[np.lexsort((turned[:, 1], turned[:, 0]))], self.n)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """A topological order: of the nodes that are ready, the lowest number comes first."""
        if (self.edges[:, 0] < self.edges[:, 1]).all():
            return tuple(range(self.n))
        waits_for = np.bincount(self.edges[:, 1], minlength=self.n).tolist()
        ready = [v for v, count in enumerate(waits_for) if count == 0]
        order = []
        while ready:
            v = heappop(ready)
            order.append(v)
            for w in self.successors[v]:
                waits_for[w] -= 1
                if waits_for[w] == 0:
                    heappush(ready, w)
        if len(order) < self.n:
            raise InputError(
                f"{self.name}: {describe_cycle(self.ids, self.edges)}; remove one of these edges"
            )
        return tuple(order)

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

    def ids_by_place(self, place: Iterable[int], places: int) -> list[list[NodeId]]:
        """Return the ids of the nodes at each of so many places, given that of each node."""
        found: list[list[NodeId]] = [[] for _ in range(places)]
        for node, p in zip(self.ids, place, strict=True):
            found[p].append(node)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ids, graph, costs, colours, layers and tensor program.

        Not of names, extra numbers and ties, which `verify` counts anew. Colours are included as a
        grouping of nodes: how the classes are numbered does not matter.
        """
        digest = hashlib.sha256()
        digest.update(repr((self.ids, self.time_unit, sorted(self.times))).encode())
        times = [self.times[kind] for kind in sorted(self.times)]
        costs = [*times, self.memory_bytes, self.transfer, self.output_bytes]
        numbered: dict[int, int] = {-1: -1}
        groups = [numbered.setdefault(c, len(numbered) - 1) for c in self.colours.tolist()]
        for array in (self.edges, self.backward, np.array(groups, np.int64), *costs):
            digest.update(b"-" if array is None else (array + 0).tobytes())  # −0.0 is 0.0
            digest.update(b"|")
        if self.layers is not None:
            digest.update(self.layers.fingerprint.encode())
        if self.program is not None:
            digest.update(self.program.fingerprint.encode())
        return digest.hexdigest()

    def to_networkx(self) -> nx.DiGraph[NodeId]:
        """Return the graph with the costs as node attributes, keyed by id.

        Returns
        -------
        networkx.DiGraph
            Node attributes are the columns of `to_pandas`; the graph's own are ``name`` and
            ``time_unit``. `from_networkx` is the inverse.
        """
        import networkx as nx

        graph: nx.DiGraph[NodeId] = nx.DiGraph(name=self.name, time_unit=self.time_unit)
        for row in self.to_pandas().reset_index().to_dict("records"):
            graph.add_node(row.pop("id"), **{str(key): value for key, value in row.items()})
        graph.add_edges_from((self.ids[u], self.ids[v]) for u, v in self.edges.tolist())
        return graph

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per node, indexed by id; `from_pandas` is the inverse.

        Returns
        -------
        pandas.DataFrame
            Columns: name, time_KIND for each kind, memory_bytes, transfer and output_bytes where
            known, backward, colour (the user's label, or None), and those of `extra`.
        """
        import pandas as pd

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

    def edges_to_pandas(self) -> pd.DataFrame:
        """Return one row per edge: the ids of its source and target."""
        import pandas as pd

        ends = [(self.ids[u], self.ids[v]) for u, v in self.edges.tolist()]
        return pd.DataFrame(ends, columns=["source", "target"], dtype="object")

    def summary(self) -> dict[str, object]:
        """Return name, size and units."""
        return {
            "name": self.name,
            "nodes": self.n,
            "edges": len(self.edges),
            "times on": ", ".join(self.times),
            "time_unit": self.time_unit,
        }

    __reduce__ = rebuild


def _columns(columns: Mapping[str, Floats], what: str) -> Mapping[str, Floats]:
    return MappingProxyType(
        {str(key): checked(values, np.float64, f"{what} {key}") for key, values in columns.items()}
    )


def _check(workload: Workload) -> None:
    """Raise InputError unless the workload satisfies the invariants of its class."""
    where, n = workload.name, workload.n
    if n == 0:
        raise InputError(f"{where}: no nodes; a workload needs at least one")
    if workload.time_unit != UNSPECIFIED and workload.time_unit not in TIME_UNITS:
        known = ", ".join(TIME_UNITS)
        raise InputError(
            f"{where}: unknown time unit {quote(workload.time_unit)}; use one of {known}"
        )
    all_differ(workload.ids, f"{where}: node id")
    all_differ(workload.colour_labels, f"{where}: colour label")
    if not workload.times:
        raise InputError(f"{where}: no times; give each node a time for at least one kind")
    if workload.transfer is None and workload.output_bytes is None:
        raise InputError(f"{where}: neither transfer times nor output bytes; give one of them")
    columns = {
        **{f"time on {kind}": values for kind, values in workload.times.items()},
        "memory_bytes": workload.memory_bytes,
        "transfer": workload.transfer,
        "output_bytes": workload.output_bytes,
    }
    check_costs(where, workload.ids, columns, workload.extra)
    for what, length in (
        ("backward", len(workload.backward)),
        ("colours", len(workload.colours)),
        ("names", len(workload.names)),
        *((f"extra {key}", len(values)) for key, values in workload.extra.items()),
    ):
        if length != n:
            raise InputError(f"{where}: {what} has {length} values for {n} nodes")
    for key in workload.extra:
        if key in RESERVED or key.startswith("time_"):
            raise InputError(f"{where}: extra {quote(key)} is the name of a column; rename it")
    if workload.colours.max() >= len(workload.colour_labels) or workload.colours.min() < -1:
        raise InputError(f"{where}: colours must be −1 or number one of the colour labels")
    check_edges(where, workload.ids, workload.edges)
    workload.order  # noqa: B018  # raises on a cycle
    check_ties(where, workload.backward, workload.ties)
    if workload.layers is not None:
        check_layers(where, workload.ids, workload.edges, workload.layers)
    if workload.program is not None:
        named = tuple(operator.name for operator in workload.program.operators)
        if named != workload.ids:
            raise InputError(f"{where}: its program's operators are not its nodes, in their order")


def plain_ids(ids: Iterable[object], what: str) -> tuple[NodeId, ...]:
    """Return ids as Python's own whole numbers and texts; InputError if one is neither."""
    plain: list[NodeId] = []
    for node in ids:
        if isinstance(node, str):
            plain.append(str(node))
        elif isinstance(node, Integral) and not isinstance(node, bool | np.bool_):
            plain.append(int(node))
        else:
            raise InputError(f"{what}: {quote(node)} is neither a whole number nor a text")
    return tuple(plain)


def check_costs(
    where: str,
    ids: tuple[NodeId, ...],
    columns: Mapping[str, Floats | None],
    extra: Mapping[str, Floats],
) -> None:
    """Raise InputError unless all numbers are in range; only times may be `inf`, extras NaN."""
    n = len(ids)
    for what, values in columns.items():
        if values is None:
            continue
        if len(values) != n:
            raise InputError(f"{where}: {what} has {len(values)} values for {n} nodes")
        right = (values >= 0) & (values <= LARGEST)
        if what.startswith("time on"):
            right |= np.isposinf(values)
        if not right.all():
            v = int(np.argmin(right))
            raise InputError(
                f"{where}: node {ids[v]}: {what} is {values[v]:g}; "
                f"it must be a number of at least 0 and at most {LARGEST:g}"
            )
    for key, values in extra.items():
        least = 0.0 if key.endswith("_bytes") else -LARGEST
        wrong = (values < least) | (values > LARGEST)
        if wrong.any():
            v = int(np.argmax(wrong))
            raise InputError(
                f"{where}: node {ids[v]}: extra {quote(key)} is {values[v]:g}; "
                f"it must be a number from {least:g} to {LARGEST:g}"
            )


def check_edges(where: str, ids: tuple[NodeId, ...], edges: Ints) -> None:
    """Raise InputError if an edge names no node, or joins one with itself."""
    n = len(ids)
    if len(edges) and (edges.min() < 0 or edges.max() >= n):
        raise InputError(f"{where}: an edge names a node beyond 0 to {n - 1}")
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        node = ids[int(edges[np.argmax(loops), 0])]
        raise InputError(
            f"{where}: edge {node} → {node}: a node cannot feed itself; remove the edge"
        )


def check_layers(where: str, ids: tuple[NodeId, ...], edges: Ints, layers: Layers) -> None:
    """Raise InputError unless every node has a configuration, with known names only."""
    n = len(ids)
    if len(layers.edge_bytes) != len(edges):
        raise InputError(
            f"{where}: layers: edge_bytes has {len(layers.edge_bytes)} values "
            f"for {len(edges)} edges"
        )
    if layers.size and (layers.node.min() < 0 or layers.node.max() >= n):
        raise InputError(f"{where}: a configuration names a node beyond 0 to {n - 1}")
    for v in sorted(set(range(n)) - set(layers.node.tolist())):
        raise InputError(f"{where}: node {ids[v]} has no configuration; give it one")
    for node, sync in zip(layers.node.tolist(), layers.sync_bytes, strict=True):
        for edge in sync:
            if not 0 <= edge < len(edges) or node not in edges[edge]:
                raise InputError(
                    f"{where}: node {ids[node]}: sync_bytes names edge number "
                    f"{edge}, which is no edge of the node"
                )


def describe_cycle(ids: tuple[NodeId, ...], edges: Ints) -> str:
    """Return a text that shows one of the cycles that the edges close."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(edges.tolist())
    cycle = [str(ids[u]) for u, _ in nx.find_cycle(graph)]
    around = [*cycle[:8], "…"] if len(cycle) > 8 else cycle
    return f"the edges close a cycle: {' → '.join([*around, cycle[0]])}"


def node_columns(workload: Workload, rows: Ints) -> dict[str, Any]:
    """Return the costs of the nodes of these numbers as fields of `Workload`; 0 for number −1.

    Those are times, memory, transfers, output sizes, extra numbers, and passes.
    """

    def part(values: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if values is None else np.append(values, values.dtype.type(0))[rows]

    columns = ("memory_bytes", "transfer", "output_bytes", "backward")
    return {
        **{key: part(getattr(workload, key)) for key in columns},
        "times": {kind: part(values) for kind, values in workload.times.items()},
        "extra": {key: part(values) for key, values in workload.extra.items()},
    }


def kept_bytes(workload: Workload) -> tuple[Floats, Floats, Floats]:
    """Return each node's weights, resident bytes and activations, in bytes, shape (n,).

    Weights, in one version, are `extra["weight_bytes"]`, else all of a node's memory. Activations,
    of the forward pass of each microbatch in flight, are `extra["activation_bytes"]`, else the
    outputs where their bytes are known, else nothing. Resident are weights, gradients and optimizer
    state, that is, all of a node's memory but the activations of its one microbatch, if the
    workload gives them. NaN in a column means that it does not, for this node.
    """
    unknown, memory = np.full(workload.n, np.nan), workload.memory_bytes
    outputs = np.zeros(workload.n) if workload.output_bytes is None else workload.output_bytes
    weights = workload.extra.get("weight_bytes", unknown)
    activations = workload.extra.get("activation_bytes", unknown)
    known = ~np.isnan(activations)
    activations = np.where(known, activations, outputs)
    activations = np.where(workload.backward, 0.0, activations)
    resident = np.where(known, np.maximum(memory - activations, 0.0), memory)
    return np.where(np.isnan(weights), memory, weights), resident, activations
