"""Contiguous splits as a path through ideals: the statement that the dynamic program solves.

Units are ordered by the pipeline edges. Executing the pieces of a contiguous split one after the
other gives a chain of *ideals* (sets closed under predecessors) ∅ = I_0 ⊂ I_1 ⊂ … ⊂ V, and each
piece, or *stage*, is a difference of two that follow each other. With a cluster of c_1, …, c_K
devices of each kind, and s = (s_1, …, s_K) of them used,

    dp[s][I] = min over kinds κ with s_κ ≥ 1 and ideals I' ⊂ I of
               max(dp[s − e_κ][I'], load_κ(I ∖ I')),                     dp[0][∅] = 0

over stages that fit into the device's memory; the least max-load is min over s of dp[s][V]. It is
exact for contiguous splits, because every chain of ideals is a contiguous split and conversely.

A load is the largest of some *rows*: a row is a set function Σ_{v∈S} a_v + Σ_{nets e cut by S} w_e.
Transfers added: one row, compute and transfers. Overlapped: one row for each. GPipe: the rows of
the forward and of the backward pass, each with a maximum of its own. Memory is a row too.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import networkx as nx
import numpy as np

from ..instances.arrays import Floats, Ints, frozen
from .absorb import absorb
from .hypergraph import Hypergraph, hypergraph, pipeline_units
from .task import Task

#: Share of a memory by which sums of sizes may pass it: rounding. The verifier's own.
MEMORY_SLACK = 1e-9

Criterion = Literal["load", "forward", "backward", "memory"]


@dataclass(frozen=True, eq=False)
class Row:
    """One set function per kind of device: Σ_{v∈S} unit[κ, v] + Σ_{nets e cut by S} net[κ, e].

    Parameters
    ----------
    criterion
        What it belongs to: the ``load``, the ``forward`` or ``backward`` part of it (GPipe), or
        the ``memory``.
    unit
        Shape (K, U); `inf` where a unit is unsupported.
    net
        Shape (K, E).
    limit
        Shape (K,): what a device can take at most; `inf` for no limit.
    """

    criterion: Criterion
    unit: Floats
    net: Floats
    limit: Floats


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A task as a path through ideals.

    Parameters
    ----------
    graph
        Units and nets after colours, circles and what costs nothing are merged.
    kinds
        Kinds that have devices.
    count
        Shape (K,): devices of each of `kinds`.
    rows
        Rows of the load and of the memory, for each of `kinds`.
    """

    graph: Hypergraph
    kinds: Ints
    count: Ints
    rows: tuple[Row, ...]


def pipeline(task: Task) -> Pipeline:
    """Return the task as a path through ideals."""
    merged = hypergraph(task, pipeline_units(task))
    graph = hypergraph(task, absorb(task, merged))
    kinds = np.flatnonzero(task.costs.count)
    compute, weight = graph.compute[kinds], graph.weight[kinds]
    endless = np.full(len(kinds), np.inf)
    parts: list[tuple[Criterion, Floats, Floats]]
    if task.problem.pipeline == "gpipe":
        parts = [
            ("forward", compute[:, 0], weight[:, 0]),
            ("backward", compute[:, 1], weight[:, 1]),
        ]
    else:
        parts = [("load", compute.sum(axis=1), weight.sum(axis=1))]
    rows = []
    for criterion, unit, net in parts:
        if task.problem.overlap:
            rows.append(Row(criterion, unit, np.zeros_like(net), endless))
            rows.append(Row(criterion, np.where(np.isinf(unit), unit, 0.0), net, endless))
        else:
            rows.append(Row(criterion, unit, net, endless))
    capacity = task.costs.capacity_bytes[kinds]
    memory = np.tile(graph.memory_bytes, (len(kinds), 1))
    room = capacity * (1 + MEMORY_SLACK)
    rows.append(Row("memory", memory, np.zeros_like(weight[:, 0]), room))
    return Pipeline(graph, frozen(kinds, np.int64), frozen(task.costs.count[kinds], np.int64),
                    tuple(rows))  # fmt: skip


def topological_orders(graph: Hypergraph) -> list[Ints]:
    """Return some topological orders of the units: breadth first, and depth first both ways."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(graph.size))
    order.add_edges_from(graph.edges.tolist())
    broad = list(nx.topological_sort(order))
    deep = list(nx.dfs_postorder_nodes(order))[::-1]
    back = list(nx.dfs_postorder_nodes(order.reverse(copy=False)))
    return [frozen(found, np.int64) for found in (deep, back, broad)]
