"""Data of the compact integer program: units, nets and slots.

A *slot* is a device, or a position in a pipeline on a kind of device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...instances import InfeasibleError, Throughput
from ...instances.common.arrays import Floats, Ints
from ...instances.model.contiguity import pipeline_edges
from ..task import Task
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .infeasible import why_infeasible
from .whole_bytes import room_of

#: Units for which the order of devices is stated; with more, the rows cost more than they save.
SYMMETRY_UNITS = 20


@dataclass(frozen=True)
class CompactSlot:
    """A device, or a position in the pipeline on a kind of device."""

    kind: int  # kind of device
    # the device, if order plays no role; None if the slot is a position in the pipeline
    device: int | None
    position: int | None = None  # from 0; None if order plays no role
    chosen: bool = False  # whether the position is offered to several kinds, of which one takes it


@dataclass(frozen=True, eq=False)
class CompactData:
    """Data of the program: U units, E nets, K kinds of device, D slots."""

    task: Task[Throughput]  # the task that is planned
    graph: Hypergraph  # units and nets
    slots: tuple[CompactSlot, ...]  # the second index of x
    scale: float  # time units of the workload per time unit of the program
    limit: float  # largest load of interest, in the program's time unit; `inf` for no limit
    floor: float  # proved bound on the objective, in the program's time unit
    # pairs (v, d) that have an x: slot d supports unit v, has the memory for it alone, and takes no
    # longer than `limit` for it
    allowed: frozenset[tuple[int, int]]
    free_cpus: (
        bool  # whether the pieces have an order, and every node on a CPU is a piece of its own
    )
    named: bool  # whether the slots are devices that cannot be exchanged for others of their kind

    @property
    def linked(self) -> bool:
        """Whether devices are linked, so that flows replace nets (`compact`, (18) to (27))."""
        return bool(self.task.cluster.links)

    @property
    def ordered(self) -> bool:
        """Whether the pieces must run one after the other."""
        return self.task.problem.split == "contiguous"

    @cached_property
    def kind(self) -> list[int]:
        """Kind of device of each slot."""
        return [slot.kind for slot in self.slots]

    @cached_property
    def p(self) -> Floats:
        """Shape (K, 2, U): time of each unit on each kind, forward and backward."""
        return self.graph.compute / self.scale

    @cached_property
    def w(self) -> Floats:
        """Shape (K, 2, E): time of each net's transfer on each kind, forward and backward."""
        return self.graph.weight / self.scale

    @cached_property
    def capacity(self) -> Floats:
        """Shape (K,): bytes that the units on a device may have in all."""
        return room_of(self.task.costs.capacity_bytes)

    @cached_property
    def units_on(self) -> list[list[int]]:
        """Units that may be on each slot."""
        lists: list[list[int]] = [[] for _ in self.slots]
        for v, d in sorted(self.allowed):
            lists[d].append(v)
        return lists

    @cached_property
    def slots_for(self) -> list[list[int]]:
        """Slots that each unit may be on."""
        lists: list[list[int]] = [[] for _ in range(self.graph.size)]
        for v, d in sorted(self.allowed):
            lists[v].append(d)
        return lists

    @cached_property
    def cuts(self) -> list[tuple[int, int]]:
        """Pairs (e, d) of a net and a slot that may cut it and pay for it."""
        return [(e, d) for e, d in self._paid if not self._exceeds(e, d)]

    @cached_property
    def uncut(self) -> list[tuple[int, int]]:
        """Pairs (e, d) of a net and a slot where the transfers alone would exceed the limit."""
        return [(e, d) for e, d in self._paid if self._exceeds(e, d)]

    @cached_property
    def _paid(self) -> list[tuple[int, int]]:
        return [
            (e, d)
            for d, k in enumerate(self.kind)
            for e, pins in enumerate(() if self.linked else self.graph.pins)
            if self.w[k, :, e].any() and any((v, d) in self.allowed for v in pins)
        ]

    def _exceeds(self, e: int, d: int) -> bool:
        return bool(self.w[self.kind[d], :, e].sum() > self.limit)


