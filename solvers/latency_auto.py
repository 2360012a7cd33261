"""`auto` for latency: first plans, then the label DP, then what improves a plan that is left."""

from __future__ import annotations

from ..formulations.latency import latency_graph
from ..formulations.latency_paths import cut_data, heavy_paths, path_bound
from ..formulations.task import Task
from ..instances import Solution
from .latency_dp import PATH_BOUND
from .latency_lns import linear, local_search
from .latency_milp import strong
from .latency_prove import label_dp
from .search import Search

#: Units beyond which downsets are too many for the label DP to end.
MOST_UNITS = 1500
#: Nodes times calls up to which the integer program is worth its while.
MOST_CHOICES = 3000


def auto(task: Task, search: Search[Solution]) -> None:
    """Plan by the size of the graph.

    Greedy and the label DP on one order give a plan; the label DP proves the best one. On graphs
    of more than 1500 units the path-interval bound stands in for the proof, and local search
    improves the plan; so it does where the DP ends without proof, and there the integer program
    follows if it is small.
    """
    search.method = "linear"
    with search.phase("start"):
        linear(task, search)
    graph = latency_graph(task, whole_colours=task.latency.calls == 1)
    if graph.size <= MOST_UNITS:
        search.method = "dp"
        label_dp(task, search)
        if search.status == "optimal" or search.infeasible_because is not None:
            search.note("auto: the label DP settled it")
            return
    else:
        search.note(f"auto: {graph.size} units are too many for the label DP")
        with search.phase("bound"):
            data = cut_data(task, graph)
            total = task.latency.calls * int(graph.count.sum())
            for path in heavy_paths(graph, count=1):
                bound = path_bound(task, graph, data, path, total, search.should_stop)
                search.raise_bound(bound.value, PATH_BOUND)
    if search.should_stop():
        return
    search.method = "lns"
    with search.phase("local search"):
        local_search(task, search)
    calls = task.latency.calls * int(graph.count.sum())
    if not search.should_stop() and task.workload.n * calls <= MOST_CHOICES:
        search.method = "milp"
        search.note("auto: the integer program, for what the label DP left open")
        strong(task, search)
