"""Latency by integer programming in HiGHS."""

from __future__ import annotations

import math

from pyomo.common.gc_manager import PauseGC

from ..formulations.latency import latency_graph
from ..formulations.latency_bound import cut_data, path_bound
from ..formulations.latency_milp import latency_model
from ..formulations.latency_paths import heavy_paths
from ..formulations.task import Task
from ..instances import Calls, Solution
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .highs import run_highs
from .latency_dp import PATH_BOUND, ceiling, explain
from .latency_lns import linear
from .search import Search

#: What HiGHS's tolerances can make a bound too high by, relatively.
BOUND_SLACK = 5e-7


def strong(task: Task, search: Search[Solution]) -> None:
    """Solve the strong form, above the path-interval bound, from the best plan known."""
    with search.phase("bound"):
        graph = latency_graph(task, whole_colours=task.latency.calls == 1)
        data = cut_data(task, graph)
        total = task.latency.calls * int(graph.count.sum())
        for path in heavy_paths(graph, count=1):
            bound = path_bound(task, graph, data, path, total, search.should_stop)
            search.raise_bound(bound.value, PATH_BOUND)
    if math.isinf(search.bound) and search.bound > 0:
        search.prove_infeasible(explain(task))
        return
    _solve(task, search, potentials=True)


def big_m(task: Task, search: Search[Solution]) -> None:
    """Solve the published form: a reference, not a rival."""
    _solve(task, search, potentials=False)


def _solve(task: Task, search: Search[Solution], *, potentials: bool) -> None:
    if search.best is None:
        with search.phase("start"):
            linear(task, search)
    if search.should_stop():
        return
    origin = "MILP with potentials (HiGHS)" if potentials else "big-M MILP (HiGHS)"
    horizon = min(search.objective, ceiling(task, latency_graph(task, whole_colours=False)) * 2 + 1)
    with search.phase("build"), PauseGC():
        stated = latency_model(
            task, horizon * (1 + 1e-6), max(0.0, search.bound), potentials=potentials
        )
        compiled = compile_model(stated.model)
    if compiled.linear is None:
        if search.best is None:
            search.prove_infeasible(explain(task))
        return
    start = None
    if isinstance(search.best, Calls):
        start = compiled.start(stated.start(search.best))

    def offer(x: Floats) -> None:
        search.offer(stated.plan(lambda var: compiled.value(var, x)))

    def raise_bound(bound: float) -> None:
        if math.isfinite(bound):
            safe = bound * stated.scale - BOUND_SLACK * horizon
            search.raise_bound(min(safe, search.objective), origin)

    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear, search, start=start, on_incumbent=offer, on_bound=raise_bound
        )
    if outcome.x is not None:
        offer(outcome.x)
    if outcome.status != "infeasible":
        raise_bound(outcome.bound)
    elif search.best is None:
        search.prove_infeasible(explain(task))
    if start is not None and not outcome.start_used:
        search.note("HiGHS did not take the plan known before as its start")
    if outcome.limit == "nodes" or outcome.limit == "time":
        search.stop_for(outcome.limit)
