"""The compact integer program of throughput, solved by HiGHS or any solver of Pyomo."""

from __future__ import annotations

import math

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ...formulations.program import quiet_pyomo
from ...formulations.task import Task
from ...formulations.throughput.compact import compact as state
from ...formulations.throughput.hypergraph import hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Solution, Throughput
from ..core.milp_driver import IntegerProgram, TimeIsUp, integer_program, solve_program
from ..core.other_solvers import check_solver
from ..core.search import Search
from .baselines import greedy
from .packing import packing


def compact(task: Task[Throughput], search: Search[Solution]) -> None:
    """Solve the compact program, from the incumbent or a greedy plan.

    ``task.solver`` names the solver: ``highs`` (default), or one of `other_solvers`.
    """
    check_solver(task.solver)
    if search.best is None:
        with search.phase("start"):
            greedy(task, search)
            if search.best is None and why_infeasible(task) is None:
                packing(task, hypergraph(task), search)
    solve_program(lambda: _program(task, search), search, solver=task.solver)


def _program(task: Task[Throughput], search: Search[Solution]) -> IntegerProgram[Solution]:
    """State the program for the incumbent."""

    def watch() -> None:
        if search.should_stop():
            raise TimeIsUp

    known = math.isfinite(search.objective)
    with PauseGC(), quiet_pyomo():
        stated = state(
            task,
            reference=search.objective if known else _reference(task),
            cutoff=search.objective,
            floor=search.bound,
            watch=watch,
        )

    return integer_program(
        stated,
        search.best,
        origin="compact MILP",
        infeasible="no placement keeps all rules of memory, colours and contiguity",
    )


def _reference(task: Task[Throughput]) -> float:
    """Even share of the least times: scale of the objective if no plan is known."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return float(least[np.isfinite(least)].sum()) / len(task.costs.kind_of)
