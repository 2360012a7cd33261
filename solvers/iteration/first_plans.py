"""Plans that cost next to nothing, so that a search has one whatever its deadline."""

from __future__ import annotations

import numpy as np

from ...formulations.iteration.line import Line
from ...formulations.iteration.orders import order_of
from ...formulations.task import Task
from ...instances import Cluster, PipelinePlacement, Solution, TrainingJob
from ...instances.common.arrays import Ints
from ..core.search import Search

#: Steps by which the part of its memory that every stage may take is halved.
HALVINGS = 30


def first_plans(task: Task[TrainingJob], statement: Line, search: Search[Solution]) -> None:
    """Offer equal parts of a topological order, on all devices and on one.

    These are parts of the compute; where none fits, parts of the bytes.
    """
    devices = accelerators(task.cluster)
    where = {size: task.problem.devices_of(size) for size in statement.sizes()}
    sizes = [size for size in where if max(where[size]) < len(devices)]

    def offer(size: int, part: Ints | None) -> None:
        if part is not None:
            stage = statement.graph.expand(part)
            search.offer(PipelinePlacement(stage, tuple(devices[p] for p in where[size])))

    for size in sorted({*sizes[:1], *sizes[-1:]}, reverse=True):
        offer(size, _equal_parts(statement, size))
    if search.best is None and sizes:
        offer(sizes[-1], _equal_bytes(statement, sizes[-1]))


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


def _equal_bytes(statement: Line, parts: int) -> Ints | None:
    """Return parts that need a like number of bytes, with what their stages hold in flight."""
    order, n = statement.orders[0], statement.graph.size
    schedule = order_of(statement.problem, parts, statement.trains)
    held = np.zeros(parts)
    for d, vectors in enumerate(schedule.in_flight):
        held[schedule.device == d] = vectors.max(axis=0)
    resident = np.concatenate(([0.0], np.cumsum(statement.resident[order])))
    activation = np.concatenate(([0.0], np.cumsum(statement.activation[order])))

    def ends(most: float) -> list[int] | None:
        found = [0]
        for s in range(parts):
            needed = resident + held[s] * activation
            last = int(np.searchsorted(needed, needed[found[-1]] + most, side="right")) - 1
            found.append(min(last, n - parts + s + 1))
            if found[-1] == found[-2]:
                return None
        return found if found[-1] == n else None

    low, high = 0.0, float(resident[-1] + held.max() * activation[-1])
    best = ends(high)
    for _ in range(HALVINGS):
        if (found := ends((low + high) / 2)) is None:
            low = (low + high) / 2
        else:
            high, best = (low + high) / 2, found
    if best is None:
        return None
    part = np.zeros(n, np.int64)
    part[order] = np.repeat(np.arange(parts), np.diff(best))
    return part
