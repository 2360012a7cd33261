"""Methods `auto` and `dp` for latency.

`auto` offers first plans, then runs the label DP or, on large graphs, a DP along one topological
order; if no optimum is proved, local search and the integer program improve the plan. `dp` raises
the path-interval bound, then runs the label DP.
"""

from __future__ import annotations

from ...formulations.latency.graph import latency_graph
from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.method import Solver
from ..core.search import Search
from .bound import heavy_paths
from .calls import several_calls
from .greedy import first_plans
from .label_dp import raise_path_bound, solve_one_call
from .lns import linear, local_search

#: Units beyond which there are too many ideals for the label DP to end.
MOST_UNITS = 1500

#: Nodes times calls up to which the integer program is worth its time.
MOST_CHOICES = 3000

#: Units up to which a large graph gets the path-interval bound, which takes the square in bytes.
MOST_PATH_UNITS = 10_000

#: Parts of the time left that the bound of a large graph, and the label DP, may take.
BOUND_SHARE, DP_SHARE = 0.4, 0.8


def auto(task: Task[Latency], search: Search[Solution]) -> None:
    """Run the label DP on graphs of up to 1500 units, otherwise the DP along one order.

    The first plans, for which nothing is compiled, are the CPUs alone and filled accelerators. If
    the path-interval bound does not prove one of them optimal, the DP along one order gives a
    better one, and the label DP proves the best. On graphs of more than 1500 units the path-
    interval bound and the DP along one order are followed by local search and, if the bound was cut
    short, the bound again with all the time left. Local search also follows a label DP without a
    proof in its part of the time, and then the integer program if that is small.
    """
    with search.phase("first plans"):
        search.method = "greedy"
        first_plans(task, search)
    graph = latency_graph(task, whole_colours=task.problem.calls == 1)
    calls = task.problem.calls * int(graph.count.sum())
    small = task.workload.n * calls <= MOST_CHOICES
    large = graph.size > MOST_UNITS
    paths = heavy_paths(graph, count=1) if large and graph.size <= MOST_PATH_UNITS else []
    if large:
        search.note(f"auto: {graph.size} units are too many for the label DP")
        with search.phase("bound"):
            raise_path_bound(task, search, graph, search.part(BOUND_SHARE).should_stop, paths)
        search.method = "linear"
        with search.phase("start"):
            linear(task, search)
    else:
        search.method = "dp"
        label_dp(task, search, DP_SHARE)
        if search.status == "optimal" or search.infeasible_because is not None:
            return
    if not search.should_stop():
        _within(task, search, "lns", "local search", local_search)
    if paths and not search.should_stop():
        with search.phase("bound"):
            raise_path_bound(task, search, graph, search.should_stop, paths)
    if not search.should_stop() and small:
        from .milp import strong  # imports Pyomo, which takes a second

        search.method = "milp"
        search.note("auto: the integer program, for what the label DP left open")
        strong(task, search)
    if not search.should_stop():
        search.note("auto: it ends early, as local search finds nothing better")


def label_dp(task: Task[Latency], search: Search[Solution], part: float = 1.0) -> None:
    """Prove the least latency: exactly with one call per accelerator, else as far as possible.

    With more calls see `several_calls`. The path-interval bound comes first: if it proves the
    incumbent optimal, nothing else runs or is compiled. Next is a plan from `linear`. All ends
    after `part` of the time left.
    """
    if search.best is None:
        with search.phase("first plans"):
            first_plans(task, search)
    should_stop = search.part(part).should_stop

    def start() -> None:
        _within(task, search, "linear", "start", linear)

    if task.problem.calls > 1:
        several_calls(task, search, should_stop, start)
    else:
        with search.phase("solve"):
            solve_one_call(task, search, should_stop, start=start)


def _within(
    task: Task[Latency],
    search: Search[Solution],
    method: str,
    phase: str,
    solve: Solver[Latency],
) -> None:
    """Run a method as a phase of another, under its own name."""
    before, search.method = search.method, method
    with search.phase(phase):
        solve(task, search)
    search.method = before
