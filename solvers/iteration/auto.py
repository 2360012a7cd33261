"""`auto` for iterations."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Iteration, Solution
from ..core.search import Search
from .exact import chain_search
from .one_stage import one_stage


def auto(task: Task[Iteration], search: Search[Solution]) -> None:
    """Search over chains of stages, which is exact for contiguous splits."""
    one_stage(task, search)
    search.method = "dp"
    search.note("auto: chains of stages over ideals")
    chain_search(task, search)
