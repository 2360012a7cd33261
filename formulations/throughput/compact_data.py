"""The data of the compact integer program: units, nets, slots, and which of them may meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...instances import InfeasibleError, Throughput
from ...instances.common.arrays import Floats
from ..task import Task
from .compact_slots import Slot, slots_of, tied_units
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .infeasible import why_infeasible
from .whole_bytes import room_of


@dataclass(frozen=True, eq=False)
class CompactData:
    """What the program is stated over: U units, E nets, K kinds of device, D slots.

    Parameters
    ----------
    task
        What is planned.
    graph
        Units and nets.
    slots
        What x is indexed by, besides units.
    scale
        Time units of the workload per time unit of the program.
    limit
        No load above it is of interest, in the program's time unit; `inf` for no limit.
    floor
        No placement has a lower objective, in the program's time unit.
    allowed
        Pairs (v, d) that have an x: slot d supports unit v, has the memory for it alone, and takes
        no longer than `limit` for it.
    gaps
        Whether the pieces have an order, and every node on a CPU is a piece of its own.
    """

    task: Task[Throughput]
    graph: Hypergraph
    slots: tuple[Slot, ...]
    scale: float
    limit: float
    floor: float
    allowed: frozenset[tuple[int, int]]
    gaps: bool

    @property
    def linked(self) -> bool:
        """Whether devices are linked: then nets give way to flows (`compact_links`)."""
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
        """Pairs (e, d): net e may be cut by slot d, which pays for it."""
        return [(e, d) for e, d in self._paid if not self._exceeds(e, d)]

    @cached_property
    def uncut(self) -> list[tuple[int, int]]:
        """Pairs (e, d): what slot d pays for net e alone exceeds the limit."""
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
    task: Task[Throughput], reference: float | None, cutoff: float, floor: float
) -> CompactData:
    """Return the data of the program; the parameters are those of `compact.compact`.

    Raises
    ------
    InfeasibleError
        If some node fits on no device, or the sizes are too large in all.
    """
    problem, costs = task.problem, task.costs
    slots = slots_of(task)
    ordered = problem.split == "contiguous"
    free = problem.cpu_split == "free"
    gaps = ordered and free and any(costs.host[slot.kind] for slot in slots)
    graph = hypergraph(task, pipeline_units(task) if ordered and not gaps else colour_units(task))
    because = why_infeasible(task, graph)
    if because is not None:
        raise InfeasibleError(because)
    scale = 1.0 if reference is None or not reference > 0 else reference / 1000.0
    limit = cutoff / scale * (1 + 1e-6)
    never = tied_units(task, graph) if gaps else frozenset()
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
    if lonely:  # it may still be that only contiguity is at fault
        nodes = ", ".join(str(task.workload.ids[u]) for u in graph.members[min(lonely)][:5])
        raise InfeasibleError(
            f"nodes {nodes} must share a device and wait for others between them, which no "
            "kind of device that takes them allows under a contiguous split"
        )
    return CompactData(task, graph, slots, scale, limit, floor / scale, allowed, gaps)
