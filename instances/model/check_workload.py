"""The one place where a workload is validated: nothing downstream checks again."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from .arrays import Floats
from .errors import InputError, quote
from .layers import Layers
from .units import MOST, TIME_UNITS, UNSPECIFIED, NodeId

if TYPE_CHECKING:
    from .workload import Workload

#: Columns of `Workload.to_pandas` that an extra may not be called.
RESERVED = frozenset(
    {"id", "name", "memory_bytes", "transfer", "output_bytes"} | {"backward", "colour"}
)


def plain_ids(ids: Iterable[object], what: str) -> tuple[NodeId, ...]:
    """Return ids as Python's own whole numbers and texts, numpy's turned into them.

    Raises
    ------
    InputError
        If one is neither.
    """
    plain: list[NodeId] = []
    for node in ids:
        if isinstance(node, str):
            plain.append(str(node))
        elif isinstance(node, Integral) and not isinstance(node, bool | np.bool_):
            plain.append(int(node))
        else:
            raise InputError(f"{what}: {quote(node)} is neither a whole number nor a text")
    return tuple(plain)


def check_workload(workload: Workload) -> None:
    """Raise InputError unless `workload` keeps what its class promises."""
    where, n = workload.name, workload.n
    if n == 0:
        raise InputError(f"{where}: no nodes; a workload needs at least one")
    if workload.time_unit != UNSPECIFIED and workload.time_unit not in TIME_UNITS:
        known = ", ".join(TIME_UNITS)
        raise InputError(
            f"{where}: unknown time unit {quote(workload.time_unit)}; use one of {known}"
        )
    _all_differ(workload.ids, f"{where}: node id")
    _all_differ(workload.colour_labels, f"{where}: colour label")
    if not workload.times:
        raise InputError(f"{where}: no times; give each node a time for at least one kind")
    if workload.transfer is None and workload.output_bytes is None:
        raise InputError(f"{where}: neither transfer times nor output bytes; give one of them")
    _check_costs(workload)
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
    _check_edges(workload)
    if workload.layers is not None:
        _check_layers(workload, workload.layers)


def _all_differ(ids: tuple[NodeId, ...], what: str) -> None:
    seen: set[NodeId] = set()
    for node in ids:
        if node in seen:
            raise InputError(f"{what} {node} occurs twice; ids must differ")
        seen.add(node)


def _check_costs(workload: Workload) -> None:
    where, n = workload.name, workload.n
    columns: dict[str, Floats | None] = {
        **{f"time on {kind}": values for kind, values in workload.times.items()},
        "memory_bytes": workload.memory_bytes,
        "transfer": workload.transfer,
        "output_bytes": workload.output_bytes,
    }
    for what, values in columns.items():
        if values is None:
            continue
        if len(values) != n:
            raise InputError(f"{where}: {what} has {len(values)} values for {n} nodes")
        right = (values >= 0) & (values <= MOST)
        if what.startswith("time on"):
            right |= np.isposinf(values)
        if not right.all():
            v = int(np.argmin(right))
            raise InputError(
                f"{where}: node {workload.ids[v]}: {what} is {values[v]:g}; "
                f"it must be a number of at least 0 and at most {MOST:g}"
            )
    for key, values in workload.extra.items():
        wrong = np.abs(values) > MOST
        if wrong.any():
            v = int(np.argmax(wrong))
            raise InputError(
                f"{where}: node {workload.ids[v]}: extra {quote(key)} is {values[v]:g}; "
                f"it must be a number of at most {MOST:g}"
            )


def _check_edges(workload: Workload) -> None:
    where, edges, n = workload.name, workload.edges, workload.n
    if len(edges) and (edges.min() < 0 or edges.max() >= n):
        raise InputError(f"{where}: an edge names a node beyond 0 to {n - 1}")
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        node = workload.ids[int(edges[np.argmax(loops), 0])]
        raise InputError(
            f"{where}: edge {node} → {node}: a node cannot feed itself; remove the edge"
        )
    workload.order  # noqa: B018  # raises on a cycle


def _check_layers(workload: Workload, layers: Layers) -> None:
    where, n, edges = workload.name, workload.n, workload.edges
    if len(layers.edge_bytes) != len(edges):
        raise InputError(
            f"{where}: layers: edge_bytes has {len(layers.edge_bytes)} values "
            f"for {len(edges)} edges"
        )
    if layers.size and (layers.node.min() < 0 or layers.node.max() >= n):
        raise InputError(f"{where}: a configuration names a node beyond 0 to {n - 1}")
    for v in sorted(set(range(n)) - set(layers.node.tolist())):
        raise InputError(f"{where}: node {workload.ids[v]} has no configuration; give it one")
    for node, sync in zip(layers.node.tolist(), layers.sync_bytes, strict=True):
        for edge in sync:
            if not 0 <= edge < len(edges) or node not in edges[edge]:
                raise InputError(
                    f"{where}: node {workload.ids[node]}: sync_bytes names edge number "
                    f"{edge}, which is no edge of the node"
                )


def describe_cycle(workload: Workload) -> str:
    """Return the words for one of the cycles that the edges close."""
    graph: nx.DiGraph[int] = nx.DiGraph(workload.edges.tolist())
    cycle = [str(workload.ids[u]) for u, _ in nx.find_cycle(graph)]
    around = [*cycle[:8], "…"] if len(cycle) > 8 else cycle
    return f"the edges close a cycle: {' → '.join([*around, cycle[0]])}"
