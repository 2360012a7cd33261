"""Why a task has no plan at all, where that can be told without a search."""

from __future__ import annotations

import numpy as np

from ..instances.arrays import Bools
from .hypergraph import Hypergraph, hypergraph
from .task import Task

#: Share of a memory by which sums of sizes may pass it: rounding. The verifier's own.
MEMORY_SLACK = 1e-9


def why_infeasible(task: Task, graph: Hypergraph | None = None) -> str | None:
    """Return one line that names what is at fault, or None if nothing simple rules plans out.

    Three things are looked at, each necessary for a plan: every unit is supported by some kind of
    device; it fits into one of the memories of those kinds; and units that only certain kinds can
    take do not need more bytes in all than those kinds have.

    Parameters
    ----------
    graph
        Units that must each be on one device; default: colours merged, which holds for every
        split.
    """
    graph = graph or hypergraph(task)
    present = task.costs.count > 0
    able = np.isfinite(graph.compute).all(axis=1) & present[:, None]  # (K, U)
    room = task.costs.capacity_bytes * (1 + MEMORY_SLACK)
    for unit in range(graph.size):
        if not able[:, unit].any():
            return _unsupported(task, graph, unit)
    for unit in range(graph.size):
        if graph.memory_bytes[unit] > room[able[:, unit]].max():
            return _too_large(task, graph, unit, able[:, unit])
    return _too_much(task, graph, able)


def _unsupported(task: Task, graph: Hypergraph, unit: int) -> str:
    kinds = _kinds(task, task.costs.count > 0)
    what = _describe(task, graph, unit)
    members = graph.members[unit]
    if len(members) > 1:
        for v in members:
            if np.isinf(task.costs.compute[task.costs.count > 0, v]).all():
                what = f"node {task.workload.ids[v]}"
                break
        else:
            return f"{what}: no kind of device in the cluster ({kinds}) supports all of its nodes"
    return f"{what}: no kind of device in the cluster ({kinds}) supports it; add one that does"


def _too_large(task: Task, graph: Hypergraph, unit: int, able: Bools) -> str:
    size, most = graph.memory_bytes[unit], task.costs.capacity_bytes[able].max()
    return (
        f"{_describe(task, graph, unit)} takes {size:.0f} bytes, {size - most:.0f} more than the "
        f"memory of any device that supports it ({_kinds(task, able)}): "
        f"give one of them at least {size:.0f} bytes"
    )


def _too_much(task: Task, graph: Hypergraph, able: Bools) -> str | None:
    """For each set of kinds that supports some unit: compare what must go there with its room."""
    costs = task.costs
    finite = np.where(costs.count > 0, costs.capacity_bytes, 0.0)
    for support in np.unique(able.T, axis=0):
        bound = ~(able & ~support[:, None]).any(axis=0)  # units that no other kind supports
        size = graph.memory_bytes[bound].sum()
        room = (finite * np.maximum(costs.count, 1))[support].sum()
        if size > room * (1 + MEMORY_SLACK):
            number = sum(len(graph.members[unit]) for unit in np.flatnonzero(bound))
            return (
                f"{number} nodes run only on {_kinds(task, support)} and take {size:.0f} bytes, "
                f"{size - room:.0f} more than the {room:.0f} there in all: "
                "give more memory or more devices"
            )
    return None


def _describe(task: Task, graph: Hypergraph, unit: int) -> str:
    """Return how the user knows a unit: its colour, its only node, or the first of its nodes."""
    workload, members = task.workload, graph.members[unit]
    colours = {int(c) for c in workload.colours[list(members)]}
    if len(members) == 1:
        return f"node {workload.ids[members[0]]}"
    if len(colours) == 1 and -1 not in colours:
        return f"colour {workload.colour_labels[colours.pop()]} ({len(members)} nodes)"
    shown = ", ".join(str(workload.ids[v]) for v in members[:4])
    more = ", …" if len(members) > 4 else ""
    return f"the {len(members)} nodes {shown}{more} (tied together by colours and edges)"


def _kinds(task: Task, which: Bools) -> str:
    counts = task.costs.count
    names = [kind.name for kind in task.cluster.kinds]
    return ", ".join(f"{counts[k]} × {names[k]}" for k in np.flatnonzero(which))
