"""Any MILP solver that Pyomo knows by name, where it is installed: glpk, cbc, scip, gurobi, …."""

from __future__ import annotations

import math
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyomo.environ as pyo
from pyomo.common import Executable
from pyomo.common.fileutils import find_executable
from pyomo.opt import TerminationCondition

from ...formulations.linear import Linear
from ...formulations.program import quiet_pyomo
from ...instances import InputError, StagecutError
from .compiled_model import Compiled
from .highs import Outcome
from .search import S, Search

#: What each solver calls the relative gap at which it may stop; others stop at their own.
GAP_OPTIONS = {
    "glpk": "mipgap",
    "cbc": "ratioGap",
    "scip": "limits/gap",
    "gurobi": "MIPGap",
    "gurobi_direct": "MIPGap",
    "cplex": "mip_tolerances_mipgap",
    "xpress": "miprelstop",
}

#: What solvers say where they end at the gap asked for; Pyomo calls that ``feasible`` (glpk, at its
#: time limit too) or ``other`` (SCIP).
WITHIN_GAP = ("MIP GAP TOLERANCE REACHED", "gap limit reached")

#: The limits of `Outcome` that ends mean.
LIMITS: dict[TerminationCondition, Literal["time", "nodes", "stopped"]] = {
    TerminationCondition.maxTimeLimit: "time",
    TerminationCondition.maxEvaluations: "nodes",
    TerminationCondition.maxIterations: "stopped",
    TerminationCondition.userInterrupt: "stopped",
    TerminationCondition.resourceInterrupt: "stopped",
}

#: Ends that are neither an answer nor a limit.
FAILURES = frozenset(
    {
        TerminationCondition.unbounded,
        TerminationCondition.infeasibleOrUnbounded,
        TerminationCondition.invalidProblem,
        TerminationCondition.solverFailure,
        TerminationCondition.internalSolverError,
        TerminationCondition.error,
        TerminationCondition.licensingProblems,
    }
)

# Pyomo would take a program of the working directory before one on the PATH.
Executable._manager._find = partial(find_executable, cwd=False)
Executable.rehash()


def check_solver(name: str) -> None:
    """Raise InputError unless Pyomo knows the solver and finds it installed."""
    if name == "highs":
        return
    if name not in pyo.SolverFactory:
        raise InputError(
            f"solver: Pyomo knows no {name!r}; use highs, glpk, cbc, scip, gurobi or another of "
            "those that `pyomo help --solvers` lists"
        )
    try:
        there = bool(pyo.SolverFactory(name).available(exception_flag=False))
    except Exception as error:  # such as of a licence
        raise InputError(f"solver: {name!r} cannot be used: {_first_line(error)}") from error
    if not there:
        raise InputError(
            f"solver: {name!r} is not installed; install it so that its program is on the PATH "
            "(glpk: package glpk-utils, cbc: coinor-cbc), or from PyPI (scip_direct: pyscipopt, "
            "gurobi_direct: gurobipy), or use highs, which comes with Stagecut"
        )


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def run_other(name: str, compiled: Compiled, linear: Linear, search: Search[S]) -> Outcome:
    """Solve a Pyomo model that minimises with the solver called `name`; see `run_highs`.

    Progress, a start and a stop before the limit are more than Pyomo offers for all of them.

    Parameters
    ----------
    linear
        The compiled program with tighter bounds of columns: columns that these fix are fixed.

    Raises
    ------
    InputError
        If there is no such solver.
    StagecutError
        If it fails.
    """
    check_solver(name)
    fixed = linear.column_lower == linear.column_upper
    for var, value in zip(compiled.columns, linear.column_lower.tolist(), strict=True):
        if fixed[compiled.column(var)]:
            var.fix(value)
    model = compiled.columns[0].model()
    solver = pyo.SolverFactory(name)
    arguments: dict[str, object] = {}
    if math.isfinite(search.seconds_left):
        arguments["timelimit"] = max(1, int(search.seconds_left))
    if name in GAP_OPTIONS:
        solver.options[GAP_OPTIONS[name]] = search.limits.gap
    with quiet_pyomo(), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        if name == "glpk":
            arguments["logfile"] = str(log)
        try:
            results = solver.solve(model, load_solutions=False, **arguments)
        except subprocess.TimeoutExpired:  # it did not keep the limit, and Pyomo ended it
            return Outcome("no solution", "time", None, math.inf, -math.inf, 0)
        except Exception as error:  # each interface has its own, such as gurobipy.GurobiError
            raise StagecutError(f"solver {name}: {_first_line(error)}") from error
        if len(results.solution):
            model.solutions.load_from(results)
        told = str(getattr(results.solver, "message", ""))
        told += log.read_text(errors="replace") if log.exists() else ""
    ended = results.solver.termination_condition
    if ended == TerminationCondition.infeasible:
        return Outcome("infeasible", "none", None, math.inf, math.inf, 0)
    objective, x = math.inf, None
    if len(results.solution):
        objective = float(pyo.value(next(model.component_data_objects(pyo.Objective))))
        x = np.array([float(pyo.value(var)) for var in compiled.columns])
    solved = ended in (TerminationCondition.optimal, TerminationCondition.globallyOptimal)
    if x is not None and (solved or any(words in told for words in WITHIN_GAP)):
        gap = search.limits.gap if name in GAP_OPTIONS else 1e-4
        return Outcome("optimal", "none", x, objective, objective * (1 - gap), 0)
    if ended in FAILURES and x is None:
        raise StagecutError(f"solver {name} ended with {str(ended)!r}")
    if ended in FAILURES:
        search.note(f"solver {name} ended with {str(ended)!r}; its solution is used")
        return Outcome("feasible", "stopped", x, objective, -math.inf, 0)
    claimed = results.problem.lower_bound
    bound = float(claimed) if isinstance(claimed, (int, float)) else -math.inf
    if not bound < objective * (1 - 1e-9):  # glpk's reader gives the objective as its bound
        bound = -math.inf
    status: Literal["feasible", "no solution"]
    status = "feasible" if math.isfinite(objective) else "no solution"
    limit = "time" if "TIME LIMIT EXCEEDED" in told else LIMITS.get(ended, "stopped")
    if limit == "stopped":
        search.note(f"solver {name} ended with {str(ended)!r}")
    return Outcome(status, limit, x, objective, bound, 0)
