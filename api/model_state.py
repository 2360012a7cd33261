"""Pyomo models of formulations: their parts, their equations, and the rows that values satisfy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import pyomo.environ as pyo
from pyomo.repn import generate_standard_repn

from ..instances.common.arrays import Floats
from ..solvers.core.compiled_model import Compiled

if TYPE_CHECKING:
    import pandas as pd

#: Violation up to which a row counts as satisfied, relative to 1 plus the sizes of its terms.
ROW_TOLERANCE = 1e-6


def described(model: pyo.ConcreteModel) -> pd.DataFrame:
    """Return one row per family of variables, constraints and objectives of a model."""
    import pandas as pd

    kinds = {pyo.Var: "variable", pyo.Objective: "objective", pyo.Constraint: "constraint"}
    rows = [
        (part.local_name, kind, sum(1 for _ in part.values()), _equation(part))
        for of, kind in kinds.items()
        for part in model.component_objects(of, active=None if of is pyo.Var else True)
        if len(part)
    ]
    return pd.DataFrame(rows, columns=["name", "kind", "size", "equation"]).set_index("name")


def _equation(part: Any) -> str:
    """Return the equation of a constraint: its rule's docstring, or its own text."""
    rule = getattr(getattr(part, "rule", None), "_fcn", None)
    return " ".join((getattr(rule, "__doc__", None) or part.doc or "").split())


@dataclass(frozen=True, eq=False)
class FormulationState:
    """Parts of a model; held so that no later part has the identity of one of them."""

    # constraints, objectives: the active ones, each with its expression
    constraints: tuple[tuple[Any, Any], ...]
    objectives: tuple[tuple[Any, Any], ...]
    variables: tuple[Any, ...]
    values: tuple[Any, ...]  # of the variables: bounds, the value of a fixed one, continuity

    def is_state_of(self, model: pyo.ConcreteModel) -> bool:
        """Whether the model has these very parts, none of them changed."""
        now = state_of(model)
        mine, theirs = (
            (*chain.from_iterable((*one.constraints, *one.objectives)), *one.variables)
            for one in (self, now)
        )
        same = len(mine) == len(theirs) and all(map(is_, mine, theirs))
        return same and self.values == now.values

    def added(self, now: FormulationState) -> list[Any]:
        """Return the constraints of a later state that are not in this one, or not as they were."""
        known = {id(row): expression for row, expression in self.constraints}
        return [row for row, expression in now.constraints if known.get(id(row)) is not expression]


def state_of(model: pyo.ConcreteModel) -> FormulationState:
    """Return the parts of a model."""
    constraints, objectives = (
        tuple((row, row.expr) for row in model.component_data_objects(of, active=True))
        for of in (pyo.Constraint, pyo.Objective)
    )
    variables = tuple(model.component_data_objects(pyo.Var))
    values = tuple((v.lb, v.ub, v.fixed and v.value, v.is_continuous()) for v in variables)
    return FormulationState(constraints, objectives, variables, values)


def rows_kept(rows: Iterable[Any], compiled: Compiled, x: Floats) -> bool:
    """Return whether values of a compiled model satisfy all of some constraints."""

    def kept(row: Any) -> bool:
        linear = generate_standard_repn(row.body)
        terms = [
            factor * compiled.value(var, x)
            for factor, var in zip(linear.linear_coefs, linear.linear_vars, strict=True)
        ]
        slack = ROW_TOLERANCE * (1.0 + sum(map(abs, terms)))
        value = linear.constant + sum(terms)
        lower, upper = row.lb, row.ub
        return (lower is None or value >= lower - slack) and (
            upper is None or value <= upper + slack
        )

    return all(map(kept, rows))
