"""`auto` for training plans: the DP, which is exact."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import Solution, TrainingJob
from ..core.search import Search
from .dp import training_dp
from .equal_stages import first_plan


def auto(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Choose the DP, whatever the devices.

    A first plan, for which nothing is compiled, is the first of data parallelism and equal stages.
    """
    first_plan(task, search)
    search.method = "dp"
    search.note("auto: the DP over ideals")
    training_dp(task, search)
