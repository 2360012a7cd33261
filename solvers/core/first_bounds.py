"""The bounds that every search begins with."""

from __future__ import annotations

from ...formulations.cheap_bounds import cheap_bounds
from ...formulations.linear_program import SolverError
from ...formulations.task import Task
from ...instances import Problem, Solution
from .search import Search


def raise_first_bounds(task: Task[Problem], search: Search[Solution]) -> None:
    """Raise the bounds that need neither a plan nor a kernel: see `cheap_bounds`."""
    with search.phase("first bounds"):
        try:
            for bound, origin in cheap_bounds(task):
                search.raise_bound(bound, origin)
        except SolverError as error:
            search.note(f"not all first bounds are known: {error}")
