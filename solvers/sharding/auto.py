"""`auto` for sharding: what frameworks do, then elimination, then what improves a plan."""

from __future__ import annotations

from ...formulations.sharding.costs import sharding_costs
from ...formulations.task import Task
from ...instances import Sharding, Solution
from ..core.search import Search
from .baselines import first_plans
from .elimination import elimination
from .least_memory import is_too_small
from .local_search import improve
from .priced_memory import priced_memory


def auto(task: Task[Sharding], search: Search[Solution]) -> None:
    """Plan by the size of the tables that elimination needs.

    The rules of frameworks give the first plans, so that no plan is behind them. Elimination finds
    the optimum; where its tables are too large, local search improves the plans. Where the optimum
    does not fit into the memory, elimination with a price for parameters gives plans that do, and a
    bound; the integer program settles the rest.
    """
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    search.method = "rules"
    with search.phase("first plans"):
        first_plans(costs, search)
    if search.should_stop():
        return
    search.method = "elimination"
    elimination(task, search)
    if search.should_stop():
        return
    if costs.problem.memory_bytes is not None:
        priced_memory(costs, search)
    if not search.should_stop():
        search.method = "local-search"
        with search.phase("local search"):
            improve(costs, search)
    if not search.should_stop():
        from .milp import milp  # with Pyomo, which takes a second to import

        search.method = "milp"
        milp(task, search)
