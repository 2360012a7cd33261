"""Reasons, for the user, why a task has no plan or no good one, as far as no search is needed.

A contiguous split keeps together the units on a cycle, once colours are merged. A colour alone
closes a cycle if a path leaves its nodes and comes back: all nodes on the path share its device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...instances import Problem, Throughput, is_iteration
from ...instances.common.arrays import Bools, Floats
from ...instances.common.errors import quote
from ...instances.common.units import show_bytes, show_count, show_percent
from ...instances.model.contiguity import leads_to, pipeline_edges
from ..task import Task
from .cheap_bounds import units_of_split
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .whole_bytes import room_of, whole_bytes


def why_infeasible(task: Task[Problem], graph: Hypergraph | None = None) -> str | None:
    """Return one line that names what is at fault, or None if no simple reason excludes plans.

    Three necessary conditions are checked: every unit is supported by some kind of device; it fits
    into a memory of one of those kinds; and the units that only certain kinds support do not need
    more bytes in total than those kinds have. If units are merged colours, the default, the reason
    holds for every split.
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
    """Return the bytes to place and the memories available, in words."""
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
    """Return a line on kinds whose memory is too small for the units that need them, or None."""
    costs = task.costs
    for support in np.unique(able.T, axis=0):
        bound = ~(able & ~support[:, None]).any(axis=0)  # units that no other kind supports
        size = graph.memory_bytes[bound].sum()
        room = (costs.capacity_bytes[support] * costs.count[support]).sum()
        if size > room and _passes(task, graph, bound, support):
            number = sum(len(graph.members[unit]) for unit in np.flatnonzero(bound))
            return (
                f"{show_count(number, 'node')} can run only on {_kinds(task, support)} and take "
                f"{show_bytes(size)}, {show_bytes(size - room)} more than the {show_bytes(room)} "
                "there in all; "
                "give more memory or more devices"
            )
    return None


def _passes(task: Task[Problem], graph: Hypergraph, units: Bools, kinds: Bools) -> bool:
    """Whether some units need more bytes than all devices of some kinds have, exactly."""
    whole = whole_bytes(task, graph)
    rooms = [(whole.rooms[k], int(task.costs.count[k])) for k in np.flatnonzero(kinds)]
    there = sum(count * room for room, count in rooms if room is not None)
    endless = any(room is None for room, _ in rooms)
    return not endless and sum(whole.units[u] for u in np.flatnonzero(units)) > there


def _describe(task: Task[Problem], graph: Hypergraph, unit: int) -> str:
    """Return the user's name for a unit: its only node, its colour, or its first nodes."""
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


#: Colours and nodes of a colour that a note names.
NAMED = 3


def colour_notes(task: Task[Any]) -> list[str]:
    """Return a line for each part of a contiguous split that colours make too large to divide.

    Too large is what takes more than an even share of the compute. The line names the colours, the
    nodes and the compute that must share a device, and the max-load that no plan is below. O(C (n +
    m)) in the colours, nodes and edges; O(n + m) where no colour closes a cycle.
    """
    problem = task.problem
    if (
        not (isinstance(problem, Throughput) or is_iteration(problem))
        or problem.split != "contiguous"
    ):
        return []
    what, times = "max-load", 1
    if is_iteration(problem):
        what, times = "iteration", problem.batch
    workload, costs = task.workload, task.costs
    before = colour_units(task)
    after = pipeline_units(task) if is_iteration(problem) else units_of_split(task)
    if after.max() == before.max():
        return []
    present = np.flatnonzero(costs.count)
    total = float(costs.compute[present].min(axis=0).sum())
    notes = []
    for unit in np.unique(after).tolist():
        inside = after == unit
        if len(np.unique(before[inside])) < 2:
            continue
        load = _least(costs.compute[present][:, inside])
        if not (np.isfinite(load) and load * task.cluster.size > total):
            continue
        words, tied = _culprits(task, set(np.flatnonzero(inside).tolist()))
        unit_name = "" if workload.time_unit == "unspecified" else f" {workload.time_unit}"
        remedy = "--tied copies or --split noncontiguous" if tied else "--split noncontiguous"
        notes.append(
            f"{words}: in a contiguous split {int(inside.sum())} of {workload.n} nodes with "
            f"{show_percent(load / total)} of the compute share a device, so no {what} "
            f"is below {times * load:.6g}{unit_name}; {remedy} divides them"
        )
    return notes


def _least(compute: Floats) -> float:
    """Return the time of nodes on the best kind for all of them; `compute` of shape (K, nodes)."""
    return float(compute.sum(axis=1).min())


def _culprits(task: Task[Any], inside: set[int]) -> tuple[str, bool]:
    """Return a text on colours that close a cycle among nodes, and whether one is a tied weight."""
    workload = task.workload
    after: dict[int, list[int]] = {v: [] for v in inside}
    for u, v in pipeline_edges(workload):
        if u in inside and v in inside:
            after[u].append(v)
    classes = {
        c: [v for v in members if not workload.backward[v]]
        for c, members in enumerate(workload.colour_classes)
        if set(members) <= inside and len(members) > 1
    }
    several = [c for c, members in classes.items() if len(members) > 1]
    closing = [c for c in several if _comes_back(after, set(classes[c]))]
    named = closing or several or list(classes)
    words = []
    for c in named[:NAMED]:
        nodes = [str(workload.ids[v]) for v in classes[c]]
        more = ", …" if len(nodes) > NAMED else ""
        words.append(f"{quote(workload.colour_labels[c])} ({', '.join(nodes[:NAMED])}{more})")
    listed = " and ".join(words) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
    said = f"colour {listed} closes" if len(named) == 1 else f"colours {listed} close"
    ties = {int(workload.colours[copy.holder]) for tie in workload.ties for copy in tie.copies}
    return f"{said} a cycle", bool(ties & set(named))


def _comes_back(after: dict[int, list[int]], members: set[int]) -> bool:
    """Whether a path leaves these nodes and comes back."""
    return leads_to(after, {v for u in members for v in after[u]} - members, members)
