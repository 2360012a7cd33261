"""What can run beside `auto` for mappings, in processes of their own."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import DeviceMapping, Solution
from ..core.search import Search
from .annealing.targets import anneal, descents, start_strategies
from .links import busiest_link
from .search import MappingSearch


def annealing(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Anneal with other random numbers, at targets below the best mapping of all processes."""
    if task.problem.objective == "busiest-link":
        busiest_link(task, search)
        return
    mapping = MappingSearch(task, search)
    mapping.layouts()
    mapping.bound_segments()  # annealing starts from block counts where there are segments
    if search.best is None or search.should_stop():
        return
    starts = start_strategies(mapping)
    if mapping.rings_only:
        anneal(mapping, starts)
    else:
        descents(mapping, starts)
