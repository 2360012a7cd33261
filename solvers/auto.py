"""`auto`: chooses the methods for a throughput problem, and says what it chose."""

from __future__ import annotations

from ..formulations.task import Task
from ..instances import Solution
from .dp import ideal_dp
from .greedy import greedy
from .milp import compact
from .search import Search


def auto(task: Task, search: Search[Solution]) -> None:
    """Plan by what fits the problem.

    A first plan comes from greedy. Contiguous splits go to the DP over ideals, which is exact;
    where its lattice is too large, and for all other splits, the compact integer program goes on
    from the DP's plan.
    """
    search.method = "greedy"
    greedy(task, search)
    if search.should_stop():
        return
    search.method = "dp"
    ideal_dp(task, search)
    if search.should_stop():
        search.note("auto: the DP over ideals settled it")
        return
    search.method = "milp"
    search.note("auto: the compact integer program, from the best plan of greedy and DP")
    compact(task, search)
