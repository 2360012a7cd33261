"""Formulations as Pyomo models, to be read, changed and solved with any solver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from ..formulations.linear import Linear
from ..formulations.program import quiet_pyomo
from ..formulations.registry import StatedProgram, formulations_of
from ..formulations.rules.cases import RuleCase, only_rule_case
from ..formulations.task import Task, pose
from ..instances import (
    Cluster,
    DeviceMapping,
    InputError,
    Plan,
    Planned,
    Problem,
    Sharding,
    Solution,
    Workload,
    plan_of,
)
from ..instances.common.arrays import Floats
from ..instances.model.summary import Summarised
from ..solvers import DEFAULT_LIMITS, METHODS, Limits, Progress, Result
from ..solvers.core.compiled_model import Compiled, compile_model, write_model
from ..solvers.core.highs import run_highs
from ..solvers.core.limits import checked
from ..solvers.core.milp_driver import STATED_OBJECTIVE, IntegerProgram, solve_program
from ..solvers.core.other_solvers import check_solver
from ..solvers.core.search import Search
from ..solvers.core.session import run_alone
from .common import Judge, result_of, with_defaults
from .model_state import FormulationState, described, rows_kept, state_of
from .relaxation import Relaxation, least_limit, relaxation_of

if TYPE_CHECKING:
    import pandas as pd

#: Words added to a bound's origin if the model is not as it was stated.
CHANGED = "under user constraints"

#: Function that says whether a solution is accepted.
Keeps = Callable[[Solution], bool]


def formulation(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    name: str | None = None,
) -> Formulation:
    """State an integer program of a problem as a model that can be read, changed and solved.

    Parameters
    ----------
    workload, cluster, problem
        As in `solve`.
    name
        Throughput: ``compact``, whose contiguous splits have places in the pipeline, ``by-device``,
        whose places are devices, or, for up to 14 units, ``set-partitioning``. Pipelines:
        ``actions``, of streams ``slots``. Latency: ``big-m`` or ``potentials``. Mapping: ``joint``.
        Sharding: ``compact`` or ``flows``. Default: the first.

    Returns
    -------
    Formulation
        With the Pyomo model. No solution is left out because another one is as good, so that
        constraints may name any device.

    Raises
    ------
    InputError
        If there is no such formulation, it is too large, or the rules are several programs.
    InfeasibleError
        If a node fits nowhere.

    Examples
    --------
    At most 8 operators on the first device:

    >>> import pyomo.environ as pyo
    >>> import stagecut
    >>> f = stagecut.formulation("unet", stagecut.accelerators_and_cpus(2), stagecut.Throughput())
    >>> f.model.few = pyo.Constraint(expr=f.count("accelerator 0") <= 8)
    >>> result = f.solve()
    >>> result.status, int((result.plan.placement == 0).sum()) <= 8
    ('optimal', True)
    """
    loaded, devices, posed = with_defaults(workload, cluster, problem)
    task = pose(loaded, devices, posed)
    known = formulations_of(posed)
    name = next(iter(known)) if name is None else name
    if name not in known:
        raise InputError(
            f"formulation: no {name!r} for {posed.name}; use one of {', '.join(known)}"
        )
    method = "joint" if isinstance(posed, DeviceMapping) else "milp"
    METHODS[posed.name][method].check(method, task)
    # mappings and shardings know no placement rules
    case = None if isinstance(posed, (DeviceMapping, Sharding)) else only_rule_case(task)
    with PauseGC(), quiet_pyomo():
        stated = known[name](task if case is None else case.task)
    return Formulation(name, task, stated, case, state_of(stated.model))


def relax(
    workload: Workload | str,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    name: str | None = None,
) -> Relaxation:
    """State an integer program of a problem and solve it without whole numbers.

    Parameters
    ----------
    workload, cluster, problem
        As in `solve`.
    name
        As in `formulation`; the sets of ``set-partitioning`` have at most the load that is proved,
        those of ``all-sets`` any.

    Returns
    -------
    Relaxation
        Bound, size, and the solution in parts. The bound is that of floating-point numbers, and no
        certificate; `solve` gives those.

    Raises
    ------
    InputError
        If there is no such formulation, or it is too large.
    InfeasibleError
        If nothing fits, even in parts.

    Examples
    --------
    >>> import stagecut
    >>> cluster = stagecut.accelerators_and_cpus(2, cpus=0)
    >>> weak = stagecut.relax("gpt2-xl", cluster, stagecut.Throughput("noncontiguous"), "compact")
    >>> best = stagecut.solve("gpt2-xl", cluster, stagecut.Throughput("contiguous"), method="dp")
    >>> weak.bound < best.objective, weak.fractional > 0.9  # nearly all lies on both devices
    (True, True)
    """
    begin = time.monotonic()
    f = formulation(workload, cluster, problem, name)
    if f.name == "set-partitioning":
        assert f.case is not None  # throughput knows rules
        with PauseGC(), quiet_pyomo():
            return least_limit(f.case.task, begin)
    return relaxation_of(f.name, f.stated, f.task.workload.name, begin)


@dataclass(frozen=True, eq=False, repr=False)
class Formulation(Summarised):
    """An integer program of a problem, as a model that can be changed.

    Parameters
    ----------
    name
        As of `formulation`.
    task
        Workload, cluster and problem.
    stated
        The program as stated, with its reader.
    case
        The task without placement rules that is stated; None for problems that know no rules.
    as_stated
        Constraints, variables and objective when it was stated.

    Examples
    --------
    >>> import stagecut
    >>> f = stagecut.formulation("unet", stagecut.accelerators_and_cpus(2), stagecut.Throughput())
    >>> f.places, f.describe().loc["placed_once", "equation"]
    (('accelerator 0', 'accelerator 1'), '(1) Σ_d x_{v,d} = 1 for all units v.')
    """

    name: str
    task: Task[Any]
    stated: StatedProgram
    case: RuleCase | None
    as_stated: FormulationState

    @property
    def model(self) -> pyo.ConcreteModel:
        """The Pyomo model; constraints are named as their equations in `statement`."""
        return self.stated.model

    @property
    def scale(self) -> float:
        """Units of the problem's objective per unit of the model's."""
        return self.stated.scale

    @property
    def statement(self) -> str:
        """Symbols, with their names in the model, and equations, as text."""
        return self.stated.statement

    @property
    def things(self) -> tuple[str, ...]:
        """Names of the placed items: nodes; of a mapping devices, of a sharding operators."""
        return tuple(dict.fromkeys(thing for thing, _ in self.stated.places))

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the places: devices, calls, stages or positions in the pipeline."""
        return tuple(dict.fromkeys(place for _, place in self.stated.places))

    def at(self, thing: str, place: str) -> pyo.Expression | float:
        """Return a linear expression: 1 if a thing is at a place, else 0.

        Raises
        ------
        InputError
            If there is no such thing, or no such place.
        """
        found = self.stated.places.get((thing, place))
        if found is not None:
            return found
        for what, one, all_of in (("thing", thing, self.things), ("place", place, self.places)):
            if one not in all_of:
                raise InputError(
                    f"formulation {self.name}: no {what} {one!r}; there are "
                    f"{', '.join(all_of[:5])}{', …' if len(all_of) > 5 else ''}"
                )
        return 0.0

    def count(self, place: str) -> pyo.Expression | float:
        """Return a linear expression: the number of things at a place.

        Raises
        ------
        InputError
            If there is no such place.
        """
        return sum(self.at(thing, place) for thing in self.things)

    def read(self, value: Callable[[pyo.Var], float] | None = None) -> Solution:
        """Return the solution for values of the variables; it may break rules.

        Parameters
        ----------
        value
            Returns the value of a variable; default: what the model holds, as after a solve.
        """
        solution: Solution = self.stated.read(pyo.value if value is None else value)
        return solution if self.case is None else self.case.expand(solution)

    def start(self, plan: Plan | Planned | Solution) -> None:
        """Set the whole-number variables to a plan, from which `solve` begins.

        Raises
        ------
        InputError
            If the program leaves the plan out, as it breaks a rule.
        """
        values = self._values(_solution_of(plan))
        if values is None:
            raise InputError(f"formulation {self.name}: the plan breaks a rule of the problem")
        for var, value in values:
            if not var.fixed:
                var.set_value(round(value))

    def _values(self, solution: Any) -> list[tuple[pyo.Var, float]] | None:
        inner = solution if self.case is None else self.case.restrict(solution)
        return None if inner is None else self.stated.start(inner)

    def solve(
        self,
        solver: str = "highs",
        *,
        limits: Limits | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_incumbent: Callable[[Solution, float], None] | None = None,
        options: Mapping[str, Any] | None = None,
        keeps: Keeps | None = None,
    ) -> Result:
        """Solve the model as it is now, from the values of its variables if they have some.

        Parameters
        ----------
        solver
            As in `solve`.
        limits, on_progress
            As in `solve`.
        on_incumbent
            Called with each better solution that is found, and its objective in the model; other
            solvers than HiGHS report the last one alone.
        options
            Options of the solver, by its own names.
        keeps
            Says whether a solution is accepted.

        Returns
        -------
        Result
            Its plan is checked by the verifier, for the rules of the problem, and by `keeps`; added
            constraints are evaluated anew at the solver's values. The bound holds for plans that
            satisfy them, and its origin says so. With another objective in the model, status and
            trace are of that objective, a note has its value, and the plan has no bound. Afterwards
            the model holds the values of the variables.

        Raises
        ------
        InputError
            If the solver is not installed, or the model has not one linear objective that is
            minimised and bounded.
        """
        check_solver(solver)
        limits = DEFAULT_LIMITS[self.task.problem.name] if limits is None else checked(limits)
        model = _Model(self, keeps, on_incumbent)
        search = Search(limits, model.judge, on_progress)
        search.method = self.name

        def run() -> None:
            solve_program(model.program, search, solver=solver, options=options)

        run_alone(run, self.task, search)
        task = self.task
        return model.concluded(result_of(task.workload, task.cluster, task.problem, search))

    def alternatives(
        self,
        count: int,
        *,
        within: float = 0.01,
        solver: str = "highs",
        limits: Limits | None = None,
    ) -> list[Plan]:
        """Return different plans whose objective in the model is near the best, best first.

        They are found one after the other, by a row each that excludes the last one; no solver's
        own pool is asked. Plans that differ only in names of devices are different.

        Parameters
        ----------
        count
            Largest number of plans.
        within
            Largest relative distance of their objectives from the best.
        solver, limits
            As in `solve`, for each of them.

        Raises
        ------
        InputError
            As `solve`.
        """
        m = self.model
        found: list[Plan] = []
        m.near_best, m.others = pyo.ConstraintList(), pyo.ConstraintList()
        try:
            while len(found) < count:
                plan = self.solve(solver, limits=limits).plan
                if plan is None:
                    break
                found.append(plan)
                if len(found) == 1:
                    best = next(m.component_data_objects(pyo.Objective, active=True)).expr
                    value = pyo.value(best)
                    m.near_best.add(best <= value + within * abs(value))
                taken = [there for there in self.stated.places.values() if pyo.value(there) > 0.5]
                m.others.add(sum(taken) <= len(taken) - 1)
        finally:
            m.del_component(m.near_best)
            m.del_component(m.others)
        return found

    def conflict(self, *, seconds: float = 60.0) -> tuple[str, ...]:
        """Return the names of constraints that contradict each other; none if there is a solution.

        Without any one of them there is a solution, or HiGHS does not say within the time that
        there is none. Bounds of variables, and that they are whole numbers, stay throughout.

        Parameters
        ----------
        seconds
            Limit in all, after which the set may be larger than it need be.
        """
        rows = list(self.model.component_data_objects(pyo.Constraint, active=True))
        search: Search[Solution] = Search(Limits(seconds=seconds), lambda _: math.inf)

        def contradict(kept: list[Any]) -> bool:
            if search.should_stop():
                return False
            for row in rows:
                row.deactivate()
            for row in kept:
                row.activate()
            with PauseGC():
                linear = compile_model(self.model).linear
            if linear is None:
                return True
            linear = replace(linear, cost=np.zeros(len(linear.cost)))
            return run_highs(linear, search).status == "infeasible"

        try:
            if not contradict(rows):
                return ()
            kept = rows
            for size in (2**k for k in reversed(range(len(rows).bit_length()))):
                at = 0
                while at < len(kept):
                    without = kept[:at] + kept[at + size :]
                    if contradict(without):
                        kept = without
                    else:
                        at += size
        finally:
            for row in rows:
                row.activate()
        return tuple(row.name for row in kept)

    def relax(self) -> Relaxation:
        """Solve the model as it is now without whole numbers; as `stagecut.relax`.

        Raises
        ------
        InfeasibleError
            If nothing fits, even in parts.
        """
        return relaxation_of(self.name, self.stated, self.task.workload.name, time.monotonic())

    def write(self, path: str | Path) -> None:
        """Write the model as it is now for any other solver.

        Parameters
        ----------
        path
            Ends with ``.mps`` or ``.lp``.

        Raises
        ------
        InputError
            If the ending is another, or the file cannot be written.
        """
        write_model(self.model, path)

    def describe(self) -> pd.DataFrame:
        """Return one row per family of variables, constraints and objectives.

        Returns
        -------
        DataFrame
            Name in the model, kind, number of members, and equation; additions come last.
        """
        return described(self.model)

    def summary(self) -> dict[str, object]:
        """Return size and state for display."""
        table = self.describe()
        sizes = {kind: int(table.loc[table["kind"] == kind, "size"].sum()) for kind in _COUNTED}
        changed = not self.as_stated.is_state_of(self.model)
        return {
            "formulation": self.name,
            "problem": self.task.problem.name,
            "workload": self.task.workload.name,
            **sizes,
            "model": "changed" if changed else "as stated",
        }


