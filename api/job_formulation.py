"""The program of a training job's stages as a model, to be read, changed and solved."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyomo.environ as pyo

from ..formulations.job import program as stated
from ..formulations.job.paths import JobPaths
from ..formulations.job.program import ProgramBuilder, point_costs
from ..formulations.job.rates import rates
from ..formulations.job.space import JobSpace, job_space
from ..formulations.linear import Linear
from ..instances import InputError, Status
from ..instances.common.arrays import Floats, Ints
from ..instances.costs.calibration import Calibration
from ..instances.costs.layout import Layout
from ..instances.costs.stages import stage_times
from ..instances.job.plan import JobPlan
from ..solvers import Limits, Search
from ..solvers.core.compiled_model import compile_model, write_model
from ..solvers.core.milp_driver import STATED_OBJECTIVE, IntegerProgram, solve_program
from ..solvers.core.other_solvers import check_solver
from .formulation import CHANGED
from .job import JOB_LIMITS, JobCosts, plan_costs
from .model_state import described, rows_kept

if TYPE_CHECKING:
    import pandas as pd

#: Most rounds of one solve, each with rows for the longest paths of the solution before it.
ROUNDS = 40


@dataclass(frozen=True)
class StagesResult:
    """Best stages under a `JobFormulation`, with a bound on all of them."""

    layout: Layout | None  # the best layout; None if none was found
    # seconds, bound: of an iteration; the bound holds under the constraints that were added
    seconds: float
    bound: float
    status: Status  # as of `solve`
    bound_origin: str  # what proves the bound
    notes: tuple[str, ...] = ()  # what happened besides


def job_formulation(plan: JobPlan, *, calibration: Calibration | None = None) -> JobFormulation:
    """State the program of a job's stages, with the other fields of the layout as in a plan.

    Parameters
    ----------
    plan
        Of a job, by `solve`, with more than one pipeline rank.
    calibration
        Efficiencies that it was made with; default: the shipped ones.

    Returns
    -------
    JobFormulation
        With the Pyomo model: numbers of layers, and of recomputed layers, of every stage.

    Raises
    ------
    InputError
        If the plan has no pipeline, is not of the job's declared space, or was made with other
        efficiencies.

    Examples
    --------
    At most 5 layers in the first stage:

    >>> import pyomo.environ as pyo
    >>> import stagecut
    >>> job = stagecut.TrainingJob(global_batch=64, sequence=4096, pipeline=2)
    >>> f = job_formulation(stagecut.solve("llama3.2-1b", "h100:8", job).plan)
    >>> f.model.few = pyo.Constraint(expr=f.layers(0) <= 5)
    >>> f.solve().layout.stage_layers
    (5, 11)
    """
    costs = plan_costs(plan, calibration)
    space = job_space(plan.model, plan.cluster, plan.job)
    if plan.layout.pipeline == 1:
        raise InputError("job formulation: a plan without a pipeline has no stages to choose")
    point = _point(space, plan.layout)
    table = rates(space, costs.prices)
    priced = point_costs(space, point, costs.prices)
    builder = ProgramBuilder(space, table, priced, point, costs.prices)
    layout = builder.layout
    paths = JobPaths(layout.schedule, layout.pipeline, layout.chunks, layout.microbatches)
    paths.begin(_passes(costs, plan.layout), priced.message)
    program = builder.program(paths, math.inf)
    share = 1 / STATED_OBJECTIVE  # the program's own objective is about 1
    model = linear_model("stages", program, builder.columns, builder.row_meanings, share)
    add_rows(model, program)
    as_stated = {id(row): row.expr for row in model.component_data_objects(pyo.Constraint)}
    scale = builder.unit * share
    return JobFormulation(model, scale, costs, builder, paths, priced.message, as_stated)


def _point(space: JobSpace, layout: Layout) -> int:
    """Return the point of a layout without its stages."""
    same = (
        (space.pipeline == layout.pipeline) & (space.data == layout.data)
        & (space.chunks == layout.chunks) & (space.zero == layout.zero)
        & (space.microbatches == layout.microbatches)
    )  # fmt: skip
    counted = layout.recompute_layers is not None
    outer = replace(layout, stage_layers=(), recompute_layers=0 if counted else None)
    for point in np.flatnonzero(same).tolist():
        if replace(space.layout(point), stage_layers=()) == outer:
            return int(point)
    raise InputError("job formulation: the plan is not in the declared space of its job")


def _passes(costs: JobCosts, layout: Layout) -> Floats:
    """Return seconds of every stage's passes, shape (stages, 3)."""
    return np.array([[s.forward, s.backward, s.weights] for s in stage_times(layout, costs.prices)])


