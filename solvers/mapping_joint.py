"""Partition and mapping together, by the integer program, from the two-phase answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from ..formulations.mapping_joint import JointData, joint_data, joint_milp, read_stages, stage_start
from ..formulations.mapping_milp import mapping_start, read_back
from ..formulations.task import Task
from ..instances import InputError, Mapped, Mapping, Solution
from ..instances.arrays import Floats
from ..instances.units import TIME_UNITS
from . import mapping
from .compiled_model import compile_model
from .highs import run_highs
from .search import Search

#: Part of the time for the two-phase answer.
SHARE = 0.2
#: What HiGHS's tolerances can make a bound too high by, relatively.
SLACK = 5e-7


def joint(task: Task, search: Search[Solution]) -> None:
    """Map in two phases; then cut and map at once. The bound is for all partitions.

    Raises
    ------
    InputError
        If collectives other than rings are counted, or links: the program knows only rings.
    """
    problem = task.problem
    if not isinstance(problem, Mapping):
        raise InputError(f"joint: {problem.name} is another problem")
    if problem.objective != "stage-time":
        raise InputError("joint: it knows stage times alone; leave out the objective busiest-link")
    if problem.mode != "p2p" and problem.replicas > 1 and problem.collective != "ring":
        raise InputError("joint: it knows rings alone; set collective to ring")
    _two_phases(task, search)
    if search.should_stop():
        return
    with search.phase("build"), PauseGC():
        data = joint_data(task.workload)
        model = joint_milp(data, problem)
        compiled = compile_model(model)
    if compiled.linear is None or search.should_stop():
        return

    def offer(x: Floats) -> None:
        def value(var: pyo.Var) -> float:
            return float(var.value) if var.fixed else compiled.value(var, x)

        slots, sends_to = read_back(model, value)
        stage = read_stages(model, value)[data.unit_of]
        search.offer(Mapped(stage, problem.topology.usable[slots], sends_to))

    def raise_bound(milliseconds: float) -> None:
        if math.isfinite(milliseconds):
            bound = milliseconds / 1e3 * (1 - SLACK) / TIME_UNITS[task.workload.time_unit]
            search.raise_bound(min(bound, search.objective), "partition and mapping, HiGHS")

    start = compiled.start(_start(model, data, problem, search))
    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear,
            search,
            start=start,
            on_incumbent=offer,
            on_bound=raise_bound,
            gap=min(search.limits.gap, 1e-7),
            options={"mip_abs_gap": 0.0},
        )
    if outcome.x is not None:
        offer(outcome.x)
    raise_bound(outcome.bound)
    if outcome.limit == "nodes" or outcome.limit == "time":
        search.stop_for(outcome.limit)


def _two_phases(task: Task, search: Search[Solution]) -> None:
    """Offer the answer of partition first, mapping after; its bound is not one for all cuts."""
    left = search.seconds_left
    limits = replace(
        search.limits, seconds=None if math.isinf(left) else SHARE * left, nodes=4, gap=0.0
    )
    inner: Search[Solution] = Search(limits, search.value)
    with search.phase("two phases"):
        mapping.auto(task, inner)
    if inner.best is not None:
        search.offer(inner.best)
        search.note(
            f"partition first, mapping after: {inner.objective:.6g} {task.workload.time_unit}"
        )


def _start(
    model: pyo.ConcreteModel, data: JointData, problem: Mapping, search: Search[Solution]
) -> list[tuple[pyo.Var, float]]:
    best = search.best
    if not isinstance(best, Mapped):
        return []
    first = np.zeros(data.units.size, np.int64)
    first[data.unit_of] = best.stage
    where = np.full(problem.topology.size, -1)
    where[problem.topology.usable] = np.arange(len(problem.topology.usable))
    return stage_start(model, first) + mapping_start(model, where[best.slots], best.sends_to)
