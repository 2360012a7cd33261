"""The first plan: everything in one stage, where the schedule and the memory allow that."""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...instances import Iteration, PipelinePlacement, Solution
from ..core.search import Search


def one_stage(task: Task[Iteration], search: Search[Solution]) -> None:
    """Offer one stage on the first device of each kind, if no plan is known."""
    if search.best is not None or task.problem.chunks_per_device > 1:
        return
    with search.phase("start"):
        stage = np.zeros(task.workload.n, np.int64)
        for kind in np.flatnonzero(task.costs.count).tolist():
            first = int(np.argmax(task.costs.kind_of == kind))
            search.offer(PipelinePlacement(stage, (first,)))
