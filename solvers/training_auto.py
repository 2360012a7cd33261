"""`auto` for training plans: chooses by the kinds of devices, and says what it chose."""

from __future__ import annotations

from ..formulations.task import Task
from ..instances import Solution
from .equi import first_plan
from .search import Search
from .training_dp import training_dp


def auto(task: Task, search: Search[Solution]) -> None:
    """Choose the DP where devices are alike, else the integer program.

    A first plan, for which nothing is compiled, is the first of data parallelism and equal stages.
    """
    first_plan(task, search)
    kinds = [kind.name for kind in task.cluster.kinds if kind.count and not kind.host]
    if len(kinds) > 1:
        from .training_milp import milp  # with Pyomo, which takes a second to import

        search.method = "milp"
        search.note(f"auto: the integer program, because devices differ ({', '.join(kinds)})")
        milp(task, search)
    else:
        search.method = "dp"
        search.note("auto: the DP over ideals, which is exact for devices that are alike")
        training_dp(task, search)
