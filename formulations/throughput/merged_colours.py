"""Notes on colours that merge much work into one unit of a contiguous split.

A contiguous split keeps together what a cycle joins once colours are merged. A colour closes one
by itself if a path leaves its nodes and comes back: all that lies on it then shares its device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...instances import Throughput, is_iteration
from ...instances.common.arrays import Floats
from ...instances.common.errors import quote
from ...instances.common.quantities import show_percent
from ...instances.common.search import leads_to
from ...instances.model.contiguity import pipeline_edges
from ..task import Task
from .cheap_bounds import units_of_split
from .hypergraph import colour_units, pipeline_units

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
    """Say which colours close a cycle among some nodes, and whether one is a tied weight."""
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
