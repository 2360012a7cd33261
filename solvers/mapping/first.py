"""A first mapping in no time: stages cut evenly, devices in a row; nothing has to be compiled."""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.partition import partition_units
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search
from .partition import orders


def first_mapping(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Offer a mapping if there is none yet, whether the time is up or not."""
    problem = task.problem
    if search.best is not None:
        return
    unit_of, units = partition_units(task.workload)
    s, r = problem.stages, problem.replicas
    if s > units.size:
        return
    order = next(orders(units))
    stage = np.empty(units.size, np.int64)
    stage[order] = np.searchsorted(
        even_ends(units.seconds[order], s), np.arange(units.size), side="right"
    )
    topology = problem.topology
    usable = topology.usable
    used = usable[np.argsort(topology.island[usable], kind="stable")][: s * r]
    straight = np.tile(np.arange(r), (s - 1, 1))
    # messages go R devices far between stages side by side, S devices between their replicas
    layouts = [used.reshape(s, r), used.reshape(r, s).T.copy()]
    for slots in layouts if r < s else layouts[::-1]:
        if (
            search.offer(ReplicaPlacement(stage[unit_of], slots, straight))
            and search.method == "auto"
        ):
            search.method = "layouts"  # `auto` names what found the mapping
        if search.should_stop():
            return


def even_ends(seconds: Floats, stages: int) -> Ints:
    """Return the ends of S runs of about equal sums, each with one unit at least; shape (S,)."""
    total = np.cumsum(seconds)
    count = len(total)
    wanted = total[-1] * np.arange(1, stages + 1) / stages
    ends: Ints = np.minimum(np.searchsorted(total, wanted) + 1, count - np.arange(stages)[::-1])
    for k in range(1, stages):
        ends[k] = max(ends[k], ends[k - 1] + 1)
    ends[-1] = count
    return ends
