"""The method `milp` for pipelines: an integer program, whose proofs are independent of `dp`."""

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

#: Approximate objective in the program's unit of time, chosen for the solver's tolerances.
TIME_SCALE = 1000.0


def milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program of a stream or an iteration, starting from a known plan."""
    (_stream_milp if is_stream(task.problem) else _iteration_milp)(task, search)


def _stream_milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program of a stream, starting from the plan of the DP.

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
    """Solve the integer program of an iteration, starting from simple plans."""
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
    """Return the time of all passes in sequence, as a scale of the objective without a plan."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return task.problem.batch * float(least[np.isfinite(least)].sum())
