"""Partition and mapping in one integer program, `formulations.mapping.joint`, from two phases."""

from __future__ import annotations

import math
from dataclasses import replace

from pyomo.common.gc_manager import PauseGC

from ...formulations.mapping.joint import joint_data, joint_milp
from ...formulations.task import Task
from ...instances import DeviceMapping, Solution
from ...instances.common.units import TIME_UNITS
from ..core.milp_driver import IntegerProgram, integer_program, solve_program
from ..core.search import Search
from .auto import stage_times
from .parameters import TWO_PHASE_SHARE


def joint(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Map in two phases, then by one program of both, whose bound holds for all cuts.

    The program knows no collectives but rings, and no links.
    """
    _two_phases(task, search)
    solve_program(
        lambda: _joint_program(task, search),
        search,
        solver=task.solver,
        gap=min(search.limits.least_gap, 1e-7),
    )


def _joint_program(task: Task[DeviceMapping], search: Search[Solution]) -> IntegerProgram[Solution]:
    """Return the program, with the incumbent as its start."""
    problem = task.problem
    unit = TIME_UNITS[task.workload.time_unit]
    known = 0 < search.objective < math.inf
    per_s = 1000.0 / (search.objective * unit) if known else 1000.0
    with PauseGC():
        stated = joint_milp(joint_data(task), problem, per_s)
    return integer_program(
        stated,
        search.best,
        origin="partition and mapping",
        infeasible="no partition into stages keeps the rules",
    )


def _two_phases(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Offer the plan of partition first, mapping after; its bound holds for one cut alone."""
    limits = replace(search.limits, nodes=4, gap=0.0)
    inner = Search(limits, search.judge, within=search.part(TWO_PHASE_SHARE))
    with search.phase("two phases"):
        stage_times(task, inner)
    if inner.best is not None:
        search.offer(inner.best)
        search.note(
            f"partition first, mapping after: {inner.objective:.6g} {task.workload.time_unit}"
        )
