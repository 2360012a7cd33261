"""Reasons why a task has no plan, as far as they show without a search."""

from __future__ import annotations

import numpy as np

from ...instances import Problem
from ...instances.common.arrays import Bools
from ...instances.common.quantities import show_bytes
from ..task import Task
from .hypergraph import Hypergraph, hypergraph
from .whole_bytes import room_of, whole_bytes


def why_infeasible(task: Task[Problem], graph: Hypergraph | None = None) -> str | None:
    """Return one line that names what is at fault, or None if nothing simple rules plans out.

    Three conditions are looked at, each necessary for a plan: every unit is supported by some kind
    of device; it fits into a memory of one of those kinds; and the units that only certain kinds
    support take no more bytes in all than those kinds have. Units that are merged colours, the
    default, say it of every split.
    """
    graph = graph or hypergraph(task)
    costs = task.costs
    able = np.isfinite(graph.compute).all(axis=1) & (costs.count > 0)[:, None]  # (K, U)
    lonely = np.flatnonzero(~able.any(axis=0))
    if len(lonely):
        return _unsupported(task, graph, int(lonely[0]))
    most = np.where(able, costs.capacity_bytes[:, None], 0.0).max(axis=0)
    large = np.flatnonzero(graph.memory_bytes > room_of(most))
    if len(large):
        return _too_large(task, graph, int(large[0]), able[:, large[0]])
    return _too_much(task, graph, able)


def memories(task: Task[Problem]) -> str:
    """Return the bytes to place and the memories there are, in words."""
    costs = task.costs
    there = [
        f"{costs.count[k]} × {kind.name}"
        + (
            ""
            if np.isinf(costs.capacity_bytes[k])
            else f" of {show_bytes(costs.capacity_bytes[k])}"
        )
        for k, kind in enumerate(task.cluster.kinds)
        if costs.count[k]
    ]
    return f"{show_bytes(costs.memory_bytes.sum())} on {', '.join(there)}"


def _unsupported(task: Task[Problem], graph: Hypergraph, unit: int) -> str:
    present = task.costs.count > 0
    kinds = _kinds(task, present)
    for v in graph.members[unit]:
        if np.isinf(task.costs.compute[present, v]).all():
            what = f"node {task.workload.ids[v]}"
            return f"{what}: no device of the cluster ({kinds}) supports it; add one that does"
    what = _describe(task, graph, unit)
    return f"{what}: no device of the cluster ({kinds}) supports all its nodes; add one that does"


def _too_large(task: Task[Problem], graph: Hypergraph, unit: int, able: Bools) -> str:
    size, most = graph.memory_bytes[unit], task.costs.capacity_bytes[able].max()
    return (
        f"{_describe(task, graph, unit)} takes {show_bytes(size)}, {show_bytes(size - most)} more "
        f"than any device that supports it has ({_kinds(task, able)}: {show_bytes(most)}); "
        f"give one at least {size:.0f} bytes"
    )


def _too_much(task: Task[Problem], graph: Hypergraph, able: Bools) -> str | None:
    """For each set of kinds that supports some unit: compare what must go there with its room."""
    costs = task.costs
    for support in np.unique(able.T, axis=0):
        bound = ~(able & ~support[:, None]).any(axis=0)  # units that no other kind supports
        size = graph.memory_bytes[bound].sum()
        room = (costs.capacity_bytes[support] * costs.count[support]).sum()
        if size > room and _passes(task, graph, bound, support):
            number = sum(len(graph.members[unit]) for unit in np.flatnonzero(bound))
            return (
                f"{number} nodes can run only on {_kinds(task, support)} and take "
                f"{show_bytes(size)}, {show_bytes(size - room)} more than the {show_bytes(room)} "
                "there in all; "
                "give more memory or more devices"
            )
    return None


def _passes(task: Task[Problem], graph: Hypergraph, units: Bools, kinds: Bools) -> bool:
    """Whether the sizes of some units are larger than all devices of some kinds, exactly."""
    whole = whole_bytes(task, graph)
    rooms = [(whole.rooms[k], int(task.costs.count[k])) for k in np.flatnonzero(kinds)]
    there = sum(count * room for room, count in rooms if room is not None)
    endless = any(room is None for room, _ in rooms)
    return not endless and sum(whole.units[u] for u in np.flatnonzero(units)) > there


def _describe(task: Task[Problem], graph: Hypergraph, unit: int) -> str:
    """Return how the user knows a unit: its only node, its colour, or the first of its nodes."""
    workload, members = task.workload, graph.members[unit]
    if len(members) == 1:
        return f"node {workload.ids[members[0]]}"
    colours = set(workload.colours[list(members)].tolist())
    if len(colours) == 1 and -1 not in colours:
        return f"colour {workload.colour_labels[colours.pop()]} ({len(members)} nodes)"
    shown = ", ".join(str(workload.ids[v]) for v in members[:4])
    more = ", …" if len(members) > 4 else ""
    return f"nodes {shown}{more} ({len(members)} that must share a device)"


def _kinds(task: Task[Problem], which: Bools) -> str:
    names = [kind.name for kind in task.cluster.kinds]
    return ", ".join(f"{task.costs.count[k]} × {names[k]}" for k in np.flatnonzero(which))
