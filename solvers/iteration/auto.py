"""`auto` for iterations."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Solution, TrainingJob
from ..core.search import Search
from .exact import chain_search
from .frameworks import offer_defaults
from .pieces import pieces_search


def auto(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Search over chains of stages, which is exact for contiguous splits; then over other plans."""
    offer_defaults(task, search)
    if task.problem.split == "contiguous":
        search.method = "dp"
        search.note("auto: chains of stages over ideals")
        chain_search(task, search)
        return
    search.method = "pieces"
    search.note("auto: chains of stages, then placements of small max-load, then moves of units")
    chain_search(task, search)
    if not search.should_stop():
        pieces_search(task, search)
