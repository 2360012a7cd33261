"""Hypergraph form of the max-load: units and nets, and the merges of nodes that make units.

Nodes that must share a device are merged into *units*. Each node u then gives a *net*: its own
unit and those of its successors, with weight c_u. A device that holds the set S pays for exactly
the nets that are not uniform on S: if u ∈ S, a successor outside means that u leaves; if u ∉ S, a
successor inside means that u enters; and each u is paid once per device. So

    load(S) = Σ_{v∈S} p_v + Σ_{nets e: ∅ ≠ e∩S ≠ e} w_e

Nets within one unit cost nothing and are dropped; nets with equal pins are added up.

*Zero-cost merges* (`absorb`): a unit that takes no time joins its only neighbour. This is exact:
let unit a take no time on any kind of device, let b be the only unit that pipeline edges connect
a to, and let every net that contains a contain b. Given any plan, move a to b's device:

- Order: every pipeline edge of a is now inside one device, so no cycle arises.
- Loads: no time moves. A net e ∋ a is paid by the devices on which it is not uniform. On b's
  device e was cut before if it is cut now, for a pin is outside only if one was. On a's old device
  e no longer counts if a was its only pin there, and otherwise was cut before, for b was outside.
  Nothing else changes. So no load grows, in neither pass, with transfers added or overlapped.
- Memory: a's bytes move to b's device. That is harmless if a has none, or if no memory can bind.

So some optimal plan has a and b together, and one unit may stand for both. The original (Tarnawski
et al., NeurIPS 2020) merges regardless of memory, which can lose the optimum.

*PipeDream's layers* (`layer_units`): each biconnected component is one unit, which leaves a path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...instances import NodeId, Problem, Throughput, Workload
from ...instances.common.arrays import Bools, Floats, Ints, frozen, grouped, increasing
from ...instances.model.contiguity import pipeline_edge_array
from ..task import Task

if TYPE_CHECKING:
    import networkx as nx


class Incidence(NamedTuple):
    """Units of each net, and nets of each unit, as compressed rows, which kernels read."""

    net_ptr: Ints
    net_pins: Ints
    unit_ptr: Ints
    unit_nets: Ints


def incidence(pins: Sequence[Sequence[int]], order: Ints) -> Incidence:
    """Return the incidence of nets and units; units are named by their position in `order`."""
    rank = np.argsort(order)
    pin = rank[np.array([v for net in pins for v in net], dtype=np.int64)]
    net = np.repeat(np.arange(len(pins)), [len(net) for net in pins])
    by_unit = np.argsort(pin, kind="stable")
    return Incidence(
        np.searchsorted(net, np.arange(len(pins) + 1)),
        pin,
        np.searchsorted(pin[by_unit], np.arange(len(order) + 1)),
        net[by_unit],
    )


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Units and nets of a task: U units, E nets, K kinds of device; passes forward and backward."""

    unit_of: Ints  # (n,): unit of each node
    members: tuple[tuple[int, ...], ...]  # nodes of each unit, increasing
    # (K, 2, U): time of a unit's forward and backward nodes; `inf` where a node of the unit is
    # unsupported
    compute: Floats
    memory_bytes: Floats  # (U,)
    pins: tuple[tuple[int, ...], ...]  # units of each net, increasing, at least two
    # (K, 2, E): what a device of the kind pays for a cut net, by the pass of the nodes that
    # produced the data
    weight: Floats
    edges: Ints  # (m, 2): pipeline edges between different units, which decide contiguity

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.members)

    @cached_property
    def incidence(self) -> Incidence:
        """The nets and units as arrays."""
        return incidence(self.pins, np.arange(self.size))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Units that the edges of each unit lead to, increasing."""
        return grouped(increasing(self.edges), self.size)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Units whose edges lead to each unit, increasing."""
        return grouped(increasing(self.edges[:, ::-1]), self.size)

    def digraph(self) -> nx.DiGraph[int]:
        """Return the units and their edges as a graph of networkx."""
        return digraph(self.size, self.edges)

    def expand(self, device_of_unit: Sequence[int] | Ints) -> Ints:
        """Return the placement of nodes, given the device of each unit."""
        return frozen(np.asarray(device_of_unit)[self.unit_of], np.int64)

    def restrict(self, placement: Ints) -> Ints:
        """Return the device of each unit, given a placement that respects the units."""
        return frozen(placement[[nodes[0] for nodes in self.members]], np.int64)


