"""Rows of a mapping's program as HiGHS takes them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array

from ..formulations.mapping_counts import Rows
from ..instances.arrays import Floats
from .linear import Linear


def as_linear(rows: Rows, cost: Floats) -> Linear:
    """Return the program: least cost, all columns from 0."""
    return Linear(
        cost=cost,
        column_lower=np.zeros(len(cost)),
        column_upper=rows.column_upper,
        integer=rows.integer,
        matrix=csc_array(rows.matrix),
        row_lower=rows.lower,
        row_upper=rows.upper,
    )