def compact_data(
    task: Task[Throughput],
    reference: float | None,
    cutoff: float,
    floor: float,
    *,
    named: bool = False,
) -> CompactData:
    """Return the data of the program; parameters and errors are those of `compact.compact`."""
    problem, costs = task.problem, task.costs
    named = named or bool(task.cluster.links)
    slots = slots_of(task, named=named)
    ordered = problem.split == "contiguous"
    free = problem.cpu_split == "free"
    free_cpus = ordered and free and any(costs.host[slot.kind] for slot in slots)
    graph = hypergraph(
        task, pipeline_units(task) if ordered and not free_cpus else colour_units(task)
    )
    because = why_infeasible(task, graph)
    if because is not None:
        raise InfeasibleError(because)
    scale = 1.0 if reference is None or not reference > 0 else reference / 1000.0
    limit = cutoff / scale * (1 + 1e-6)
    never = tied_units(task, graph) if free_cpus else frozenset()
    time = graph.compute.sum(axis=1) / scale
    allowed = frozenset(
        (v, d)
        for v in range(graph.size)
        for d, slot in enumerate(slots)
        if time[slot.kind, v] <= min(limit, 1e300)
        and graph.memory_bytes[v] <= room_of(costs.capacity_bytes[slot.kind])
        and not (costs.host[slot.kind] and v in never)
    )
    lonely = set(range(graph.size)) - {v for v, _ in allowed}
    if lonely:  # perhaps only because of contiguity
        nodes = ", ".join(str(task.workload.ids[u]) for u in graph.members[min(lonely)][:5])
        raise InfeasibleError(
            f"nodes {nodes} must share a device and wait for others between them, which no "
            "kind of device that takes them allows under a contiguous split"
        )
    return CompactData(task, graph, slots, scale, limit, floor / scale, allowed, free_cpus, named)


def slots_of(task: Task[Throughput], *, named: bool) -> tuple[CompactSlot, ...]:
    """Return the slots of a task.

    One per device; for contiguous splits without named devices, one per position and kind of
    device, and one per CPU core if cores are free.
    """
    costs, problem = task.costs, task.problem
    if problem.split != "contiguous" or named:
        return tuple(CompactSlot(int(k), d) for d, k in enumerate(costs.kind_of))
    free = costs.host if problem.cpu_split == "free" else np.zeros_like(costs.host)
    kinds = [k for k in range(len(costs.count)) if costs.count[k] and not free[k]]
    positions = range(int(costs.count[kinds].sum()))
    placed = [CompactSlot(k, None, s, len(kinds) > 1) for s in positions for k in kinds]
    return (*placed, *(CompactSlot(int(k), d) for d, k in enumerate(costs.kind_of) if free[k]))


def heaviest_first(graph: Hypergraph) -> Ints:
    """Return the rank of each unit, shape (U,), by decreasing least time."""
    weight = graph.compute.sum(axis=1).min(axis=0)
    rank = np.empty(graph.size, dtype=np.int64)
    rank[np.argsort(-weight, kind="stable")] = np.arange(graph.size)
    return rank


def slot_of_device(data: CompactData, placement: Ints) -> Mapping[int, int] | None:
    """Return the slot that stands for each device in a placement of the nodes.

    Devices of a kind are renamed as the program requires: in the order of their first units or, in
    a pipeline, of their pieces; named devices keep their names. None if the pieces cannot be
    ordered.
    """
    import networkx as nx

    task, graph, slots = data.task, data.graph, data.slots
    if data.named:
        return {d: d for d in range(len(slots))}
    costs = task.costs
    by_device = {slot.device: i for i, slot in enumerate(slots) if slot.device is not None}
    devices = range(len(costs.kind_of))
    rank, units = heaviest_first(graph), graph.restrict(placement)
    first = [int(rank[units == d].min(initial=graph.size)) for d in devices]
    found: dict[int, int] = {}
    for k in range(len(costs.count)):
        own = [d for d in by_device if costs.kind_of[d] == k]
        renamed = sorted(own, key=lambda d: (first[d], d))
        found.update((d, by_device[new]) for d, new in zip(renamed, own, strict=True))
    placed = [d for d in devices if d not in by_device]
    at = {(slot.position, slot.kind): i for i, slot in enumerate(slots)}
    part = np.where(np.isin(placement, placed), placement, len(devices) + np.arange(len(placement)))
    order: nx.DiGraph[int] = nx.DiGraph()
    if placed:
        order.add_nodes_from(placed)
        order.add_edges_from(
            (int(part[u]), int(part[v]))
            for u, v in pipeline_edges(task.workload)
            if part[u] != part[v]
        )
        try:
            pieces = [d for d in nx.lexicographical_topological_sort(order) if d in placed]
        except nx.NetworkXUnfeasible:
            return None
        found.update((d, at[s, int(costs.kind_of[d])]) for s, d in enumerate(pieces))
    return found


def tied_units(task: Task[Throughput], graph: Hypergraph) -> frozenset[int]:
    """Return the units whose own nodes wait for each other.

    If each node on a CPU is a piece of its own, these units cannot be on CPUs.
    """
    import networkx as nx

    nodes: nx.DiGraph[int] = nx.DiGraph()
    nodes.add_edges_from(pipeline_edges(task.workload))
    tied = [c for c in nx.strongly_connected_components(nodes) if len(c) > 1]
    return frozenset(int(graph.unit_of[v]) for component in tied for v in component)
