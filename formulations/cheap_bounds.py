"""Bounds that cost next to nothing, by problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..instances import Problem
from .iteration.cheap_bounds import iteration_cheap_bounds
from .latency.cheap_bounds import latency_cheap_bounds
from .mapping.bound import mapping_cheap_bounds
from .sharding.bounds import sharding_cheap_bounds
from .task import Task
from .throughput.cheap_bounds import throughput_cheap_bounds
from .training.cheap_bounds import training_cheap_bounds

#: Problem → its bounds.
_BOUNDS: dict[str, Callable[[Task[Any]], Iterator[tuple[float, str]]]] = {
    "throughput": throughput_cheap_bounds,
    "iteration": iteration_cheap_bounds,
    "latency": latency_cheap_bounds,
    "training": training_cheap_bounds,
    "mapping": mapping_cheap_bounds,
    "sharding": sharding_cheap_bounds,
}


def cheap_bounds(task: Task[Problem]) -> Iterator[tuple[float, str]]:
    """Return bounds on the objective with their origins, the quickest first."""
    return _BOUNDS[task.problem.name](task)
