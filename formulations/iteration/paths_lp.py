"""The linear program over paths: the mixture of candidates whose longest path is least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Floats
from ..linear_program import MatrixEntries, SolverError, least_cost


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


def mix(rows: Floats, equal: Floats) -> Mixture:
    """Return the mixture.

    Parameters
    ----------
    rows
        Shape (paths, variables): of the order of 1.
    equal
        Shape (equations, variables).

    Raises
    ------
    SolverError
        If HiGHS does not find it.
    """
    paths, variables = rows.shape
    matrix = np.vstack(
        [
            np.hstack([rows, -np.ones((paths, 1))]),
            np.hstack([equal, np.zeros((len(equal), 1))]),
        ]
    )
    row, column = np.nonzero(matrix)
    sides = np.append(np.zeros(paths), np.ones(len(equal)))
    found = least_cost(
        np.append(np.zeros(variables), 1.0),
        np.append(np.zeros(variables), -np.inf),
        MatrixEntries(row, column, matrix[row, column]),
        np.append(np.full(paths, -np.inf), np.ones(len(equal))),
        sides,
    )
    weights = np.zeros(paths) if found is None else np.maximum(-found.row_duals[:paths], 0.0)
    if found is None or weights.sum() <= 0:  # it has an optimum, where they add up to 1
        raise SolverError("HiGHS finds no optimum of a mixture of paths")
    return Mixture(found.value, found.x[:variables], weights / weights.sum())
