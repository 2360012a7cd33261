"""MILP solvers other than HiGHS, if installed: through Pyomo, and COPT through its own API.

Each reports in its own words how it ended. `run_other` translates these reports into

- *within the gap asked for*: an answer;
- *a limit*: the best solution until then, and the bound if the interface tells it;
- *no solution*, which includes "infeasible or unbounded", and what Pyomo reads as such from CBC:
  believed only of programs that cannot be unbounded, and then checked by `milp_driver` like HiGHS;
- *failure*, in one line: a licence that covers less, numerical trouble, and everything else.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyomo.environ as pyo
from pyomo.common import Executable
from pyomo.common.fileutils import find_executable
from pyomo.opt import SolverStatus, TerminationCondition

from ...formulations.linear import Linear
from ...formulations.program import quiet_pyomo
from ...instances import InputError, StagecutError
from ...instances.common.arrays import Floats
from .compiled_model import Compiled
from .highs import Outcome, cannot_be_unbounded, load, whole
from .search import S, Search


@dataclass(frozen=True)
class OtherSolver:
    """A solver by one name, through whichever of its interfaces is installed."""

    interfaces: tuple[str, ...]  # Pyomo's names of its interfaces; the first available is used
    # gap, seconds: names of its options for the relative gap and the time limit; `seconds` is empty
    # if Pyomo's own argument works
    gap: str
    seconds: str
    install: str  # command or package that installs it
    # options for a second solve if the first one reports that there is no solution
    doubted: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, int] = field(default_factory=dict)  # further options of a direct interface


#: Solvers by name. Pyomo's direct interfaces ignore Pyomo's time limit. CBC 2.10 calls programs
#: infeasible that its preprocessing solves completely. SCIP holds Python's lock while it writes to
#: the pipe that Pyomo reads in another thread: once the pipe is full, both wait for ever.
SOLVERS = {
    "gurobi": OtherSolver(
        ("gurobi_direct", "gurobi"), "MIPGap", "TimeLimit", "pip install gurobipy"
    ),
    "cplex": OtherSolver(
        ("cplex_direct", "cplex"), "mip_tolerances_mipgap", "timelimit", "pip install cplex"
    ),
    "scip": OtherSolver(
        ("scip_direct", "scip"), "limits/gap", "", "pip install pyscipopt",
        direct={"display/verblevel": 0},
    ),
    "cbc": OtherSolver(
        ("cbc",), "ratioGap", "", "package coinor-cbc", doubted={"preprocess": "off"}
    ),
    "glpk": OtherSolver(("glpk",), "mipgap", "", "package glpk-utils"),
    "copt": OtherSolver((), "RelGap", "TimeLimit", "pip install coptpy"),
    "xpress": OtherSolver(
        ("xpress_direct", "xpress"), "miprelstop", "timelimit", "pip install xpress"
    ),
}  # fmt: skip

#: Messages of solvers that ended at the gap asked for; Pyomo reports that as ``feasible`` (glpk,
#: as at its time limit) or ``other`` (SCIP).
WITHIN_GAP = ("MIP GAP TOLERANCE REACHED", "gap limit reached")

#: Parts of error messages where a licence is missing or covers less.
LICENCE = ("licen", "Community Edition", "too many rows and columns", "size limit")

#: Limits of an `Outcome` by the termination condition of the solve.
LIMITS: dict[TerminationCondition, Literal["time", "nodes", "stopped"]] = {
    TerminationCondition.maxTimeLimit: "time",
    TerminationCondition.maxEvaluations: "nodes",
    TerminationCondition.maxIterations: "stopped",
    TerminationCondition.userInterrupt: "stopped",
    TerminationCondition.resourceInterrupt: "stopped",
}

#: Terminations that mean "no solution" for a program that cannot be unbounded.
NO_SOLUTION = (TerminationCondition.infeasible, TerminationCondition.infeasibleOrUnbounded)

#: Terminations without a solution.
NOTHING_FOUND = (*NO_SOLUTION, TerminationCondition.unbounded)

#: Terminations that Pyomo also reports for limits unknown to it; no bound is believed.
FAILURES = frozenset(
    {
        TerminationCondition.invalidProblem,
        TerminationCondition.solverFailure,
        TerminationCondition.internalSolverError,
        TerminationCondition.error,
        TerminationCondition.licensingProblems,
    }
)

#: Magnitude from which solvers mean "none" by a bound.
NO_BOUND = 1e20

# By default, Pyomo prefers a program of the working directory to one on the PATH.
Executable._manager._find = partial(find_executable, cwd=False)
Executable.rehash()


def check_solver(name: str) -> None:
    """Raise InputError unless the solver is known and installed."""
    if name == "highs" or (name == "copt" and find_spec("coptpy") is not None):
        return
    known = SOLVERS.get(name)
    if known is None and name not in pyo.SolverFactory:
        raise InputError(
            f"solver: Pyomo knows no {name!r}; use highs, {', '.join(SOLVERS)} or another of "
            "those that `pyomo help --solvers` lists"
        )
    if _interface(name) is None:
        how = f"install it ({known.install})" if known else "install it"
        raise InputError(
            f"solver: {name!r} is not installed; {how}, or use highs, which comes with Stagecut"
        )


def _interface(name: str) -> str | None:
    """Return Pyomo's name of the first available interface to a solver, or None."""
    known = SOLVERS.get(name)
    for interface in (name,) if known is None else known.interfaces:
        try:
            with _quiet():
                if pyo.SolverFactory(interface).available(exception_flag=False):
                    return interface
        except Exception as error:  # such as one about a licence
            raise InputError(f"solver: {name!r} cannot be used: {_first_line(error)}") from error
    return None


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _failure(name: str, error: Exception) -> StagecutError:
    said = _first_line(error)
    if any(word.lower() in str(error).lower() for word in LICENCE):
        return StagecutError(f"solver {name}: its licence does not cover this program: {said}")
    return StagecutError(f"solver {name}: {said}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pyomo's log and the interfaces' warnings, such as on a community licence."""
    with quiet_pyomo(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_other(
    name: str,
    compiled: Compiled,
    linear: Linear,
    search: Search[S],
    *,
    start: Floats | None = None,
    seconds: float = math.inf,
    gap: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Outcome:
    """Solve a minimisation with the solver called `name`, as `run_highs` does.

    There are no callbacks and no stop before the limit, as not all interfaces of Pyomo have them,
    and whether the start was used is unknown. Columns fixed by the bounds of `linear` are fixed in
    `compiled`. InputError if there is no such solver, StagecutError if it fails or its licence does
    not cover the program.
    """
    check_solver(name)
    seconds = min(seconds, search.seconds_left)
    known = SOLVERS.get(name)
    gap = search.limits.least_gap if gap is None else gap
    settings: dict[str, Any] = {} if known is None else {known.gap: gap}
    if known is not None and known.seconds and math.isfinite(seconds):
        settings[known.seconds] = max(1.0, seconds)
    settings.update(options or {})
    own_gap = gap if known is not None else 1e-4
    if name == "copt":
        return _run_copt(linear, settings, own_gap, start)
    interface = str(_interface(name))
    if known is not None and interface.endswith("_direct"):
        settings = {**settings, **known.direct}
    with _fixed(compiled, linear), tempfile.TemporaryDirectory() as folder:
        asked = _Asked(settings, seconds, own_gap, start, Path(folder) / "log")
        outcome = _run_pyomo(name, interface, compiled, linear, search, asked)
        if outcome.status == "infeasible" and known is not None and known.doubted:
            asked = replace(asked, settings={**known.doubted, **settings})
            outcome = _run_pyomo(name, interface, compiled, linear, search, asked)
        return outcome


@dataclass(frozen=True, eq=False)
class _Asked:
    """Settings, limits and start of one solve; a solver may write its messages to `log`."""

    settings: Mapping[str, Any]
    seconds: float
    gap: float
    start: Floats | None
    log: Path


@contextmanager
def _fixed(compiled: Compiled, linear: Linear) -> Iterator[None]:
    """Fix the variables of columns whose bounds are equal, within a ``with`` block."""
    fixed = np.flatnonzero(linear.column_lower == linear.column_upper).tolist()
    before = [(compiled.columns[j], compiled.columns[j].value) for j in fixed]
    for j in fixed:
        compiled.columns[j].fix(float(linear.column_lower[j]), skip_validation=True)
    try:
        yield
    finally:
        for var, value in before:
            var.unfix()
            var.set_value(value, skip_validation=True)


def _run_pyomo(
    name: str,
    interface: str,
    compiled: Compiled,
    linear: Linear,
    search: Search[S],
    asked: _Asked,
) -> Outcome:
    """Solve by one of Pyomo's interfaces."""
    begin, model = time.monotonic(), compiled.columns[0].model()
    arguments: dict[str, Any] = {}
    if math.isfinite(asked.seconds) and not (name in SOLVERS and SOLVERS[name].seconds):
        arguments["timelimit"] = max(1, int(asked.seconds))
    if name == "glpk":
        arguments["logfile"] = str(asked.log)
    with _quiet():
        try:
            solver = pyo.SolverFactory(interface)
            for option, value in asked.settings.items():
                solver.options[option] = value
            if asked.start is not None and _begins(solver, compiled, asked.start):
                arguments["warmstart"] = True
            results = solver.solve(model, load_solutions=False, **arguments)
            ended = results.solver.termination_condition
            found = bool(len(results.solution)) and ended not in NOTHING_FOUND
            if found:
                results.solver.status = SolverStatus.aborted  # Pyomo loads nothing of a failure
                model.solutions.load_from(results)
        except subprocess.TimeoutExpired:  # it missed its limit, and Pyomo ended it
            return Outcome("no solution", "time", None, math.inf, -math.inf)
        except Exception as error:  # each interface has its own, such as gurobipy.GurobiError
            raise _failure(name, error) from error
    told = str(getattr(results.solver, "message", ""))
    told += asked.log.read_text(errors="replace") if asked.log.exists() else ""
    if ended in NO_SOLUTION and cannot_be_unbounded(linear):
        return Outcome("infeasible", "none", None, math.inf, math.inf)
    if ended in NOTHING_FOUND:
        raise StagecutError(f"solver {name} ended with {str(ended)!r}")
    x, objective = None, math.inf
    if found and all(var.value is not None for var in compiled.columns):
        x = whole(linear, np.array([float(var.value) for var in compiled.columns]))
        objective = float(linear.cost @ x) + linear.offset
    solved = ended in (TerminationCondition.optimal, TerminationCondition.globallyOptimal)
    # Pyomo's reader of glpk gives the objective as the bound, proved or not
    believed = name != "glpk" and ended not in FAILURES
    bound = _said_bound(results.problem.lower_bound, objective) if believed else -math.inf
    if x is not None and (solved or any(words in told for words in WITHIN_GAP)):
        bound = max(bound, objective - asked.gap * abs(objective))
        return Outcome("optimal", "none", x, objective, bound)
    status: Literal["feasible", "no solution"] = "no solution" if x is None else "feasible"
    limit = "time" if "TIME LIMIT EXCEEDED" in told else LIMITS.get(ended, "stopped")
    if limit == "stopped" and time.monotonic() - begin >= asked.seconds:
        limit = "time"
    if limit == "stopped" and x is None and ended not in LIMITS:
        raise StagecutError(f"solver {name} ended with {str(ended)!r}")
    if limit == "stopped":
        search.note(f"solver {name} ended with {str(ended)!r}")
    return Outcome(status, limit, x, objective, bound)


def _begins(solver: Any, compiled: Compiled, start: Floats) -> bool:
    """Set the variables to a start; return whether the interface passes it to the solver."""
    with suppress(AttributeError, TypeError):
        if solver.warm_start_capable():
            for var, value in zip(compiled.columns, start.tolist(), strict=True):
                if not var.fixed:
                    var.set_value(None if math.isnan(value) else value, skip_validation=True)
            return True
    return False


def _said_bound(said: object, objective: float) -> float:
    """Return the bound of the results, at most the objective; `-inf` if there is none."""
    if not isinstance(said, (int, float)) or not abs(said) < NO_BOUND:
        return -math.inf
    return min(float(said), objective)


@cache
def _copt_environment() -> Any:
    """Return COPT's environment, made once, as it reports on its licence when it is made."""
    copt: Any = import_module("coptpy")
    settled = copt.EnvrConfig()
    settled.set("nobanner", "1")
    return copt.Envr(settled)


def _run_copt(
    linear: Linear, settings: Mapping[str, Any], gap: float, start: Floats | None
) -> Outcome:
    """Solve by COPT, to which Pyomo has no interface."""
    copt: Any = import_module("coptpy")
    if not len(linear.cost):
        return Outcome("optimal", "none", np.zeros(0), linear.offset, linear.offset)
    try:
        model = _copt_environment().createModel("stagecut")
        model.setParam("Logging", 0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.mps"
            load(linear, {}).writeModel(str(path))
            model.read(str(path))
        for option, value in settings.items():
            model.setParam(option, value)
        columns = model.getVars()
        if start is not None:
            for column, value in enumerate(start.tolist()):
                if not math.isnan(value):
                    model.setMipStart(columns[column], value)
            model.loadMipStart()
        model.solve()
        ended, ends = model.status, copt.COPT
        if ended in (ends.INFEASIBLE, ends.INF_OR_UNB) and cannot_be_unbounded(linear):
            return Outcome("infeasible", "none", None, math.inf, math.inf)
        mip = bool(linear.integer.any())
        x, objective = None, math.inf
        if ended == ends.OPTIMAL or (mip and model.hasmipsol):
            x = whole(linear, np.array([columns[j].x for j in range(len(linear.cost))]))
            objective = float(linear.cost @ x) + linear.offset
        bound = _said_bound(model.bestbnd if mip else None, objective)
    except Exception as error:  # coptpy.CoptError
        raise _failure("copt", error) from error
    if ended == ends.OPTIMAL:
        bound = max(bound, objective - gap * abs(objective))
        return Outcome("optimal", "none", x, objective, bound)
    limits: dict[int, Literal["time", "nodes"]] = {ends.TIMEOUT: "time", ends.NODELIMIT: "nodes"}
    if ended not in limits and x is None:
        trouble = "in numerical trouble" if ended == ends.NUMERICAL else f"with status {ended}"
        raise StagecutError(f"solver copt ended {trouble}")
    status: Literal["feasible", "no solution"] = "no solution" if x is None else "feasible"
    return Outcome(status, limits.get(ended, "stopped"), x, objective, bound)
