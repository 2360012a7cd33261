"""Observation of a task: units, nets and kinds of devices with features, relative to an even load.

Nothing depends on names or on the order of nodes. Times and bytes are divided by a device's share
in an even split, so that one policy serves graphs of all sizes and units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

from ...formulations.job.line import chain_edges
from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph
from ...instances import Problem
from ...instances.common.arrays import Floats, Ints

#: Version of the set of features; policies for other versions are refused.
FEATURE_SET = 2
#: Features of a unit.
UNIT_FEATURES = 13
#: Features of a kind of device.
KIND_FEATURES = 6
#: Largest relative cost in features; larger ones are clipped.
LARGEST = 1e6
#: Largest memory of a device in features, in even shares; larger ones are clipped.
_MOST_ROOM = 8.0
#: Largest absolute value of a feature that is relative to a target or to the memory.
MOST_SHOWN = 4.0


@dataclass(frozen=True, eq=False)
class Observation:
    """Units, nets and devices of a task, relative to an even load; U units, E nets, K kinds."""

    graph: Hypergraph  # the hypergraph form of the task
    # load of a device if all were busy all the time, each with what it is fastest at; in the
    # workload's unit
    even_load: float
    compute: Floats  # (K, U): of a unit on each kind; `LARGEST` where it is unsupported
    supported: Floats  # (K, U)
    cut: Floats  # (K, E): what a device pays for a net that it cuts
    # memory, room: shapes (U,) and (K,): bytes of units, and of a device of each kind
    memory: Floats
    room: Floats
    # host, count, kind_of: of the kinds, shape (K,), and the kind of each device, shape (D,)
    host: Ints
    count: Ints
    kind_of: Ints
    # (K,): speed of each kind over its supported units, relative to the fastest kind for each unit
    speed: Floats
    kinds: Floats  # (K, `KIND_FEATURES`)
    units: Floats  # (U, `UNIT_FEATURES`)
    edges: Ints  # (m, 2): between units, in the direction of the forward pass

    @cached_property
    def least(self) -> Floats:
        """Shape (U,): compute of each unit on the kind that is fastest at it."""
        quickest: Floats = self.compute[self.count > 0].min(axis=0)
        return quickest

    @cached_property
    def most_cut(self) -> Floats:
        """Shape (E,): greatest cost of each net, if cut, over the kinds in use."""
        dearest: Floats = self.cut[self.count > 0].max(axis=0)
        return dearest

    @cached_property
    def nets_of(self) -> tuple[Ints, ...]:
        """The nets of each unit."""
        found: list[list[int]] = [[] for _ in range(self.graph.size)]
        for e, pins in enumerate(self.graph.pins):
            for unit in pins:
                found[unit].append(e)
        return tuple(np.array(nets, np.int64) for nets in found)

    @cached_property
    def blocks(self) -> nx.DiGraph[int]:
        """The strongly connected components of the units, with the edges between them."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(self.graph.size))
        graph.add_edges_from(self.edges.tolist())
        return nx.condensation(graph)


def observation(task: Task[Problem], graph: Hypergraph, edges: Ints | None = None) -> Observation:
    """Return the observation of a task; by default with the edges that order its pipelines."""
    costs = task.costs
    used = costs.count > 0
    with np.errstate(all="ignore"):
        total = graph.compute.sum(axis=1)  # (K, U)
        supported = np.isfinite(total)
        least = np.where(supported, total, np.inf)[used].min(axis=0)
        least = np.where(np.isfinite(least), least, 0.0)
        own = np.where(supported, total, 0.0).sum(axis=1)
        best = np.where(supported, least, 0.0).sum(axis=1)
        speed = np.where(own > 0, best / own, 1.0)
        even = max(float(least.sum() / max((speed * costs.count).sum(), 1e-9)), 0.0)
        even = even if 0 < even < np.inf else 1.0
        compute = _relative(np.where(supported, total, np.inf), even)
        cut = _relative(graph.weight.sum(axis=1), even)
    edges = _edges(task, graph) if edges is None else edges
    partial = Observation(
        graph=graph,
        even_load=even,
        compute=compute,
        supported=supported.astype(np.float64),
        cut=cut,
        memory=graph.memory_bytes,
        room=costs.capacity_bytes,
        host=costs.host.astype(np.int64),
        count=costs.count,
        kind_of=costs.kind_of,
        speed=np.nan_to_num(speed, nan=1.0),
        kinds=np.zeros((len(costs.count), KIND_FEATURES)),
        units=np.zeros((graph.size, UNIT_FEATURES)),
        edges=edges,
    )
    partial.kinds[:] = _kind_features(partial)
    partial.units[:] = _unit_features(partial, task)
    return partial


