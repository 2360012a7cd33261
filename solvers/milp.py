"""The compact integer program, solved by HiGHS or by any solver that Pyomo knows."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from ..formulations.compact import Compact
from ..formulations.compact import compact as state
from ..formulations.counting import counting_bound
from ..formulations.hypergraph import hypergraph
from ..formulations.pyomo_tools import hushed
from ..formulations.task import Task
from ..instances import InfeasibleError, InputError, Placement, Solution
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .greedy import greedy
from .highs import Outcome, run_highs
from .milp_slots import improve_slots
from .other_solvers import check_solver, run_other
from .search import Search

#: What HiGHS's tolerances can make a bound too high by, relatively.
BOUND_SLACK = 1e-7
ORIGIN = "compact MILP"
FORMATS = (".mps", ".lp")


def compact(task: Task, search: Search[Solution]) -> None:
    """Solve the compact program, from the best solution known or from greedy's.

    ``task.options["solver"]`` names the solver: ``highs`` (default), or one that Pyomo knows.
    """
    solver = task.options.get("solver", "highs")
    check_solver(solver)
    if search.best is None:
        with search.phase("start"):
            greedy(task, search)
    with search.phase("bound"):
        by_count = counting_bound(task, hypergraph(task))
        search.raise_bound(by_count * (1 - BOUND_SLACK), "counting heavy units")
    if search.should_stop():
        return
    try:
        with search.phase("build"):
            stated = _state(task, search)
    except _TimeIsUp:
        return
    except InfeasibleError as error:
        search.prove_infeasible(str(error))
        return
    if solver == "highs":
        _by_highs(stated, search)
    else:
        _by_other(solver, stated, search)


class _TimeIsUp(Exception):
    """Building was given up."""


def _state(task: Task, search: Search[Solution]) -> Compact:
    def watch() -> None:
        if search.should_stop():
            raise _TimeIsUp

    known = math.isfinite(search.objective)
    with PauseGC(), hushed():
        return state(
            task,
            reference=search.objective if known else _reference(task),
            cutoff=search.objective,
            floor=search.bound,
            watch=watch,
        )


def _reference(task: Task) -> float:
    """Even share of the least times: a scale for the objective where no plan is known."""
    least = task.costs.compute[task.costs.count > 0].min(axis=0)
    return float(least[np.isfinite(least)].sum()) / len(task.costs.kind_of)


def _by_highs(stated: Compact, search: Search[Solution]) -> None:
    with search.phase("hand over"):
        compiled = compile_model(stated.model)
        start = None
        had_plan = search.best is not None
        if search.best is not None:
            values = stated.start(search.best.device)
            start = None if values is None else compiled.start(values)
    if compiled.linear is None:
        search.prove_infeasible("no placement keeps all rules: " + compiled.why_infeasible)
        return

    def offer(x: Floats) -> None:
        if not search.done:  # or what comes while HiGHS is stopping would depend on the machine
            found = stated.placement(lambda var: compiled.value(var, x))
            search.offer(Placement(found))

    def raise_bound(bound: float) -> None:
        _raise_bound(stated, search, bound, "HiGHS")

    if start is not None:
        with search.phase("improve"):
            start = improve_slots(stated, compiled, compiled.linear, search, start, offer)
    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear, search, start=start, on_incumbent=offer, on_bound=raise_bound
        )
    if outcome.x is not None:
        offer(outcome.x)
    _conclude(stated, search, outcome, "HiGHS")
    if had_plan and (start is None or outcome.start_used is False):
        search.note("HiGHS did not take the plan known before as its start")


def _by_other(solver: str, stated: Compact, search: Search[Solution]) -> None:
    with search.phase("solve"):
        outcome = run_other(solver, stated.model, search)
    if math.isfinite(outcome.objective):
        search.offer(Placement(stated.placement(lambda var: float(pyo.value(var)))))
    _conclude(stated, search, outcome, solver)


def _conclude(stated: Compact, search: Search[Solution], outcome: Outcome, solver: str) -> None:
    if outcome.status != "infeasible":
        _raise_bound(stated, search, outcome.bound, solver)
    elif search.best is None:
        search.prove_infeasible("no placement keeps all rules of memory, colours and contiguity")
    else:
        search.note(
            f"{solver} claims that there is no plan, though one is known: its bound is not used"
        )
    if outcome.limit == "nodes" or outcome.limit == "time":
        search.stop_for(outcome.limit)


def _raise_bound(stated: Compact, search: Search[Solution], bound: float, solver: str) -> None:
    if math.isfinite(bound):
        safe = bound * stated.scale * (1 - BOUND_SLACK)
        search.raise_bound(safe, f"{ORIGIN} ({solver})")


def export_model(task: Task, path: str | Path) -> None:
    """Write the compact program, in the workload's time unit, as MPS or LP by the file's ending.

    The file appears whole or not at all.

    Raises
    ------
    InputError
        If the ending is another, or the file cannot be written.
    InfeasibleError
        If some node fits on no device.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: unknown ending {path.suffix!r}; use .mps or .lp")
    stated = state(task)
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".stagecut-") as folder:
            whole = Path(folder) / f"model{path.suffix.lower()}"
            stated.model.write(str(whole), io_options={"symbolic_solver_labels": True})
            whole.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