_COUNTED = ("variable", "constraint")


def _solution_of(plan: Plan | Planned | Solution) -> Solution:
    return plan if isinstance(plan, Solution) else plan_of(plan).solution


class _Model:
    """State of one solve of a formulation's model."""

    def __init__(
        self,
        formulation: Formulation,
        keeps: Keeps | None,
        on_incumbent: Callable[[Solution, float], None] | None,
    ) -> None:
        self.formulation, self._keeps, self._on_incumbent = formulation, keeps, on_incumbent
        task = formulation.task
        self._verify = Judge(task.workload, task.cluster, task.problem)
        before, now = formulation.as_stated, state_of(formulation.model)
        if len(now.objectives) != 1:
            raise InputError(
                f"formulation {formulation.name}: the model has {len(now.objectives)} active "
                "objectives; deactivate all but one"
            )
        self.objective, expression = now.objectives[0]
        if self.objective.sense == pyo.maximize:
            raise InputError(
                f"formulation {formulation.name}: objective {self.objective.name} is maximised; "
                "minimise the same with the other sign"
            )
        self.changed = not before.is_state_of(formulation.model)
        self._added = before.added(now)
        self.own_objective = expression is not before.objectives[0][1]
        # another objective is counted from its least possible value, so that it is never below 0
        self.least, self.scale = 0.0, formulation.scale
        self._read: tuple[Floats, float]
        self._best: tuple[Floats, float] | None = None
        self._compiled: Compiled

    def judge(self, solution: Solution) -> float:
        """Return the objective of the solution read last; `inf` if it breaks a rule."""
        x, value = self._read
        by_definition = self._verify(solution)
        if not (self._keeps is None or self._keeps(solution)) or not rows_kept(
            self._added, self._compiled, x
        ):
            return math.inf
        if not self.own_objective or math.isinf(by_definition):
            value = by_definition
        if math.isfinite(value) and (self._best is None or value < self._best[1]):
            self._best = x, value
            if self._on_incumbent is not None:
                self._on_incumbent(solution, value + self.least)
        return value

    def program(self) -> IntegerProgram[Solution]:
        """Return the model as arrays."""
        formulation = self.formulation
        with PauseGC():
            compiled = compile_model(formulation.model)
        if self.own_objective and compiled.linear is not None:
            compiled = replace(compiled, linear=self._counted(compiled.linear))
        self._compiled = compiled
        whole = [var for var in compiled.columns if not var.is_continuous()]
        known = [(var, float(var.value)) for var in whole if var.value is not None]

        def read(x: Floats) -> Solution:
            assert compiled.linear is not None
            value = float(compiled.linear.cost @ x) + compiled.linear.offset
            self._read = x, value * self.scale
            return formulation.read(lambda var: compiled.value(var, x))

        return IntegerProgram(
            compiled=compiled,
            read=read,
            scale=self.scale,
            origin=f"{formulation.name} program" + (f" {CHANGED}" if self.changed else ""),
            infeasible="nothing keeps all constraints of the model",
            start=compiled.start(known) if known else None,
            fixed=True,
        )

    def _counted(self, linear: Linear) -> Linear:
        """Return the program with its objective from 0 on, and large beside tolerances."""
        costs = linear.cost != 0
        box = np.where(linear.cost > 0, linear.column_lower, linear.column_upper)
        least = float((linear.cost[costs] * box[costs]).sum()) + linear.offset
        if not math.isfinite(least):
            raise InputError(
                f"formulation {self.formulation.name}: objective {self.objective.name} has no "
                "lower bound; give its variables bounds"
            )
        self.least = min(0.0, least)
        factor = STATED_OBJECTIVE / float(np.abs(linear.cost).max()) if costs.any() else 1.0
        self.scale = 1 / factor
        offset = (linear.offset - self.least) * factor
        return replace(linear, cost=linear.cost * factor, offset=offset)

    def concluded(self, result: Result) -> Result:
        """Put the best values into the model; return the result, with the plan by definition."""
        if self._best is None or result.plan is None:
            return result
        x, value = self._best
        for var in self.formulation.model.component_data_objects(pyo.Var):
            if not var.fixed:
                var.set_value(self._compiled.value(var, x), skip_validation=True)
        if not self.own_objective:
            return result
        bound = max(0.0, result.bound) + self.least
        note = (
            f"objective {self.objective.name}: {value + self.least:.6g}, at least {bound:.6g} "
            "(in the units of the model)"
        )
        by_definition = self._verify(result.plan.solution)
        plan = replace(result.plan, objective=by_definition, bound=-math.inf, certificate={})
        return replace(
            result, plan=plan, bound=-math.inf, bound_origin="", notes=(*result.notes, note)
        )
