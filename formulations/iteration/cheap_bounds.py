"""Bounds on an iteration that cost next to nothing: M times the load of the busiest device."""

from __future__ import annotations

from collections.abc import Iterator

from ...instances import Iteration, Throughput
from ..task import Task, pose
from ..throughput.cheap_bounds import throughput_cheap_bounds


def iteration_cheap_bounds(task: Task[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield bounds with their origins, the quickest first.

    A device that does the work of one microbatch in time L is busy for M · L, and no device holds
    less in memory than for one microbatch.
    """
    problem = task.problem
    for bound, origin in throughput_cheap_bounds(max_load_task(task)):
        yield problem.microbatches * bound, origin


def max_load_task(task: Task[Iteration]) -> Task[Throughput]:
    """Return the task whose objective, times M, is below every plan's makespan."""
    problem = task.problem
    return pose(
        task.workload, task.cluster, Throughput(split="noncontiguous", overlap=problem.overlap)
    )
