"""Training plans by integer programming: slow, and a proof of the DP by other means."""

from __future__ import annotations

import math

from pyomo.common.gc_manager import PauseGC

from ....formulations.job.stream import Staging, state_staging
from ....formulations.job.stream_bounds import least_stage_time
from ....formulations.job.stream_milp import stream_model
from ....formulations.task import Task
from ....instances import PipelineJob, Solution, StagePlacement, in_stages
from ....instances.common.arrays import Floats
from ...core.compiled_model import compile_model
from ...core.milp_driver import IntegerProgram, solve_program
from ...core.search import Search
from .dp import stream_dp

#: The objective in the program's unit of time, about.
TIME_SCALE = 1000.0


def stream_milp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Solve the integer program, from the DP's plan.

    ``task.options["start"]`` set to ``none`` leaves the DP out.
    """
    staging = state_staging(task)
    if task.options.get("start") != "none":
        with search.phase("start"):
            stream_dp(task, search)
        if search.should_stop():
            return
    solve_slots(task, staging, search)


def solve_slots(task: Task[PipelineJob], staging: Staging, search: Search[Solution]) -> None:
    """Solve the integer program from the best solution known."""
    solve_program(lambda: _program(task, staging, search), search, solver=task.solver)


def _program(
    task: Task[PipelineJob], staging: Staging, search: Search[Solution]
) -> IntegerProgram[Solution]:
    """State the program for the best solution known."""
    scale = search.objective if math.isfinite(search.objective) else least_stage_time(staging)
    with PauseGC():
        stated = stream_model(staging, scale / TIME_SCALE if 0 < scale < math.inf else 1.0)
        compiled = compile_model(stated.model)
    start = None
    if isinstance(search.best, StagePlacement):
        values = stated.start(search.best)
        start = None if values is None else compiled.start(values)

    def read(x: Floats) -> Solution:
        return in_stages(stated.read(lambda var: compiled.value(var, x)), task.cluster)

    return IntegerProgram(
        compiled=compiled,
        read=read,
        scale=stated.data.scale,
        origin="program over stage slots",
        infeasible="no plan keeps the rules within memory; allow more memory, degrees, replicas, "
        "stages or devices",
        start=start,
    )
