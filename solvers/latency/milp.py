"""Latency by integer programming, with HiGHS or any solver of Pyomo."""

from __future__ import annotations

from pyomo.common.gc_manager import PauseGC

from ...formulations.latency.graph import latency_graph
from ...formulations.latency.milp import latency_model
from ...formulations.task import Task
from ...instances import Latency, Solution
from ..core.milp_driver import IntegerProgram, integer_program, solve_program
from ..core.search import Search
from .bound import heavy_paths
from .label_dp import latency_ceiling, raise_path_bound, why_no_plan
from .lns import linear


def strong(task: Task[Latency], search: Search[Solution]) -> None:
    """Solve the strong form, with potentials, after raising the path-interval bound."""
    with search.phase("bound"):
        graph = latency_graph(task, whole_colours=task.problem.calls == 1)
        raise_path_bound(task, search, graph, search.should_stop, heavy_paths(graph, count=1))
    _solve(task, search, potentials=True)


def big_m(task: Task[Latency], search: Search[Solution]) -> None:
    """Solve the published big-M form, the reference for the strong one."""
    _solve(task, search, potentials=False)


def _solve(task: Task[Latency], search: Search[Solution], *, potentials: bool) -> None:
    """Solve one of the two forms, starting from the incumbent."""
    if search.best is None:
        with search.phase("start"):
            linear(task, search)
    solve_program(lambda: _program(task, search, potentials=potentials), search, solver=task.solver)


def _program(
    task: Task[Latency], search: Search[Solution], *, potentials: bool
) -> IntegerProgram[Solution]:
    """State the program for the incumbent."""
    horizon = min(
        search.objective, latency_ceiling(task, latency_graph(task, whole_colours=False)) * 2 + 1
    )
    with PauseGC():
        stated = latency_model(
            task, horizon * (1 + 1e-6), max(0.0, search.bound), potentials=potentials
        )
    return integer_program(
        stated,
        search.best,
        origin="MILP with potentials" if potentials else "big-M MILP",
        infeasible=why_no_plan(task),
    )
