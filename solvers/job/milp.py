"""Pipelines by integer programming, of a stream or of an iteration: a proof by other means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from pyomo.common.gc_manager import PauseGC

from ...formulations.job.iteration_milp import iteration_model
from ...formulations.job.line import line
from ...formulations.job.stream import Staging, state_staging
from ...formulations.job.stream_bounds import least_stage_time
from ...formulations.job.stream_milp import stream_model
from ...formulations.task import Task
from ...instances import PipelineJob, Solution, in_stages, is_stream
from ..core.milp_driver import IntegerProgram, integer_program, solve_program
from ..core.search import Search
from .iteration.frameworks import first_plans
from .stream.dp import stream_dp

#: Rough objective in the program's unit of time.
TIME_SCALE = 1000.0


def milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program, from the best plan known."""
    (_stream_milp if is_stream(task.problem) else _iteration_milp)(task, search)


def _stream_milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program, from the DP's plan.

    ``task.options["start"]`` set to ``none`` leaves the DP out.
    """
    staging = state_staging(task)
    if task.options.get("start") != "none":
        with search.phase("start"):
            stream_dp(task, search)
        if search.should_stop():
            return
    solve_program(lambda: _stream_program(task, staging, search), search, solver=task.solver)


def _stream_program(
    task: Task[PipelineJob], staging: Staging, search: Search[Solution]
) -> IntegerProgram[Solution]:
    """State the program for the best solution known."""
    scale = search.objective if math.isfinite(search.objective) else least_stage_time(staging)
    with PauseGC():
        stated = stream_model(staging, scale / TIME_SCALE if 0 < scale < math.inf else 1.0)
    program = integer_program(
        stated,
        search.best,
        origin="program over stage slots",
        infeasible="no plan keeps the rules within memory; allow more memory, degrees, replicas, "
        "stages or devices",
    )
    read = program.read
    assert read is not None
    return replace(program, read=lambda x: in_stages(read(x), task.cluster))


def _iteration_milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program, from the best plan known or from equal parts."""
    first_plans(task, line(task), search)
    solve_program(lambda: _iteration_program(task, search), search, solver=task.solver)


def _iteration_program(
    task: Task[PipelineJob], search: Search[Solution]
) -> IntegerProgram[Solution]:
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
