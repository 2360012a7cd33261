"""Bounds that cost next to nothing, by problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..instances import PipelineJob, Problem, is_stream
from .job.iteration_bounds import iteration_cheap_bounds
from .job.stream_bounds import stream_cheap_bounds
from .latency.cheap_bounds import latency_cheap_bounds
from .mapping.bound import mapping_cheap_bounds
from .sharding.bounds import sharding_cheap_bounds
from .task import Task
from .throughput.cheap_bounds import throughput_cheap_bounds


def _job_cheap_bounds(task: Task[PipelineJob]) -> Iterator[tuple[float, str]]:
    """Return the bounds of a training job by whether it ends."""
    found = stream_cheap_bounds if is_stream(task.problem) else iteration_cheap_bounds
    return found(task)


#: Problem → its bounds.
_BOUNDS: dict[str, Callable[[Task[Any]], Iterator[tuple[float, str]]]] = {
    "throughput": throughput_cheap_bounds,
    "latency": latency_cheap_bounds,
    "pipeline": _job_cheap_bounds,
    "mapping": mapping_cheap_bounds,
    "sharding": sharding_cheap_bounds,
}


def cheap_bounds(task: Task[Problem]) -> Iterator[tuple[float, str]]:
    """Return bounds on the objective with their origins, the quickest first."""
    return _BOUNDS[task.problem.name](task)
