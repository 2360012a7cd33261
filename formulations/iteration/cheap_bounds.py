"""Bounds on an iteration that cost next to nothing: M times the load of the busiest device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...instances import Iteration, Split, Throughput
from ...instances.model.kept_bytes import kept_bytes
from ..task import Task, pose
from ..throughput.cheap_bounds import compute_bounds, units_of_split
from ..throughput.hypergraph import hypergraph


def iteration_cheap_bounds(task: Task[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield bounds with their origins, the quickest first.

    A device that does the work of one microbatch in time L is busy for M · L.
    """
    problem = task.problem
    inner = max_load_task(task)
    for bound, origin in compute_bounds(inner, hypergraph(inner, units_of_split(inner))):
        yield problem.microbatches * bound, origin


def max_load_task(task: Task[Iteration]) -> Task[Throughput]:
    """Return the task whose objective, times M, is below every plan's makespan.

    Every plan of the iteration is one of it. Stages of a chain that share a device, and the stage
    of a device, hold the activations of a microbatch all at once. The pieces of other splits, and
    several stages without a backward pass, need not: then only what is there all the time counts
    as memory.
    """
    problem, workload = task.problem, task.workload
    shared = problem.chunks_per_device > 1
    split = Split.NONCONTIGUOUS if shared else problem.split
    if problem.split != Split.CONTIGUOUS or (shared and not workload.backward.any()):
        _, resident, _ = kept_bytes(workload)
        workload = replace(workload, memory_bytes=resident)
    return pose(workload, task.cluster, Throughput(split=split, overlap=problem.overlap))
