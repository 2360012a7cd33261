"""The slots of the compact program: devices, or positions in a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Ints
from ...instances.model.contiguity import pipeline_edges
from ..task import Task
from .hypergraph import Hypergraph

#: Units up to which the order of devices is stated; with more, the rows cost more than they save.
SYMMETRY_UNITS = 20


@dataclass(frozen=True)
class Slot:
    """Where a unit can be.

    Parameters
    ----------
    kind
        Kind of device.
    device
        The device, where order plays no role; None where the slot is a place in the pipeline.
    position
        Place in the pipeline, from 0; None where order plays no role.
    chosen
        Whether the position is offered to several kinds, of which one takes it.
    """

    kind: int
    device: int | None
    position: int | None = None
    chosen: bool = False


def slots_of(task: Task[Throughput]) -> tuple[Slot, ...]:
    """Return the slots of a task.

    One per device; for contiguous splits, one per position and kind of device, and one per CPU
    core where cores are free. With links between devices one per device.
    """
    costs, problem = task.costs, task.problem
    if problem.split != "contiguous" or task.cluster.links:
        return tuple(Slot(int(k), d) for d, k in enumerate(costs.kind_of))
    free = costs.host if problem.cpu_split == "free" else np.zeros_like(costs.host)
    kinds = [k for k in range(len(costs.count)) if costs.count[k] and not free[k]]
    positions = range(int(costs.count[kinds].sum()))
    placed = [Slot(k, None, s, len(kinds) > 1) for s in positions for k in kinds]
    return (*placed, *(Slot(int(k), d) for d, k in enumerate(costs.kind_of) if free[k]))


def heaviest_first(graph: Hypergraph) -> Ints:
    """Return the rank of each unit, shape (U,), the heaviest (by their least time) first."""
    weight = graph.compute.sum(axis=1).min(axis=0)
    rank = np.empty(graph.size, dtype=np.int64)
    rank[np.argsort(-weight, kind="stable")] = np.arange(graph.size)
    return rank


def slot_of_device(
    task: Task[Throughput], graph: Hypergraph, slots: tuple[Slot, ...], placement: Ints
) -> Mapping[int, int] | None:
    """Return the slot that stands for each device in a placement of the nodes.

    Devices of a kind are renamed as the program wants them: in the order of their first units,
    or, in a pipeline, of their pieces; with links between devices they stay what they are. None if
    the pieces cannot be ordered.
    """
    import networkx as nx

    if task.cluster.links:
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

    Where each node on a CPU is a piece of its own, these units cannot be on CPUs.
    """
    import networkx as nx

    nodes: nx.DiGraph[int] = nx.DiGraph()
    nodes.add_edges_from(pipeline_edges(task.workload))
    tied = [c for c in nx.strongly_connected_components(nodes) if len(c) > 1]
    return frozenset(int(graph.unit_of[v]) for component in tied for v in component)
