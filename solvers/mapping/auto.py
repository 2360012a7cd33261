"""The methods `auto` and `layouts`, for either objective of mappings."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import DeviceMapping, Solution
from ..core.search import Search
from . import strategy
from .links import busiest_link
from .ties import break_ties


def auto(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Map for what the problem minimises; break ties of stage times by their sum."""
    if _of_links(task):
        busiest_link(task, search)
    else:
        strategy.auto(task, search)
        break_ties(task, search)


def layouts(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Take the best construction, with a bound, for what the problem minimises."""
    if _of_links(task):
        busiest_link(task, search, anneal=False)
    else:
        strategy.layouts_only(task, search)


def _of_links(task: Task[DeviceMapping]) -> bool:
    return task.problem.objective == "busiest-link"
