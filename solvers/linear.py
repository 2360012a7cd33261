"""A mixed-integer linear program as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from ..instances.arrays import Bools, Floats


@dataclass(frozen=True, eq=False)
class Linear:
    """A mixed-integer linear program: min (or max) cost·x + offset, lower ≤ A x ≤ upper.

    Parameters
    ----------
    cost, column_lower, column_upper
        Shape (n,).
    offset
        Constant term of the objective.
    maximise
        Sense of the objective.
    integer
        Shape (n,): whether a column must be a whole number.
    matrix
        Shape (m, n), by columns.
    row_lower, row_upper
        Shape (m,); `-inf` and `inf` where open.
    """

    cost: Floats
    column_lower: Floats
    column_upper: Floats
    integer: Bools
    matrix: csc_array[np.float64]
    row_lower: Floats
    row_upper: Floats
    offset: float = 0.0
    maximise: bool = False
