"""Contiguous splits as paths through the lattice of ideals: statement of the dynamic program.

Units are ordered by the pipeline edges. Executing the pieces of a contiguous split one after the
other gives a chain of *ideals* (sets closed under predecessors) ∅ = I_0 ⊂ I_1 ⊂ … ⊂ V, and each
piece, or *stage*, is the difference of two that follow each other. In a cluster with K kinds of
devices, of which s = (s_1, …, s_K) are used,

    dp[s][I] = min over kinds κ with s_κ ≥ 1 and ideals I' ⊂ I of
               max(dp[s − e_κ][I'], load_κ(I ∖ I')),                     dp[0][∅] = 0

over stages that fit into the device's memory; the least max-load is min over s of dp[s][V]. It is
exact for contiguous splits, because every chain of ideals is a contiguous split and conversely.

A load is the largest of some *rows*: a row is a set function Σ_{v∈S} a_v + Σ_{nets e cut by S} w_e.
If transfers add to compute, a load has one row; if they overlap, one row for each. GPipe has rows
of the forward and of the backward pass, each with a maximum of its own. Memory is a row, too.

Relayed data crosses every boundary between the stage that makes it and the last (for gradients, the
first) that needs it. A net then costs w_e at each boundary I that splits it, so a row of the stage
I ∖ I' is Σ_{v∈I∖I'} a_v + cut(I') + cut(I), with cut(I) the sum of w_e over nets e that I splits.

Two exact reductions keep the lattice small: `absorb` merges units that cost nothing; and if nothing
is relayed, `yielding` units let a larger ideal stand for a smaller one. `absorb` also holds for
relayed data: after a merge, an ideal splits a net only if it did before.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Bools, Floats, Ints, frozen
from ..task import Task
from .hypergraph import Hypergraph, absorb, digraph, hypergraph, pipeline_units
from .whole_bytes import room_of

Criterion = Literal["load", "forward", "backward", "memory"]


@dataclass(frozen=True, eq=False)
class Row:
    """One set function per kind of device: Σ_{v∈S} unit[κ, v] + Σ_{nets e cut by S} net[κ, e]."""

    # the criterion that it belongs to: the ``load``, its ``forward`` or ``backward`` part, or the
    # ``memory``
    criterion: Criterion
    unit: Floats  # (K, U); `inf` where a unit is unsupported
    net: Floats  # (K, E)
    room: Floats  # (K,): capacity of a device; `inf` for no limit


@dataclass(frozen=True, eq=False)
class IdealPipeline:
    """A task as a path through ideals: K kinds, U units, E nets."""

    graph: Hypergraph  # units and nets after merging colours, cycles and free units
    kinds: Ints  # (K,): the cluster's kinds that have devices
    count: Ints  # (K,): number of devices of each kind
    # rows of the load and the memory, and for GPipe's objective of both passes
    rows: tuple[Row, ...]
    yielding: Bools  # (U,): see `yielding`
    orders: tuple[Ints, ...]  # some topological orders of the units
    relayed: bool = False  # whether data is relayed: a net is paid at each boundary


def pipeline(
    task: Task[Throughput], units: Ints | None = None, *, any_order: bool = False
) -> IdealPipeline:
    """Return the task as a path through ideals of units at least as coarse as `pipeline_units`.

    With `any_order`, as for splits that are not contiguous, they need only be as coarse as
    `colour_units`.
    """
    edges = np.zeros((0, 2), np.int64) if any_order else None
    merged = hypergraph(task, pipeline_units(task) if units is None else units, edges)
    absorbed = absorb(task, merged)
    graph = merged if absorbed is merged.unit_of else hypergraph(task, absorbed, edges)
    kinds = np.flatnonzero(task.costs.count)
    compute, weight = graph.compute[kinds], graph.weight[kinds]
    parts: dict[Criterion, tuple[Floats, Floats]] = {
        "load": (compute.sum(axis=1), weight.sum(axis=1))
    }
    if task.problem.pipeline == "gpipe":
        parts["forward"] = compute[:, 0], weight[:, 0]
        parts["backward"] = compute[:, 1], weight[:, 1]
    rows = _rows(parts, task.problem.overlap)
    memory = np.tile(graph.memory_bytes, (len(kinds), 1))
    room = room_of(task.costs.capacity_bytes[kinds])
    return IdealPipeline(
        graph=graph,
        kinds=frozen(kinds, np.int64),
        count=frozen(task.costs.count[kinds], np.int64),
        rows=(*rows, Row("memory", memory, np.zeros(weight[:, 0].shape), room)),
        yielding=(
            frozen(np.zeros(graph.size), np.bool_)
            if task.problem.relayed
            else yielding(graph, rows)
        ),
        orders=topological_orders(graph),
        relayed=task.problem.relayed,
    )


def _rows(parts: Mapping[Criterion, tuple[Floats, Floats]], overlap: bool) -> list[Row]:
    rows = []
    for criterion, (unit, net) in parts.items():
        endless = np.full(len(unit), np.inf)
        if overlap:
            rows.append(Row(criterion, unit, np.zeros_like(net), endless))
            rows.append(Row(criterion, np.where(np.isinf(unit), np.inf, 0.0), net, endless))
        else:
            rows.append(Row(criterion, unit, net, endless))
    return rows


def yielding(graph: Hypergraph, rows: list[Row]) -> Bools:
    """Return, shape (U,), whether a unit may leave any stage that it could begin at no cost.

    Let unit u be ready at the ideal I, and let a stage S beyond I contain it. Without u the stage
    saves a_u in every row, and at most the nets that contain u and lie in S are newly cut. These
    have no pin in I, so none that must come before u. So u yields if in each row and on each kind
    a_u ≥ Σ w_e over nets e ∋ u without a pin that must come before u.

    From any plan for what lies beyond I, removing u then gives a plan for what lies beyond I ∪ {u}
    that is no worse, also in memory. So if I ∪ {u} can be reached with as few devices and no larger
    maximum than I, no plan needs to pass through I; the same holds along chains of such steps.
    """
    before = ancestors(graph.size, graph.edges)
    opens = [
        (u, e)
        for e, net in enumerate(graph.pins)
        for mask in [sum(1 << u for u in net)]
        for u in net
        if not before[u] & mask
    ]
    which, net = np.array(opens, dtype=np.int64).reshape(-1, 2).T
    yields = np.ones(graph.size, np.bool_)
    for row in rows:
        for time, weight in zip(row.unit, row.net, strict=True):
            yields &= time >= np.bincount(which, weights=weight[net], minlength=graph.size)
    return yields


def topological_orders(graph: Hypergraph) -> tuple[Ints, ...]:
    """Return some topological orders of the units: depth first from both ends, breadth first."""
    import networkx as nx

    order = graph.digraph()
    deep = list(nx.dfs_postorder_nodes(order))[::-1]
    back = list(nx.dfs_postorder_nodes(order.reverse(copy=False)))
    broad = list(nx.topological_sort(order))
    return tuple(frozen(found, np.int64) for found in (deep, back, broad))


def ancestors(size: int, edges: Ints) -> list[int]:
    """Return the units from which paths lead to each unit, as the bits of an integer."""
    import networkx as nx

    order = digraph(size, edges)
    before = [0] * size
    for u in nx.topological_sort(order):
        for v in order.successors(u):
            before[v] |= before[u] | 1 << u
    return before
