"""The relaxation of a program by HiGHS's simplex: a point, multipliers of rows, and the basis.

Nothing here is a proof: `safe_bound` makes one of the multipliers, `exact_basis` of the basis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np

from ....formulations.linear import Linear
from ....formulations.linear_program import run_here
from ....instances.common.arrays import Bools, Floats
from ..highs import load

#: Passes over rows and columns that even out the size of entries.
SCALINGS = 4

#: Pivots after which a relaxation is given up.
PIVOTS = 50_000


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What HiGHS says about the relaxation of a program.

    Parameters
    ----------
    x
        Shape (n,): an optimal point; None if there is none.
    multipliers
        Shape (m,): duals of an optimal basis, or a dual ray where the rows contradict each other;
        None if HiGHS has neither.
    basic_columns, basic_rows
        Shape (n,), (m,): what is in the last basis.
    """

    x: Floats | None
    multipliers: Floats | None
    basic_columns: Bools
    basic_rows: Bools


def relax(linear: Linear) -> Relaxation:
    """Solve the relaxation of a program that minimises, with entries evened out by powers of 2.

    Raises
    ------
    SolverError
        If HiGHS fails.
    """
    rows, columns = _scales(linear)
    cost = linear.cost * columns
    unit = _power(1.0 / np.abs(cost).max()) if cost.any() else np.float64(1.0)
    matrix = linear.matrix.copy()
    matrix.data = matrix.data * rows[matrix.indices] * np.repeat(columns, np.diff(matrix.indptr))
    scaled = replace(
        linear,
        cost=cost * unit,
        offset=0.0,
        column_lower=linear.column_lower / columns,
        column_upper=linear.column_upper / columns,
        integer=np.zeros(len(columns), np.bool_),
        matrix=matrix,
        row_lower=linear.row_lower * rows,
        row_upper=linear.row_upper * rows,
    )
    highs = load(
        scaled,
        {
            "presolve": "off",
            "solver": "simplex",
            "primal_feasibility_tolerance": 1e-9,
            "dual_feasibility_tolerance": 1e-9,
            "simplex_iteration_limit": PIVOTS,
        },
    )
    status, basis = run_here(highs), highs.getBasis()
    basic = highspy.HighsBasisStatus.kBasic
    x = multipliers = None
    if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
        solution = highs.getSolution()
        x = np.array(solution.col_value, dtype=np.float64) * columns
        multipliers = np.array(solution.row_dual, dtype=np.float64) * rows / unit
    elif status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = highs.getDualRay()
        multipliers = np.array(ray, dtype=np.float64) * rows if has_ray else None
    return Relaxation(
        x,
        multipliers,
        np.array([s == basic for s in basis.col_status], dtype=np.bool_),
        np.array([s == basic for s in basis.row_status], dtype=np.bool_),
    )


def _scales(linear: Linear) -> tuple[Floats, Floats]:
    """Return powers of 2 that bring the entries near 1, by row and by column."""
    matrix = linear.matrix.tocoo()
    row, column = matrix.coords
    rows, columns = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[1])
    some = matrix.data != 0
    row, column = row[some], column[some]
    size = np.log2(np.abs(matrix.data[some]))
    for _ in range(SCALINGS):
        for scale, index, other, at in ((rows, row, columns, column), (columns, column, rows, row)):
            now = size + other[at]
            top, low = np.full((2, len(scale)), -np.inf)
            np.maximum.at(top, index, now)
            np.maximum.at(low, index, -now)
            used = np.isfinite(top)
            scale[used] = (low[used] - top[used]) / 2
    return np.exp2(np.rint(rows)), np.exp2(np.rint(columns))


def _power(value: float) -> np.float64:
    """Return the power of 2 nearest to a positive number."""
    return np.float64(np.exp2(np.rint(np.log2(value))))
