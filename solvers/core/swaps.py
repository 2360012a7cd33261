"""Swaps of alike devices in a plan, which change the objective if devices have links."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from ...formulations.task import Task
from ...instances import CallPlacement, Placement, Problem, Solution
from .search import Search


def swap_devices(task: Task[Problem], search: Search[Solution]) -> None:
    """Swap the contents of two accelerators of a kind while that improves the incumbent.

    Searches that ignore links number alike devices arbitrarily. A round takes O(D²) evaluations
    for D accelerators. Without links nothing is done.
    """
    if not task.cluster.links:
        return
    costs = task.costs
    pairs = [
        (a, b)
        for a, b in combinations(np.flatnonzero(~costs.host[costs.kind_of]).tolist(), 2)
        if costs.kind_of[a] == costs.kind_of[b]
    ]
    with search.phase("swap devices"):
        better = True
        while better:
            better = False
            for a, b in pairs:
                best = search.best
                if search.should_stop() or not isinstance(best, Placement | CallPlacement):
                    return
                renamed = np.arange(len(costs.kind_of))
                renamed[a], renamed[b] = b, a
                swapped = replace(best, device=renamed[best.device])
                if isinstance(swapped, Placement):
                    swapped = replace(swapped, order=tuple(renamed[list(swapped.order)].tolist()))
                better |= search.offer(swapped)
