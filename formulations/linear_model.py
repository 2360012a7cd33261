"""Programs as arrays stated as Pyomo models, to be read and added to."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyomo.environ as pyo

from ..instances.common.arrays import Ints
from .linear import Linear

_NAME = re.compile(r"(?P<family>\w+)\[(?P<index>[\d,]+)\]")


def linear_model(
    name: str,
    linear: Linear,
    columns: Mapping[str, Ints],
    said: Mapping[str, str],
    scale: float,
) -> pyo.ConcreteModel:
    """State a minimisation as a Pyomo model without rows, which `add_rows` adds.

    `columns` has a number, or an array of the shape of its indices, for each variable by name,
    `said` what each family of rows says; the objective is in units of `scale`.
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
    for family, words in said.items():
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
