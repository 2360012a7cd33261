"""Pyomo models of formulations: their parts, their equations, and the rows that values satisfy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FormulationState:
    """Parts of a model, compared by identity; held so that no later part has the same identity."""

    constraints: tuple[Any, ...]
    variables: tuple[tuple[Any, ...], ...]
    objectives: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormulationState) and all(
            len(mine) == len(theirs) and all(map(_same, mine, theirs))
            for mine, theirs in zip(self._parts(), other._parts(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _parts(self) -> tuple[tuple[Any, ...], ...]:
        return self.constraints, self.variables, self.objectives


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return one[0] is other[0] and one[1:] == other[1:]
    return one is other


def state_of(model: pyo.ConcreteModel) -> FormulationState:
    """Return the active constraints, the variables with their bounds, and the active objectives."""

    def active(of: Any) -> tuple[Any, ...]:
        return tuple(model.component_data_objects(of, active=True))

    variables = tuple(
        (var, var.lb, var.ub, var.fixed and var.value, var.is_continuous())
        for var in model.component_data_objects(pyo.Var)
    )
    return FormulationState(active(pyo.Constraint), variables, active(pyo.Objective))


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
