"""The hypergraph form of the max-load: units and nets. A reduction with its inverse.

Nodes that must share a device are merged into *units*. Each node u then gives a *net*: its own
unit and those of its successors, with weight c_u. A device that holds the set S pays for exactly
the nets that are not uniform on S: if u ∈ S, a successor outside means that u leaves; if u ∉ S, a
successor inside means that u enters; and each u is paid once per device. So

    load(S) = Σ_{v∈S} p_v + Σ_{nets e: ∅ ≠ e∩S ≠ e} w_e

Nets within one unit cost nothing and are dropped; nets with equal pins are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...instances import Problem, Workload
from ...instances.common.arrays import Bools, Floats, Ints, frozen
from ...instances.model.contiguity import pipeline_edge_array
from ..task import Task


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Units and nets of a task; U units, E nets, K kinds of device, passes forward and backward.

    Parameters
    ----------
    unit_of
        Shape (n,): unit of each node.
    members
        Nodes of each unit, increasing.
    compute
        Shape (K, 2, U): time of a unit's forward and backward nodes; `inf` where a node of the
        unit is unsupported.
    memory_bytes
        Shape (U,).
    pins
        Units of each net, increasing, at least two.
    weight
        Shape (K, 2, E): what a device of the kind pays for a cut net, by the pass of the nodes
        that produced the data.
    edges
        Shape (m, 2): edges that decide contiguity, between units; no loops.
    """

    unit_of: Ints
    members: tuple[tuple[int, ...], ...]
    compute: Floats
    memory_bytes: Floats
    pins: tuple[tuple[int, ...], ...]
    weight: Floats
    edges: Ints

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.members)

    def expand(self, device_of_unit: Sequence[int] | Ints) -> Ints:
        """Return the placement of nodes, given the device of each unit."""
        return frozen(np.asarray(device_of_unit)[self.unit_of], np.int64)

    def restrict(self, placement: Ints) -> Ints:
        """Return the device of each unit, given a placement that respects the units."""
        return frozen(placement[[nodes[0] for nodes in self.members]], np.int64)


def colour_units(task: Task[Problem]) -> Ints:
    """Return the unit of each node if only colours, and what rules join, are merged; shape (n,)."""
    colours = task.workload.colours if task.joined is None else task.joined
    alone = np.arange(task.workload.n) + int(colours.max(initial=-1)) + 1
    labels: Ints = np.where(colours >= 0, colours, alone)
    return _renumber(labels)


def pipeline_units(task: Task[Problem]) -> Ints:
    """Return the unit of each node if colours that wait for each other are merged too.

    Exact for contiguous splits (with contiguous CPUs): units on a cycle of pipeline edges cannot
    be on different devices.
    """
    return merge_cycles(colour_units(task), pipeline_edge_array(task.workload))


def merge_cycles(units: Ints, edges: Iterable[tuple[int, int]] | Ints) -> Ints:
    """Return the units with those merged that lie on a cycle; shape (n,).

    Parameters
    ----------
    edges
        Pairs of nodes.
    """
    import networkx as nx

    pairs = units[np.array(edges if isinstance(edges, np.ndarray) else list(edges), np.int64)]

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(int(units.max()) + 1))
    graph.add_edges_from((a, b) for a, b in pairs.reshape(-1, 2).tolist())
    component = np.empty(graph.number_of_nodes(), dtype=np.int64)
    for c, nodes in enumerate(nx.strongly_connected_components(graph)):
        component[list(nodes)] = c
    return _renumber(component[units])


def hypergraph(
    task: Task[Problem],
    unit_of: Ints | None = None,
    order: Iterable[tuple[int, int]] | Ints | None = None,
) -> Hypergraph:
    """Return the hypergraph form of a task.

    Parameters
    ----------
    unit_of
        Shape (n,): unit of each node, 0 … U−1; default: colours merged.
    order
        Pairs of nodes of which the first must not come later; default: `pipeline_edges`.
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
    order = pipeline_edge_array(workload) if order is None else order
    edges = units[np.array(order if isinstance(order, np.ndarray) else list(order), np.int64)]
    edges = edges.reshape(-1, 2)
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
    """Yield the nodes that are paid for and feed another unit, each with the pins of its net."""
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
