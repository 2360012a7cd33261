"""Bounds on latency in linear time: the critical path, and the total work.

Let p_v be the least time of node v on any device. The nodes of a path run one after the other, so
the heaviest path is a bound. Without CPUs, all n accelerators share the work: T ≥ Σ_v p_v / n.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import Latency
from ..digraph import heaviest_path
from ..task import Task
from ..throughput.certificate import PROOF_MARGIN


def latency_cheap_bounds(task: Task[Latency]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the latency with their origins; none if some node is unsupported.

    Takes O(n + m) for n nodes and m edges.
    """
    costs, workload = task.costs, task.workload
    there = costs.count > 0
    least = costs.compute[there].min(axis=0, initial=np.inf)
    if np.isinf(least).any() or not workload.n:
        return
    if not (there & costs.host).any():
        share = float(least.sum()) / int(costs.count.sum())
        yield share * (1 - PROOF_MARGIN), "total work over all devices"
    path = heaviest_path(workload.order, workload.successors, least)
    yield float(least[path].sum()) * (1 - PROOF_MARGIN), "critical path"
