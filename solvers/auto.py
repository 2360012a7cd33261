"""`auto`: chooses the methods for a throughput problem, and says what it chose."""

from __future__ import annotations

from ..formulations.counting import counting_bound
from ..formulations.hypergraph import hypergraph
from ..formulations.task import Task
from ..instances import Solution
from .dp import ideal_dp
from .greedy import greedy
from .milp import compact
from .search import Search

#: What rounding in sums can make the counting bound too high by, relatively.
COUNTING_SLACK = 1e-7


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
    bound = counting_bound(task, hypergraph(task))
    search.raise_bound(bound * (1 - COUNTING_SLACK), "counting heavy units")
    search.method = "dp"
    ideal_dp(task, search)
    if search.should_stop():
        search.note("auto: the DP over ideals settled it")
        return
    search.method = "milp"
    search.note("auto: the compact integer program, from the best plan of greedy and DP")
    compact(task, search)
