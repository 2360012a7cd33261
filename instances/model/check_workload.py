"""The one place where a workload is validated: nothing downstream checks again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral

import numpy as np

from ..common.arrays import Floats, Ints
from ..common.errors import InputError, quote
from ..common.units import LARGEST, NodeId
from .layers import Layers

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


def all_differ(ids: tuple[NodeId, ...], what: str) -> None:
    """Raise InputError if an id occurs twice."""
    seen: set[NodeId] = set()
    for node in ids:
        if node in seen:
            raise InputError(f"{what} {node} occurs twice; ids must differ")
        seen.add(node)


def check_costs(
    where: str,
    ids: tuple[NodeId, ...],
    columns: Mapping[str, Floats | None],
    extra: Mapping[str, Floats],
) -> None:
    """Raise InputError unless there is a number in range for each node; only times may be `inf`."""
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
        wrong = np.abs(values) > LARGEST
        if wrong.any():
            v = int(np.argmax(wrong))
            raise InputError(
                f"{where}: node {ids[v]}: extra {quote(key)} is {values[v]:g}; "
                f"it must be a number of at most {LARGEST:g}"
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
    """Raise InputError unless every node has a configuration, and all name what exists."""
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
    """Return the words for one of the cycles that the edges close."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(edges.tolist())
    cycle = [str(ids[u]) for u, _ in nx.find_cycle(graph)]
    around = [*cycle[:8], "…"] if len(cycle) > 8 else cycle
    return f"the edges close a cycle: {' → '.join([*around, cycle[0]])}"
