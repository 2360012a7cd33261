"""Latency of one request: the costs of calls, and the reduction of nodes to units.

A *call* of an accelerator is a convex set S of nodes. It waits for its inputs, moves them in,
computes, and moves its outputs out, all in one go:

    load(S) = Σ_{v∈S} p_v + Σ_{u∉S, some (u,v)∈E has v∈S} c_u + Σ_{u∈S, some (u,v)∈E has v∉S} c_u

A node v on a CPU takes q_v once its predecessors have finished; CPUs are an unlimited pool.

*Units.* With one call per accelerator the nodes of a colour are in one call or all on CPUs. So a
colour is contracted into one unit if that loses nothing: each of its entries (nodes with a
predecessor outside) must reach each of its exits (nodes with a successor outside). Then its CPU
nodes can be executed without interruption: whatever needs an exit comes after every entry, and
whatever an entry needs comes before every exit. Units are numbered in topological order, one branch
after the other, however the nodes are numbered.

*Units set aside* take no time on CPUs, where it is best to execute them as soon as they are ready:
sources whose output costs no transfer, and sinks. A sink can be better in the call of a predecessor
whose output nothing else needs: that output then does not leave the call. Such sources are numbered
first, such sinks last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...instances import Latency
from ...instances.common.arrays import Bools, Floats, Ints, frozen, grouped, increasing
from ..digraph import demand_order
from ..task import Task

#: Targets handled in one pass over the graph, as bits of one integer.
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class LatencyGraph:
    """Units of a task, in topological order: U units, n nodes, K kinds of accelerators."""

    unit_of: Ints  # (n,)
    members: tuple[tuple[int, ...], ...]  # nodes of each unit, in topological order
    group: Ints  # (U,): colour of which the unit is a part, else −1
    aside: Bools  # (U,): whether it is set aside
    successors: tuple[tuple[int, ...], ...]  # successors, predecessors: units, increasing
    predecessors: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]  # numbers of the kinds of accelerators that have devices
    count: Ints  # count, capacity_bytes: (K,): number, and memory of each
    capacity_bytes: Floats
    compute: Floats  # (K, n): p; `inf` where unsupported
    transfer: Floats  # (K, n): c
    memory_bytes: Floats  # (n,)
    cpu: Floats  # (n,): q, on the fastest pool; `inf` if unsupported
    pool: Ints  # (n,): device that stands for the CPUs of a node; −1 for none

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.members)

    def by_unit(self, values: Floats) -> Floats:
        """Return the sums over the nodes of each unit, shape (U,), of values by node."""
        return np.bincount(self.unit_of, values, self.size).astype(np.float64)  # int of none

    @cached_property
    def unit_compute(self) -> Floats:
        """Shape (K, U): p of whole units."""
        sums = [self.by_unit(own) for own in self.compute]
        return np.array(sums).reshape(len(self.kinds), self.size)

    @cached_property
    def unit_memory(self) -> Floats:
        """Shape (U,): memory of whole units."""
        return self.by_unit(self.memory_bytes)

    @cached_property
    def reach(self) -> Bools:
        """Shape (U, U): whether a path, perhaps empty, leads from the first unit to the second."""
        reach = np.eye(self.size, dtype=np.bool_)
        for u in reversed(range(self.size)):
            for v in self.successors[u]:
                reach[u] |= reach[v]
        return reach


def latency_graph(task: Task[Latency], *, whole_colours: bool) -> LatencyGraph:
    """Return the units of a task; with `whole_colours`, colours contracted if that loses nothing.

    Contraction is right only for one call per accelerator.
    """
    workload, costs = task.workload, task.costs
    unit_of = np.arange(workload.n)
    if whole_colours:
        for members in contractible_colours(task):
            unit_of[list(members)] = min(members)
    else:
        for v, mate in attached(task):
            unit_of[v] = mate
    unit_of = _by_costs(task, np.unique(unit_of, return_inverse=True)[1])
    edges = unit_of[workload.edges]
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    kinds = tuple(k for k in range(len(costs.count)) if costs.count[k] and not costs.host[k])
    cpu, pool = _pools(task)
    size = int(unit_of.max(initial=-1)) + 1
    place = _places(task, unit_of, cpu, costs.transfer[list(kinds)])[:size]
    order = sorted(_depth_first(size, edges), key=place.__getitem__)
    rank = np.argsort(order)
    unit_of, edges = rank[unit_of], rank[edges]
    members_of: list[list[int]] = [[] for _ in order]
    for v in workload.order:
        members_of[unit_of[v]].append(v)
    group = np.full(size, -1)
    for colour, members in enumerate(workload.colour_classes):
        units = {int(unit_of[v]) for v in members}
        if len(units) > 1:
            group[list(units)] = colour
    return LatencyGraph(
        unit_of=frozen(unit_of, np.int64),
        members=tuple(map(tuple, members_of)),
        group=frozen(group, np.int64),
        aside=frozen(place[order] != 0, np.bool_),
        successors=grouped(increasing(edges), size),
        predecessors=grouped(increasing(edges[:, ::-1]), size),
        kinds=kinds,
        count=frozen(costs.count[list(kinds)], np.int64),
        capacity_bytes=frozen(costs.capacity_bytes[list(kinds)], np.float64),
        compute=frozen(costs.compute[list(kinds)], np.float64),
        transfer=frozen(costs.transfer[list(kinds)], np.float64),
        memory_bytes=costs.memory_bytes,
        cpu=cpu,
        pool=pool,
    )


def _by_costs(task: Task[Latency], unit_of: Ints) -> Ints:
    """Return the units renumbered by their times, bytes and transfers, not by their nodes."""
    costs = task.costs
    rows = [np.bincount(unit_of, own) for own in (*costs.compute, costs.memory_bytes)]
    rows += [np.bincount(unit_of, own) for own in costs.transfer]
    return np.argsort(np.lexsort(rows))[unit_of]


def _depth_first(size: int, edges: Ints) -> list[int]:
    """Return a topological order, one branch after the other, from what is needed first."""
    import networkx as nx

    demand = demand_order(size, edges)
    place = np.argsort(demand)

    def first_needed(units: Iterable[int]) -> list[int]:
        return sorted(units, key=place.__getitem__)

    after: nx.DiGraph[int] = nx.DiGraph()
    after.add_nodes_from(demand)
    after.add_edges_from(edges.tolist())
    return list(nx.dfs_postorder_nodes(after, sort_neighbors=first_needed))[::-1]


def _places(task: Task[Latency], unit_of: Ints, cpu: Floats, transfer: Floats) -> Ints:
    """Return by unit −1 for a source that is set aside, 1 for such a sink, else 0."""
    workload = task.workload
    busy, fed, feeds, paid = np.zeros((4, workload.n), np.bool_)
    np.logical_or.at(busy, unit_of, cpu > 0)
    np.logical_or.at(paid, unit_of, (transfer > 0).any(axis=0))
    for members in workload.colour_classes:
        units = np.unique(unit_of[list(members)])
        busy[units] |= len(units) > 1
    edges = unit_of[workload.edges]
    edges = edges[edges[:, 0] != edges[:, 1]]
    feeds[edges[:, 0]] = fed[edges[:, 1]] = True
    return np.where(busy, 0, np.where(~fed & ~paid, -1, np.where(feeds, 0, 1)))


def attached(task: Task[Latency]) -> list[tuple[int, int]]:
    """Return pairs (node, neighbour) that may share a call at no cost, whatever the calls are.

    These are nodes that take no time and have a single edge, from or to a node of their colour: the
    two share a device, and in the other's call the node costs nothing and delays nothing.
    """
    workload, costs = task.workload, task.costs
    times = costs.compute[costs.count > 0]
    free = np.all((times == 0) | np.isinf(times), axis=0)
    found = []
    for v, colour in enumerate(workload.colours.tolist()):
        around = [*workload.predecessors[v], *workload.successors[v]]
        if colour < 0 or not free[v] or len(around) != 1:
            continue
        mate = around[0]
        if workload.colours[mate] == colour and not (free[mate] and _lone(task, mate) and mate > v):
            found.append((v, mate))
    return found


def _lone(task: Task[Latency], node: int) -> bool:
    """Return whether a node has exactly one edge."""
    return len(task.workload.predecessors[node]) + len(task.workload.successors[node]) == 1


def contractible_colours(task: Task[Latency]) -> list[tuple[int, ...]]:
    """Return the colours of two or more nodes whose entries all reach all exits.

    Takes O((n + m) · exits / `BLOCK`) operations on integers of `BLOCK` bits.
    """
    workload = task.workload
    found = []
    for members in workload.colour_classes:
        inside = set(members)
        entries = [v for v in members if not inside.issuperset(workload.predecessors[v])]
        exits = [v for v in members if not inside.issuperset(workload.successors[v])]
        if len(inside) > 1:
            found.append((members, entries, exits))
    targets = sorted({v for _, _, exits in found for v in exits})
    for first in range(0, len(targets), BLOCK):
        bit = {v: 1 << i for i, v in enumerate(targets[first : first + BLOCK])}
        reached = [0] * workload.n  # bits of the targets reached from each node
        for u in reversed(workload.order):
            reached[u] = bit.get(u, 0)
            for v in workload.successors[u]:
                reached[u] |= reached[v]
        left = []
        for members, entries, exits in found:
            wanted = sum(bit.get(v, 0) for v in exits)
            if all(reached[v] & wanted == wanted for v in entries):
                left.append((members, entries, exits))
        found = left
    return [members for members, _, _ in found]


def _pools(task: Task[Latency]) -> tuple[Floats, Ints]:
    """Return the least time of each node on CPUs, and the device that stands for its pool.

    A colour has one pool, so its nodes may take longer than their least times.
    """
    costs, n = task.costs, task.workload.n
    hosts = [k for k in range(len(costs.count)) if costs.count[k] and costs.host[k]]
    if not hosts:
        return frozen(np.full(n, np.inf), np.float64), frozen(np.full(n, -1), np.int64)
    first = np.array([int(np.flatnonzero(costs.kind_of == k)[0]) for k in hosts])
    times = costs.compute[hosts]
    choice = times.argmin(axis=0)
    for members in task.workload.colour_classes:
        one = list(members)
        choice[one] = int(times[:, one].sum(axis=1).argmin())
    return frozen(times.min(axis=0), np.float64), frozen(first[choice], np.int64)
