"""Training plans by integer programming: slow, and a proof of the DP by other means."""

from __future__ import annotations

import math

import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from ..formulations.task import Task
from ..formulations.training import Staging
from ..formulations.training_bound import simple_bound
from ..formulations.training_milp import Slots, training_milp
from ..instances import InfeasibleError, Solution, Stages, in_stages
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .highs import run_highs
from .search import Search
from .training_dp import training_dp
from .training_start import staged

#: What the solver's tolerances can make a bound too high by, relatively.
BOUND_SLACK = 1e-7
#: The objective in the program's unit of time, about.
TIME_SCALE = 1000.0


def milp(task: Task, search: Search[Solution]) -> None:
    """Solve the integer program, from the DP's plan.

    ``task.options["start"]`` set to ``none`` leaves the DP out.
    """
    staging = staged(task, search)
    if task.options.get("start") != "none":
        with search.phase("start"):
            training_dp(task, search)
        if search.should_stop():
            return
    solve_slots(task, staging, search)


def solve_slots(task: Task, staging: Staging, search: Search[Solution]) -> None:
    """Solve the integer program from the best solution known."""
    scale = search.objective if math.isfinite(search.objective) else simple_bound(staging)
    try:
        with search.phase("build"), PauseGC():
            stated = training_milp(staging, scale / TIME_SCALE if 0 < scale < math.inf else 1.0)
            compiled = compile_model(stated.model)
    except InfeasibleError as error:
        search.prove_infeasible(str(error))
        return
    if compiled.linear is None:
        search.prove_infeasible(_unkept(compiled.why_infeasible))
        return
    start = None
    if isinstance(search.best, Stages):
        values = stated.start(search.best)
        start = None if values is None else compiled.start(values)

    def offer(x: Floats) -> None:
        def value(var: pyo.Var) -> float:
            return compiled.value(var, x)

        search.offer(in_stages(stated.stages(value), task.cluster))

    def raise_bound(bound: float) -> None:
        _raise_bound(stated, search, bound)

    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear, search, start=start, on_incumbent=offer, on_bound=raise_bound
        )
    if outcome.x is not None:
        offer(outcome.x)
    if outcome.status == "infeasible" and search.best is not None:
        search.note("HiGHS says wrongly that there is no plan; nothing it proved is used")
        return
    if outcome.status == "infeasible":
        search.prove_infeasible(_unkept("the integer program has no solution"))
    elif outcome.limit in ("time", "nodes"):
        search.stop_for(outcome.limit)
    raise_bound(outcome.bound)


def _raise_bound(stated: Slots, search: Search[Solution], bound: float) -> None:
    if math.isfinite(bound):
        proved = bound * stated.menu.scale * (1 - BOUND_SLACK)
        search.raise_bound(min(proved, search.objective), "HiGHS on the program over stage slots")


def _unkept(because: str) -> str:
    return (
        f"no plan keeps the rules within memory ({because}); "
        "allow more memory, degrees, replicas, stages or devices"
    )
