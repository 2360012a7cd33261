"""The compact integer program, solved by HiGHS or by any solver that Pyomo knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ...formulations.linear import Linear
from ...formulations.program import quiet_pyomo
from ...formulations.task import Task
from ...formulations.throughput.compact import compact as state
from ...formulations.throughput.hypergraph import hypergraph
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Floats
from ..core.compiled_model import compile_model, write_model
from ..core.milp_driver import Program, TimeIsUp, solve_program
from ..core.other_solvers import check_solver
from ..core.search import Search
from .greedy import greedy
from .milp_slots import improve_slots
from .packing import packing


def compact(task: Task[Throughput], search: Search[Solution]) -> None:
    """Solve the compact program, from the best solution known or from greedy's.

    ``task.options["solver"]`` names the solver: ``highs`` (default), or one that Pyomo knows.
    """
    solver = task.options.get("solver", "highs")
    check_solver(solver)
    if search.best is None:
        with search.phase("start"):
            greedy(task, search)
            if search.best is None and why_infeasible(task) is None:
                packing(task, hypergraph(task), search)
    solve_program(lambda: _program(task, search), search, solver=solver)


def _program(task: Task[Throughput], search: Search[Solution]) -> Program[Solution]:
    """State the program for the best solution known."""

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
        compiled = compile_model(stated.model)
    start = None
    if isinstance(search.best, Placement):
        values = stated.start(search.best.device)
        start = None if values is None else compiled.start(values)

    def read(x: Floats) -> Solution:
        return Placement(stated.read(lambda var: compiled.value(var, x)))

    def improve(linear: Linear, start: Floats, offer: Callable[[Floats], None]) -> Floats:
        return improve_slots(stated, compiled, linear, search, start, offer)

    return Program(
        compiled=compiled,
        read=read,
        scale=stated.scale,
        origin="compact MILP",
        infeasible="no placement keeps all rules of memory, colours and contiguity",
        start=start,
        improve=improve,
    )


def _reference(task: Task[Throughput]) -> float:
    """Even share of the least times: a scale for the objective where no plan is known."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return float(least[np.isfinite(least)].sum()) / len(task.costs.kind_of)


def export_model(task: Task[Throughput], path: str | Path) -> None:
    """Write the compact program, in the workload's time unit, as `write_model` does.

    Raises
    ------
    InputError
        As `write_model`.
    InfeasibleError
        If some node fits on no device.
    """
    write_model(lambda: state(task).model, path)
