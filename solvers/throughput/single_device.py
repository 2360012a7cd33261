"""Everything on one device: the baseline that needs no plan."""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...instances import Placement, Solution, Throughput
from ..core.search import Search


def single_device(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the whole workload on one device of each kind."""
    for kind in np.unique(task.costs.kind_of):
        device = int(np.argmax(task.costs.kind_of == kind))
        order = (device,) if task.problem.relayed else ()
        search.offer(Placement(np.full(task.workload.n, device), order))
