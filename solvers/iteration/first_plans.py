"""Plans that cost next to nothing, so that a search has one whatever its deadline."""

from __future__ import annotations

import numpy as np

from ...formulations.iteration.line import Line
from ...formulations.task import Task
from ...instances import Cluster, Iteration, PipelinePlacement, Solution
from ...instances.common.arrays import Ints
from ..core.search import Search


def first_plans(task: Task[Iteration], statement: Line, search: Search[Solution]) -> None:
    """Offer equal parts of the compute, in a topological order, on all devices and on one."""
    devices = accelerators(task.cluster)
    where = {size: task.problem.devices_of(size) for size in statement.sizes()}
    sizes = [size for size in where if max(where[size]) < len(devices)]
    for size in sorted({*sizes[:1], *sizes[-1:]}, reverse=True):
        stage = statement.graph.expand(_equal_parts(statement, size))
        search.offer(PipelinePlacement(stage, tuple(devices[p] for p in where[size])))


def accelerators(cluster: Cluster) -> list[int]:
    """Return the devices that are no hosts; if there are none, all; in order."""
    every = list(enumerate(cluster.devices))
    able = [d for d, device in every if not cluster.kinds[device.kind].host]
    return able or [d for d, _ in every]


def _equal_parts(statement: Line, parts: int) -> Ints:
    """Return the part of each unit, none empty."""
    order = statement.orders[0]
    work = np.nan_to_num(statement.compute.sum(axis=1).min(axis=0)[order], posinf=0.0)
    ahead, n = np.cumsum(work), len(order)
    ends = np.searchsorted(ahead, ahead[-1] * np.arange(1, parts) / parts)
    ends = np.maximum.accumulate(ends - np.arange(1, parts)) + np.arange(1, parts)
    ends = np.clip(ends, np.arange(1, parts), n - parts + np.arange(1, parts))
    part = np.zeros(n, np.int64)
    part[order] = np.searchsorted(ends, np.arange(n), side="right")
    return part
