"""Workloads from pandas and networkx: the inverses of their `to_…` methods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.arrays import Floats
from ..common.errors import InputError, quote
from ..common.units import UNSPECIFIED, NodeId
from ..model.cluster import Cluster
from ..model.workload import RESERVED, Workload, plain_ids

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

_TIME = "time_"


def from_pandas(
    nodes: pd.DataFrame,
    edges: pd.DataFrame,
    *,
    name: str,
    time_unit: str = UNSPECIFIED,
    cluster: Cluster | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return the workload that two tables describe.

    Parameters
    ----------
    nodes
        One row per node, indexed by id, with the columns of `Workload.to_pandas`: ``time_KIND``
        for at least one kind (`inf` where unsupported), and ``transfer`` or ``output_bytes``.
        Optional: ``memory_bytes`` (0), ``backward`` (False), ``colour`` (None or NaN for none),
        ``name``; every other column becomes an extra number.
    edges
        One row per edge, with the ids in columns ``source`` and ``target``.
    name, time_unit, cluster, provenance
        As in `Workload`.

    Returns
    -------
    Workload
        Its nodes are numbered in the order of the rows.

    Raises
    ------
    InputError
        If a column is missing or holds something else, or an edge leads to an unknown node.

    Examples
    --------
    >>> import pandas as pd
    >>> nodes = pd.DataFrame({"time_accelerator": [1.0, 2.0], "transfer": [0.5, 0.0]}, [7, 8])
    >>> edges = pd.DataFrame({"source": [7], "target": [8]})
    >>> from_pandas(nodes, edges, name="two").successors
    ((1,), ())
    """
    ids = plain_ids(nodes.index, f"{name}: ids")
    index = {node: v for v, node in enumerate(ids)}
    for column in ("source", "target"):
        if column not in edges.columns:
            raise InputError(f"{name}: the table of edges has no column {quote(column)}; add it")
    pairs = []
    for row, ends in enumerate(zip(edges["source"], edges["target"], strict=True)):
        for end in ends:
            if not isinstance(end, Hashable) or end not in index:
                raise InputError(
                    f"{name}: edges row {row}: unknown node {quote(end)}; add the node"
                    " (the index of the table of nodes has their ids)"
                )
        pairs.append([index[end] for end in ends])
    times = {
        str(column).removeprefix(_TIME): _numbers(nodes, column, name)
        for column in nodes.columns
        if str(column).startswith(_TIME)
    }
    extra = {
        str(column): _numbers(nodes, column, name)
        for column in nodes.columns
        if column not in RESERVED and not str(column).startswith(_TIME)
    }
    colours, labels = _colours(nodes, name)
    known = set(nodes.columns)
    return Workload(
        name=name,
        ids=ids,
        edges=np.array(pairs, np.int64).reshape(-1, 2),
        times=times,
        memory_bytes=_numbers(nodes, "memory_bytes", name)
        if "memory_bytes" in known
        else np.zeros(len(ids)),
        transfer=_numbers(nodes, "transfer", name) if "transfer" in known else None,
        output_bytes=_numbers(nodes, "output_bytes", name) if "output_bytes" in known else None,
        backward=nodes["backward"].to_numpy() if "backward" in known else np.zeros(0, np.bool_),
        colours=np.array(colours, np.int64),
        colour_labels=labels,
        names=tuple(map(str, nodes["name"])) if "name" in known else (),
        time_unit=time_unit,
        extra=extra,
        cluster=cluster,
        provenance=provenance or {},
    )


def from_networkx(
    graph: nx.DiGraph[Any],
    *,
    name: str | None = None,
    time_unit: str | None = None,
    cluster: Cluster | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return the workload that a directed graph describes.

    Parameters
    ----------
    graph
        Its nodes are the ids; their attributes are the columns that `from_pandas` reads, and
        every node has the same. Edge attributes are ignored.
    name, time_unit
        Default: the attributes ``name`` and ``time_unit`` of the graph.
    cluster, provenance
        As in `Workload`.

    Returns
    -------
    Workload
        Its nodes are numbered in the graph's order.

    Raises
    ------
    InputError
        If the graph is undirected, or a node lacks an attribute that others have.

    Examples
    --------
    >>> import networkx as nx
    >>> graph = nx.DiGraph(name="two")
    >>> graph.add_node("a", time_accelerator=1.0, transfer=0.5)
    >>> graph.add_node("b", time_accelerator=2.0, transfer=0.0)
    >>> graph.add_edge("a", "b")
    >>> from_networkx(graph).ids
    ('a', 'b')
    """
    import pandas as pd

    name = name or str(graph.graph.get("name") or "graph")
    if not graph.is_directed():
        raise InputError(f"{name}: the graph is undirected; give a networkx.DiGraph")
    rows = dict(graph.nodes(data=True))
    keys = dict.fromkeys(str(key) for row in rows.values() for key in row)
    for node, row in rows.items():
        for key in keys:
            if key not in row:
                raise InputError(
                    f"{name}: node {quote(node)} has no attribute {quote(key)}, other nodes have "
                    "it; give it to all"
                )
    table = pd.DataFrame(
        {key: pd.Series([row[key] for row in rows.values()], dtype="object") for key in keys}
    )
    table.index = pd.Index(list(rows), dtype="object")
    edges = pd.DataFrame(list(graph.edges()), columns=["source", "target"], dtype="object")
    unit = time_unit or str(graph.graph.get("time_unit", UNSPECIFIED))
    return from_pandas(
        table, edges, name=name, time_unit=unit, cluster=cluster, provenance=provenance
    )


def _numbers(nodes: pd.DataFrame, column: Any, name: str) -> Floats:
    try:
        numbers: Floats = nodes[column].to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: column {quote(column)} must hold numbers") from None
    return numbers


def _colours(nodes: pd.DataFrame, name: str) -> tuple[list[int], tuple[NodeId, ...]]:
    if "colour" not in nodes.columns:
        return [], ()
    labels: dict[NodeId, int] = {}
    colours = []
    for value, missing in zip(nodes["colour"], nodes["colour"].isna(), strict=True):
        if missing:
            colours.append(-1)
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas turns whole numbers with gaps into floats
        if not isinstance(value, str | Integral):
            raise InputError(f"{name}: colour {quote(value)} is neither a whole number nor a text")
        label = plain_ids([value], f"{name}: colour")[0]
        colours.append(labels.setdefault(label, len(labels)))
    return colours, tuple(labels)
