"""`auto` for latency: first plans, then the label DP, then what improves a plan that is left."""

from __future__ import annotations

from ...formulations.latency.graph import latency_graph
from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.search import Search
from .greedy import first_plans, greedy, max_load
from .label_dp.dp import raise_path_bound
from .lns import linear, local_search
from .prove import label_dp

#: Units beyond which ideals are too many for the label DP to end.
MOST_UNITS = 1500
#: Nodes times calls up to which the integer program is worth its while.
MOST_CHOICES = 3000
#: Parts of the time left that the split for throughput, and the bound of a large graph may take.
START_SHARE, BOUND_SHARE = 0.2, 0.4


def auto(task: Task[Latency], search: Search[Solution]) -> None:
    """Plan by the size of the graph.

    First plans, for which nothing is compiled, are the CPUs and filled accelerators. Where the
    path-interval bound does not prove the best of them, the best split for throughput and the label
    DP on one order give better ones, and the label DP proves the best. On graphs of more than 1500
    units local search improves the plan instead. So it does where the DP ends without proof, and
    there the integer program follows if it is small.
    """
    with search.phase("first plans"):
        search.method = "greedy"
        first_plans(task, search)
        greedy(task, search)
    graph = latency_graph(task, whole_colours=task.problem.calls == 1)

    def split_for_throughput() -> None:
        method, search.method = search.method, "max-load"
        with search.phase("first plans"):
            max_load(task, search, START_SHARE)
        search.method = method

    large = graph.size > MOST_UNITS
    if large:
        split_for_throughput()
        search.note(f"auto: {graph.size} units are too many for the label DP")
        with search.phase("bound"):
            until = search.seconds + BOUND_SHARE * search.seconds_left
            raise_path_bound(
                task,
                search,
                graph,
                lambda: search.should_stop() or search.seconds > until,
            )
        search.method = "linear"
        with search.phase("start"):
            linear(task, search)
    else:
        search.method = "dp"
        label_dp(task, search, split_for_throughput)
        if search.status == "optimal" or search.infeasible_because is not None:
            search.note("auto: proved before any local search")
            return
    if search.should_stop():
        return
    search.method = "lns"
    with search.phase("local search"):
        local_search(task, search)
    calls = task.problem.calls * int(graph.count.sum())
    if not search.should_stop() and task.workload.n * calls <= MOST_CHOICES:
        from .milp import strong  # with Pyomo, which takes a second to import

        search.method = "milp"
        search.note("auto: the integer program, for what the label DP left open")
        strong(task, search)