@dataclass(frozen=True, eq=False, repr=False)
class JobFormulation:
    """The program of a job's stages, as a model that can be changed.

    Parameters
    ----------
    model
        The Pyomo model: n[s,τ] layers of type τ in stage s, r[s,τ] of them recomputed.
    scale
        Seconds per unit of the model's objective.
    costs, builder, paths
        Costs of the job, builder of the rows, paths of the schedule.
    message
        Seconds of a message between two ranks.
    as_stated
        Expressions of the constraints that were not added, by the constraints' identities.

    Examples
    --------
    >>> import stagecut
    >>> job = stagecut.TrainingJob(global_batch=64, sequence=4096, pipeline=2)
    >>> f = job_formulation(stagecut.solve("llama3.2-1b", "h100:8", job).plan)
    >>> f.describe().loc["layers", "kind"]
    'constraint'
    """

    model: pyo.ConcreteModel
    scale: float
    costs: JobCosts
    builder: ProgramBuilder
    paths: JobPaths
    message: float
    as_stated: dict[int, object]

    @property
    def statement(self) -> str:
        """Symbols and equations, as text."""
        return (stated.__doc__ or "").strip()

    def layers(self, stage: int) -> pyo.Expression:
        """Return a linear expression: the number of layers of a stage."""
        return sum(self.model.n[stage, k] for k in range(self.builder.kinds))

    def describe(self) -> pd.DataFrame:
        """Return one row per family of variables, constraints and objectives."""
        return described(self.model)

    def write(self, path: str | Path) -> None:
        """Write the model as it is now, ``.mps`` or ``.lp``, with the paths found so far."""
        write_model(self.model, path)

    def solve(self, solver: str = "highs", *, limits: Limits | None = None) -> StagesResult:
        """Solve the model as it is now, and again with the longest path of its solution.

        Parameters
        ----------
        solver
            As in `solve`.
        limits
            As in `solve`.

        Returns
        -------
        StagesResult
            Its layout is judged by the estimate and keeps what was added to the model.

        Raises
        ------
        InputError
            If the solver is not installed.
        """
        check_solver(solver)
        rounds = _Rounds(self)
        search: Search[Layout] = Search(limits or JOB_LIMITS, rounds.judge)
        for _ in range(ROUNDS):
            known = len(self.paths.found)
            rounds.last = None
            solve_program(rounds.program, search, solver=solver)
            if rounds.last is None or search.should_stop():
                break
            self.paths.around(_passes(self.costs, rounds.last), self.message)
            if len(self.paths.found) == known:
                break  # the program cannot tell this layout from a better one
            self._add_paths()
        return StagesResult(
            search.best, search.objective, search.bound, search.status, search.bound_origin,
            tuple(search.notes),
        )  # fmt: skip

    def _add_paths(self) -> None:
        add_rows(self.model, self.builder.program(self.paths, math.inf))
        self.as_stated.update((id(row), row.expr) for row in self.model.path.values())


class _Rounds:
    """The program of one solve of a job's stages, and the layout that was read last."""

    def __init__(self, f: JobFormulation) -> None:
        self.f = f
        self.last: Layout | None = None
        self._kept = True

    def judge(self, layout: Layout) -> float:
        """Return the seconds of the layout that was read last; `inf` if it misses a row."""
        return float(self.f.costs.judge([layout])[0]) if self._kept else math.inf

    def program(self) -> IntegerProgram[Layout]:
        """Return the model as arrays."""
        f = self.f
        compiled = compile_model(f.model)
        rows = list(f.model.component_data_objects(pyo.Constraint, active=True))
        added = [row for row in rows if f.as_stated.get(id(row)) is not row.expr]

        def read(x: Floats) -> Layout:
            everything = np.array(
                [compiled.value(f.model.column[j], x) for j in range(len(f.model.column))]
            )
            self._kept = rows_kept(added, compiled, x)
            self.last = f.builder.plan(everything)
            return self.last

        return IntegerProgram(
            compiled=compiled,
            read=read,
            scale=f.scale,
            origin="stages program" + (f" {CHANGED}" if added else ""),
            infeasible="nothing keeps all constraints of the model",
            fixed=True,
        )


_NAME = re.compile(r"(?P<family>\w+)\[(?P<index>[\d,]+)\]")


def linear_model(
    name: str,
    linear: Linear,
    columns: Mapping[str, Ints],
    meanings: Mapping[str, str],
    scale: float,
) -> pyo.ConcreteModel:
    """State a minimisation as a Pyomo model without rows, which `add_rows` adds.

    `columns` has for each variable, by name, an array of column numbers in the shape of its
    indices; `meanings` has a sentence for each family of rows; the objective is in units of
    `scale`.
    """
    m = pyo.ConcreteModel(name)
    m.column = {}
    for family, numbers in columns.items():
        keys = list(np.ndindex(numbers.shape))
        var = pyo.Var(keys) if numbers.shape else pyo.Var()
        m.add_component(family, var)
        for key in keys:
            j = int(numbers[key])
            one = var[key] if numbers.shape else var
            one.domain = pyo.Integers if linear.integer[j] else pyo.Reals
            low, high = linear.column_lower[j], linear.column_upper[j]
            one.setlb(low if np.isfinite(low) else None)
            one.setub(high if np.isfinite(high) else None)
            m.column[j] = one
    for family, words in meanings.items():
        m.add_component(family, pyo.Constraint(pyo.Any, doc=" ".join(words.split())))
    cost = {j: float(linear.cost[j]) for j in np.flatnonzero(linear.cost).tolist()}
    seconds = sum(c * m.column[j] for j, c in cost.items()) + linear.offset
    m.objective = pyo.Objective(expr=seconds / scale)
    return m


def add_rows(m: pyo.ConcreteModel, linear: Linear) -> None:
    """Add the rows of a program that the model does not have, under their names."""
    matrix = linear.matrix.tocsr()
    for i, name in enumerate(linear.row_names):
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        family = m.component(found["family"])
        index = tuple(map(int, found["index"].split(",")))
        key = index if len(index) > 1 else index[0]
        if key in family:
            continue
        at = slice(matrix.indptr[i], matrix.indptr[i + 1])
        entries = zip(matrix.indices[at].tolist(), matrix.data[at].tolist(), strict=True)
        body = pyo.quicksum(factor * m.column[j] for j, factor in entries if factor)
        low, high = float(linear.row_lower[i]), float(linear.row_upper[i])
        if low == high:
            family[key] = body == low
        else:
            bounds = (low if np.isfinite(low) else None, high if np.isfinite(high) else None)
            family[key] = (bounds[0], body, bounds[1])
