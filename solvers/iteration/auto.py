"""`auto` for iterations."""

from __future__ import annotations

from contextlib import suppress

from ...formulations.iteration.line import line
from ...formulations.task import Task
from ...instances import Iteration, Solution
from ..core.search import Search
from ..core.share import Share
from .exact import chain_search
from .frameworks import BY_NAME, Refused, splits
from .pieces import pieces_search

#: Part of the time for the splits that frameworks make by default.
RULES_SHARE = 0.25


def auto(task: Task[Iteration], search: Search[Solution]) -> None:
    """Search over chains of stages, which is exact for contiguous splits; then over other plans."""
    _offer_defaults(task, search)
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


def _offer_defaults(task: Task[Iteration], search: Search[Solution]) -> None:
    """Offer what frameworks do by default, so that no plan is behind them."""
    share, statement = Share(search, RULES_SHARE), line(task)
    for rule in BY_NAME.values():
        with suppress(Refused):
            for placement in splits(rule, task, statement):
                if share.should_stop():
                    return
                search.offer(placement)