def digraph(size: int, edges: Ints) -> nx.DiGraph[int]:
    """Return units and their edges, of shape (m, 2), as a graph of networkx."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(edges.tolist())
    return graph


def colour_units(task: Task[Problem]) -> Ints:
    """Return the unit of each node, shape (n,), if only colours and joined nodes are merged."""
    colours = task.workload.colours if task.joined is None else task.joined
    alone = np.arange(task.workload.n) + int(colours.max(initial=-1)) + 1
    labels: Ints = np.where(colours >= 0, colours, alone)
    return _renumber(labels)


def pipeline_units(task: Task[Problem]) -> Ints:
    """Return the unit of each node if colours that wait for each other are merged as well.

    Exact for contiguous splits (with contiguous CPUs): units on a cycle of pipeline edges must
    share a device.
    """
    return merge_cycles(colour_units(task), pipeline_edge_array(task.workload))


def merge_cycles(units: Ints, edges: Ints) -> Ints:
    """Return the units, shape (n,), after merging those on a cycle of edges, (m, 2), of nodes."""
    import networkx as nx

    graph = digraph(int(units.max()) + 1, units[edges])
    component = np.empty(graph.number_of_nodes(), dtype=np.int64)
    for c, nodes in enumerate(nx.strongly_connected_components(graph)):
        component[list(nodes)] = c
    return _renumber(component[units])


def hypergraph(
    task: Task[Problem],
    unit_of: Ints | None = None,
    order: Ints | None = None,
) -> Hypergraph:
    """Return the hypergraph form of a task over units, by default its colours.

    `order` has pairs of nodes, (m, 2), of which the first must not come later, by default the
    `pipeline_edges`.
    """
    units = colour_units(task) if unit_of is None else unit_of
    workload, costs = task.workload, task.costs
    size = int(units.max()) + 1
    members: list[list[int]] = [[] for _ in range(size)]
    for v, unit in enumerate(units.tolist()):
        members[unit].append(v)

    kinds = len(costs.count)
    side = workload.backward.astype(np.int64)
    compute = np.zeros((kinds, 2, size))
    for k in range(kinds):
        np.add.at(compute[k], (side, units), costs.compute[k])
        blocked = np.isinf(compute[k]).any(axis=0)
        compute[k][:, blocked] = np.inf
    memory = np.bincount(units, weights=costs.memory_bytes, minlength=size)

    nets: dict[tuple[int, ...], list[int]] = {}
    for u, pins in _pins(workload, np.logical_or.reduce(costs.transfer != 0, axis=0), units):
        nets.setdefault(pins, []).append(u)
    listed = sorted(nets)
    weights = np.zeros((kinds, 2, len(listed)))
    sources = [(e, u) for e, pins in enumerate(listed) for u in nets[pins]]
    which, source = np.array(sources, dtype=np.int64).reshape(-1, 2).T
    for k in range(kinds):
        np.add.at(weights[k], (side[source], which), costs.transfer[k, source])
    edges = units[pipeline_edge_array(workload) if order is None else order]
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return Hypergraph(
        unit_of=units,
        members=tuple(map(tuple, members)),
        compute=frozen(compute, np.float64),
        memory_bytes=frozen(memory, np.float64),
        pins=tuple(listed),
        weight=frozen(weights, np.float64),
        edges=frozen(edges, np.int64),
    )


def _pins(workload: Workload, paid: Bools, units: Ints) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the nodes with a transfer cost that feed another unit, each with its net's pins."""
    edges = workload.edges[paid[workload.edges[:, 0]]]
    edges = edges[np.isin(edges[:, 0], edges[units[edges[:, 0]] != units[edges[:, 1]], 0])]
    sources = np.unique(edges[:, 0])
    pairs = np.concatenate([np.stack([sources, sources], axis=1), edges])
    pairs[:, 1] = units[pairs[:, 1]]
    pairs = np.unique(pairs, axis=0)
    pins = pairs[:, 1].tolist()
    starts = [*np.searchsorted(pairs[:, 0], sources).tolist(), len(pins)]
    for u, (a, b) in zip(sources.tolist(), pairwise(starts), strict=True):
        yield u, tuple(pins[a:b])


