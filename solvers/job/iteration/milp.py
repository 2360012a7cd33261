"""The time of an iteration by integer programming: slow, and a proof by other means."""

from __future__ import annotations

import math

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ....formulations.job.iteration_milp import iteration_model
from ....formulations.job.line import line
from ....formulations.task import Task
from ....instances import PipelineJob, Solution
from ...core.milp_driver import IntegerProgram, integer_program, solve_program
from ...core.search import Search
from .frameworks import first_plans


def iteration_milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program, from the best plan known or from equal parts."""
    first_plans(task, line(task), search)
    solve_program(lambda: _program(task, search), search, solver=task.solver)


def _program(task: Task[PipelineJob], search: Search[Solution]) -> IntegerProgram[Solution]:
    """State the program for the best solution known."""
    known = math.isfinite(search.objective)
    with PauseGC():
        stated = iteration_model(
            task,
            reference=search.objective if known else _one_by_one(task),
            floor=max(0.0, search.bound),
        )
    return integer_program(
        stated,
        search.best,
        origin="MILP over the schedule's actions",
        infeasible="no contiguous split keeps every device within its memory under this schedule; "
        "allow more memory, more devices, or another schedule",
    )


def _one_by_one(task: Task[PipelineJob]) -> float:
    """Time of all passes one after the other: a scale for the objective where no plan is known."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return task.problem.batch * float(least[np.isfinite(least)].sum())
