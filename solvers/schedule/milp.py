"""The best order of a pipeline's passes, by HiGHS."""

from __future__ import annotations

import math

from ...formulations.schedule.milp import ScheduleInstance, schedule_model
from ...instances.common.arrays import Floats
from ..core.compiled_model import compile_model
from ..core.milp_driver import IntegerProgram, solve_program
from ..core.search import Search

#: The operations of each device, in order.
Orders = tuple[tuple[int, ...], ...]


def schedule_milp(instance: ScheduleInstance, search: Search[Orders]) -> None:
    """Find the order with the least makespan, from the best one that the search already holds.

    Without one, the horizon is that of doing everything one after the other.
    """
    search.raise_bound(max(map(instance.work, range(len(instance.own)))), "work of one device")
    solve_program(lambda: _program(instance, search), search)


def _program(instance: ScheduleInstance, search: Search[Orders]) -> IntegerProgram[Orders]:
    """State the program for the best order known."""
    horizon = search.objective
    if not math.isfinite(horizon):
        horizon = sum(operation.duration for operation in instance.operations)
    stated = schedule_model(instance, horizon)
    compiled = compile_model(stated.model)
    start = None if search.best is None else compiled.start(stated.start(search.best))

    def read(x: Floats) -> Orders:
        return tuple(map(tuple, stated.read(lambda var: compiled.value(var, x))))

    return IntegerProgram(
        compiled=compiled,
        read=read,
        scale=stated.scale,
        origin="schedule MILP",
        infeasible="no order keeps the memory of every device",
        start=start,
    )