def _renumber(labels: Ints) -> Ints:
    """Number the labels 0, 1, … in the order in which they first occur."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return frozen(rank[inverse.ravel()], np.int64)


def absorb(task: Task[Throughput], graph: Hypergraph) -> Ints:
    """Return the unit of each node after all zero-cost merges, shape (n,), renumbered.

    It is `graph.unit_of` itself if there is nothing to merge.

    `Hypergraph.expand`, of the hypergraph over these units, translates placements back.
    """
    costs = task.costs
    used = costs.count > 0
    roomy = bool((costs.capacity_bytes[used] >= graph.memory_bytes.sum()).all())
    free = (graph.compute[used].sum(axis=1) == 0).all(axis=0)
    if not roomy:
        free &= graph.memory_bytes == 0
    if not free.any():
        return graph.unit_of
    joined = _join(graph, free)
    _, unit = np.unique(joined[graph.unit_of], return_inverse=True)
    return frozen(unit.ravel(), np.int64)


def _join(graph: Hypergraph, free: Bools) -> Ints:
    """Return for each unit the unit that stands for it; `free` units may join another."""
    beside = [{*own, *of} for own, of in zip(graph.predecessors, graph.successors, strict=True)]
    pins = [set(net) for net in graph.pins]
    nets: list[set[int]] = [set() for _ in range(graph.size)]
    for e, net in enumerate(pins):
        for a in net:
            nets[a].add(e)
    stands_for = np.arange(graph.size)
    waiting = [a for a in reversed(range(graph.size)) if free[a]]
    while waiting:
        a = waiting.pop()
        if stands_for[a] != a or len(beside[a]) != 1:
            continue
        (b,) = beside[a]
        if all(b in pins[e] for e in nets[a]):
            stands_for[a] = b
            beside[b].discard(a)
            for e in nets[a]:
                pins[e].discard(a)
            if free[b]:
                waiting.append(b)
    for a in range(graph.size):
        while stands_for[a] != stands_for[stands_for[a]]:
            stands_for[a] = stands_for[stands_for[a]]
    return stands_for


def layer_units(task: Task[Throughput], skipped: Collection[NodeId] = ()) -> Ints:
    """Return the unit of each node, shape (n,), if biconnected components are merged.

    For each biconnected component of the pipeline edges, taken as undirected, the sources of its
    edges are merged. Ignored are edges out of the units of the nodes `skipped` or, without any, out
    of units that only prepare inputs (neither they nor any of their ancestors take time on any kind
    of device): they would connect almost everything.
    Tarnawski et al., NeurIPS 2020, section 5 (baseline); Narayanan et al., "PipeDream", SOSP 2019.
    """
    import networkx as nx

    units = pipeline_units(task)
    graph = hypergraph(task, units)
    order = graph.digraph()
    left_out = {int(units[task.workload.index[node]]) for node in skipped}
    idle = (graph.compute == 0).all(axis=(0, 1))
    for unit in () if skipped else nx.topological_sort(order):
        if idle[unit] and left_out.issuperset(order.predecessors(unit)):
            left_out.add(unit)
    edges = [(u, v) for u, v in order.edges if u not in left_out]
    source = {frozenset(edge): edge[0] for edge in edges}
    merged: nx.Graph[int] = nx.Graph()
    merged.add_nodes_from(range(graph.size))
    for component in nx.biconnected_component_edges(nx.Graph(edges)):
        tails = sorted({source[frozenset(edge)] for edge in component})
        nx.add_path(merged, tails)
    layer = np.empty(graph.size, dtype=np.int64)
    for i, together in enumerate(nx.connected_components(merged)):
        layer[list(together)] = i
    return merge_cycles(layer[units], pipeline_edge_array(task.workload))
