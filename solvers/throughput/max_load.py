"""The max-load of a placement, for methods of other problems that start from one."""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...instances import Throughput
from ...instances.common.arrays import Ints


def max_load(task: Task[Throughput], device: Ints) -> float:
    """Return the largest load: compute plus transfers, or the larger of the two with overlap.

    Does not check whether the placement keeps the problem's rules.
    """
    compute, transfer = (np.zeros(len(task.costs.kind_of)) for _ in range(2))
    for u, successors in enumerate(task.workload.successors):
        own = int(device[u])
        compute[own] += task.costs.compute[task.costs.kind_of[own], u]
        others = {int(device[v]) for v in successors} - {own}
        for d in (own, *others) if others else ():
            transfer[d] += task.costs.transfer[task.costs.kind_of[d], u]
    load = np.maximum(compute, transfer) if task.problem.overlap else compute + transfer
    return float(load.max())
