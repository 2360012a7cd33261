"""The bound on a sharding that costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ...instances import Sharding
from ..task import Task
from .costs import sharding_costs
from .evidence import MARGIN


def sharding_cheap_bounds(task: Task[Sharding]) -> Iterator[tuple[float, str]]:
    """Yield Σ over operators of the cost of their cheapest choice, conversions left out."""
    choices = sharding_costs(task).choices
    least = sum(float(one.cost.min(initial=float("inf"))) for one in choices)
    yield least * (1 - MARGIN), "cheapest signatures"
