"""`auto` for iterations."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Iteration, Solution
from ..core.search import Search
from .exact import chain_search
from .first_plans import first_plans


def auto(task: Task[Iteration], search: Search[Solution]) -> None:
    """Search over chains of stages, which is exact for contiguous splits."""
    first_plans(task, search)
    search.method = "dp"
    search.note("auto: chains of stages over ideals")
    chain_search(task, search)