def _relative(values: Floats, even: float) -> Floats:
    relative: Floats = np.clip(
        np.nan_to_num(values / even, nan=LARGEST, posinf=LARGEST), 0, LARGEST
    )
    return relative


def _edges(task: Task[Problem], graph: Hypergraph) -> Ints:
    """Return the edges between units in the direction of the forward pass, each once."""
    unit = graph.unit_of.tolist()
    pairs = {(unit[u], unit[v]) for u, v in chain_edges(task.workload).tolist()}
    pairs |= {(a, b) for a, b in graph.edges.tolist()}
    between = sorted((a, b) for a, b in pairs if a != b)
    return np.array(between, np.int64).reshape(-1, 2)


def _kind_features(of: Observation) -> Floats:
    devices, moved = of.count.sum(), of.cut.sum(axis=1)
    with np.errstate(all="ignore"):
        room = np.nan_to_num(of.room * devices / of.memory.sum(), nan=_MOST_ROOM)
    return np.stack(
        (
            -np.log(np.clip(of.speed, 1 / LARGEST, 1)),
            np.log1p(np.clip(room, 0, _MOST_ROOM)),
            of.host,
            np.log1p(moved / max(float(of.least.sum()), 1e-9)),
            moved / max(float(of.most_cut.sum()), 1e-9),
            of.supported.mean(axis=1),
        ),
        axis=1,
    )


def _unit_features(of: Observation, task: Task[Problem]) -> Floats:
    size = of.graph.size
    weights = np.zeros(size)
    spread = np.zeros(size)
    for unit, nets in enumerate(of.nets_of):
        weights[unit] = of.most_cut[nets].sum()
        spread[unit] = len(nets)
    incoming = np.bincount(of.edges[:, 1], minlength=size)
    outgoing = np.bincount(of.edges[:, 0], minlength=size)
    ahead, behind = _depths(of)
    backward = np.bincount(of.graph.unit_of, task.workload.backward, size)
    members = np.array([len(nodes) for nodes in of.graph.members])
    share = of.least / max(float(of.least.mean()), 1e-12)
    with np.errstate(all="ignore"):
        slowdown = of.compute.max(axis=0) / np.maximum(of.least, 1e-12)
        held = of.memory / np.max(of.room[of.count > 0], initial=0.0)
    held = np.nan_to_num(held, nan=0.0, posinf=1.0)
    return np.stack(
        (
            np.log1p(of.least),
            np.log1p(share),
            np.log1p(weights),
            np.log1p(weights / np.maximum(of.least, 1e-3)),
            np.log1p(spread),
            np.log1p(incoming),
            np.log1p(outgoing),
            ahead,
            behind,
            backward / members,
            np.log1p(np.clip(np.nan_to_num(slowdown, nan=1.0), 0, LARGEST)) / 4,
            of.supported[of.count > 0].mean(axis=0),
            np.clip(held, 0, MOST_SHOWN),
        ),
        axis=1,
    )


def _depths(of: Observation) -> tuple[Floats, Floats]:
    """Return the longest way to each unit, and from it to an end, as parts of the longest path."""
    blocks = of.blocks
    ahead, behind = np.zeros(len(blocks)), np.zeros(len(blocks))
    sequence = list(nx.topological_sort(blocks))
    for b in sequence:
        ahead[b] = max((ahead[a] + 1 for a in blocks.predecessors(b)), default=0.0)
    for b in reversed(sequence):
        behind[b] = max((behind[a] + 1 for a in blocks.successors(b)), default=0.0)
    longest = max(float((ahead + behind).max(initial=0.0)), 1.0)
    block = np.array([blocks.graph["mapping"][unit] for unit in range(of.graph.size)])
    return ahead[block] / longest, behind[block] / longest
