"""`auto` for sharding: what frameworks do, then elimination, then what improves a plan."""

from __future__ import annotations

from ...formulations.sharding.costs import sharding_costs
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ..core.search import Search
from .baselines import AXES, by_rule
from .elimination import elimination


def auto(task: Task[Sharding], search: Search[Solution]) -> None:
    """Plan by the size of the tables that elimination needs.

    The rules of frameworks give the first plans, so that no plan is behind them. Elimination then
    finds the optimum.
    """
    costs = sharding_costs(task)
    with search.phase("first plans"):
        for name in AXES:
            search.method = name
            search.offer(TensorSharding(costs.signature(by_rule(costs, name))))
    if search.should_stop():
        return
    search.method = "elimination"
    elimination(task, search)
