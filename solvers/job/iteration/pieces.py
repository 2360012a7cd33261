"""Plans for an iteration that need not be chains: placements from other problems, and moves.

Candidates are the best chain, and every better placement that the search for the least max-load
meets; if none fits, placements that divide the memory evenly. A bound is M times that search's: no
device does the work of M microbatches in less. Then units change places, one at a time, as long as
that shortens the makespan that the simulator finds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....formulations.job.iteration_bounds import max_load_task
from ....formulations.task import Task, pose
from ....formulations.throughput.hypergraph import colour_units
from ....instances import (
    Cluster,
    DeviceKind,
    PipelineJob,
    PipelinePlacement,
    Placement,
    Solution,
    Throughput,
)
from ....instances.common.arrays import Ints
from ....instances.model.costs import times_column
from ....instances.model.workload import kept_bytes
from ...core.limits import Limits
from ...core.search import Search
from ...throughput.max_load import max_load
from ...throughput.methods import METHODS as THROUGHPUT_METHODS

#: Part of the time left for each search for placements.
SHARE = 0.6

#: Placements with a few units moved that are tried while none fits into memory.
MOVES = 100


def pieces_search(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Find a plan that need not be a chain, and a bound for all plans."""
    with search.phase("max-load"):
        _from_max_load(task, search)
    if search.best is None and not search.should_stop():
        with search.phase("memory"):
            _divide_memory(task, search)
    with search.phase("moves"):
        _move(task, search)


def as_pieces(device: Ints) -> PipelinePlacement:
    """Return a placement as stages, one for each device in use."""
    used, stage = np.unique(device, return_inverse=True)
    return PipelinePlacement(stage.ravel(), tuple(used.tolist()))


def _place(like: Task[Throughput], search: Search[Solution]) -> Search[Solution]:
    """Search for the least max-load, from the best plan on; offer each placement as pieces."""

    def judge(solution: Solution) -> float:
        search.offer(as_pieces(solution.device))
        return max_load(like, solution.device)

    inner = Search(Limits(), judge, within=search.part(SHARE))
    if search.best is not None:
        inner.offer(Placement(search.best.device))
    THROUGHPUT_METHODS["auto"].solve(like, inner)
    return inner


def _from_max_load(task: Task[PipelineJob], search: Search[Solution]) -> None:
    inner = _place(max_load_task(task), search)
    if np.isfinite(inner.bound):
        origin = f"microbatches × max-load: {inner.bound_origin}"
        search.raise_bound(task.problem.batch * inner.bound, origin)


def _divide_memory(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Offer placements that divide the bytes evenly, with ever more microbatches in flight."""
    for in_flight in range(1, min(task.problem.batch, task.cluster.size) + 1):
        inner = _place(_memory_task(task, in_flight), search)
        if inner.best is not None:
            _try_around(task, search, inner.best.device)
        if search.best is not None or search.should_stop():
            return


def _try_around(task: Task[PipelineJob], search: Search[Solution], device: Ints) -> None:
    """Offer placements that differ in a few random units, until one fits into memory."""
    rng = np.random.default_rng(search.limits.seed)
    units = colour_units(task)
    count = int(units.max()) + 1
    for _ in range(MOVES):
        if search.best is not None or search.should_stop():
            return
        moved = rng.integers(count, size=rng.geometric(0.5))
        to = rng.integers(task.cluster.size, size=count)
        search.offer(as_pieces(np.where(np.isin(units, moved), to[units], device)))


def _memory_task(task: Task[PipelineJob], in_flight: int) -> Task[Throughput]:
    """Return the task whose objective is the largest part of its memory that a device needs.

    It holds the activations of `in_flight` microbatches at once, and moving data costs nothing.
    """
    workload = task.workload
    _, resident, activations = kept_bytes(workload)
    needed = resident + in_flight * activations
    times, kinds = {}, []
    for kind in (kind for kind in task.cluster.kinds if kind.count):
        supported = np.isfinite(workload.times[times_column(workload, kind)])
        part = needed / max(kind.memory_bytes, 1.0)
        times[kind.name] = np.where(supported, part, np.inf)
        kinds.append(DeviceKind(kind.name, kind.count, host=kind.host))
    alike = replace(workload, times=times, transfer=np.zeros(workload.n), output_bytes=None)
    return pose(alike, Cluster(tuple(kinds)), Throughput(split=task.problem.split))


def _move(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Move units between devices, in random order, while that shortens the makespan."""
    rng = np.random.default_rng(search.limits.seed)
    units = colour_units(task)
    number = int(units.max()) + 1
    size = task.cluster.size
    left = [(u, d) for u in range(number) for d in range(size)]
    while left and search.best is not None and not search.should_stop():
        unit, d = left.pop(int(rng.integers(len(left))))
        device = search.best.device.copy()
        if device[units == unit][0] == d:
            continue
        device[units == unit] = d
        if search.offer(as_pieces(device)):
            left = [(u, e) for u in range(number) for e in range(size)]
