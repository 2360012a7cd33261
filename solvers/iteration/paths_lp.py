"""The linear program over paths: the mixture of candidates whose longest path is least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from ...instances.common.arrays import Floats


class Mixture(NamedTuple):
    """Solution of min T s.t. T ≥ (rows · x)_π for each path π, equal · x = 1, x ≥ 0.

    Parameters
    ----------
    value
        T.
    solution
        Shape (variables,): x.
    weights
        Shape (paths,): duals of the paths, at least 0; they add up to 1.
    """

    value: float
    solution: Floats
    weights: Floats


def mix(rows: Floats, equal: Floats) -> Mixture | None:
    """Return the mixture; None if the solver does not find it.

    Parameters
    ----------
    rows
        Shape (paths, variables): of the order of 1.
    equal
        Shape (equations, variables).
    """
    paths, variables = rows.shape
    found = linprog(
        np.append(np.zeros(variables), 1.0),
        A_ub=np.hstack([rows, -np.ones((paths, 1))]),
        b_ub=np.zeros(paths),
        A_eq=np.hstack([equal, np.zeros((len(equal), 1))]),
        b_eq=np.ones(len(equal)),
        bounds=[(0, None)] * variables + [(None, None)],
        method="highs",
    )
    if found.status != 0 or found.x is None or found.fun is None:
        return None
    weights = np.maximum(-np.asarray(found.ineqlin.marginals), 0.0)
    if weights.sum() <= 0:
        return None
    return Mixture(float(found.fun), np.asarray(found.x[:variables]), weights / weights.sum())
