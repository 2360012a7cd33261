"""Training plans by integer programming: for devices that differ, and to prove the DP."""

from __future__ import annotations

import math

from pyomo.common.gc_manager import PauseGC

from ..formulations.task import Task
from ..formulations.training import Staging, state_staging
from ..formulations.training_milp import training_milp
from ..instances import Solution, Stages, in_stages
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .milp_driver import Program, solve_program
from .search import Search
from .training_dp import plan_on_one_kind, training_dp

#: The objective in the program's unit of time, about.
TIME_SCALE = 1000.0


def milp(task: Task, search: Search[Solution]) -> None:
    """Solve the integer program, from the DP's plan; where devices differ, on one kind of them.

    ``task.options["start"]`` set to ``none`` leaves the DP out.
    """
    staging = state_staging(task)
    if task.options.get("start") != "none":
        with search.phase("start"):
            if len(staging.kinds) == 1:
                training_dp(task, search)
            else:
                plan_on_one_kind(task, staging, search)
        if search.should_stop():
            return
    solve_slots(task, staging, search)


def solve_slots(task: Task, staging: Staging, search: Search[Solution]) -> None:
    """Solve the integer program from the best solution known."""
    if staging.problem.objective == "time-per-sample":
        search.raise_bound(_work_share(staging) * (1 - 1e-12), "work over devices")
    solve_program(lambda: _program(task, staging, search), search)


def _program(task: Task, staging: Staging, search: Search[Solution]) -> Program[Solution]:
    """State the program for the best solution known."""
    scale = search.objective if math.isfinite(search.objective) else _work_share(staging)
    with PauseGC():
        stated = training_milp(staging, scale / TIME_SCALE or 1.0)
        compiled = compile_model(stated.model)
    start = None
    if isinstance(search.best, Stages):
        values = stated.start(search.best)
        start = None if values is None else compiled.start(values)

    def read(x: Floats) -> Solution:
        return in_stages(stated.stages(lambda var: compiled.value(var, x)), task.cluster)

    return Program(
        compiled=compiled,
        read=read,
        scale=stated.menu.scale,
        origin="program over stage slots",
        infeasible="no plan keeps the rules within memory; allow more memory, degrees, replicas, "
        "stages or devices",
        start=start,
    )


def _work_share(staging: Staging) -> float:
    """Work over devices: about as long as a stage will take."""
    least = sum(
        min(
            float(staging.time[c] * degree)
            for t, degree in enumerate(staging.degrees.tolist())
            for c in staging.choices(v, t)
        )
        for v in range(staging.size)
    )
    return least / float((staging.count / staging.slowdown).sum())
