"""Proofs by multipliers of rows, valid whatever the solver's tolerances were.

For any y, with side_i the lower side of row i where y_i > 0, its upper one where y_i < 0,

    cost·x ≥ Σ_i y_i side_i + Σ_j min_{x_j in its box} (c_j − yᵀA_j) x_j

for every x within rows and box. The right side is computed here with all rounding counted against
it, so what comes out is a proof, however poor the multipliers are. The numbers of the program are
taken at their word.

References
----------
Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming",
Mathematical Programming 99 (2004).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....formulations.linear import Linear
from ....instances.common.arrays import Floats

#: Twice the unit roundoff: k additions and a product err by less than (k + 1) EPS of the sum of
#: absolute values, itself computed in floating point.
EPS = 2.0**-52

#: More than what products lose that are too small for floating point, all in all.
UNDERFLOW = 1e-300

#: Multipliers smaller than this count as 0, so that products stay above `UNDERFLOW`.
LEAST_MULTIPLIER = 1e-100


def dual_bound(linear: Linear, multipliers: Floats) -> float:
    """Return a number that cost·x + offset is not below, for any x within the rows and the box.

    Parameters
    ----------
    linear
        A minimisation. Whole-number columns count as continuous.
    multipliers
        Shape (m,): cost per unit of each row, as HiGHS gives `row_dual`; any numbers are right,
        those of an optimal solution of the relaxation give its objective.

    Returns
    -------
    float
        `-inf` where a column without a bound has a reduced cost of the wrong sign. (Where its cost
        has the right sign, all multipliers are made smaller instead, until it is right.)

    Raises
    ------
    ValueError
        If the program maximises.
    """
    if linear.maximise:
        raise ValueError("a program that maximises has no lower bound; negate its cost")
    y = _usable(linear, multipliers)
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = _reduced_costs(linear, y)
        short = np.where(np.isinf(linear.column_upper) & (low < 0), -low, 0.0)
        over = np.where(np.isinf(linear.column_lower) & (high > 0), high, 0.0)
        excess = np.maximum(short, over)
        if excess.any():
            cost = np.where(short > 0, linear.cost, -linear.cost)[excess > 0].clip(0.0)
            share = float((cost / (cost + excess[excess > 0])).min())
            y = _usable(linear, y * (share * (1 - (len(y) + 8) * EPS)))
            low, high = _reduced_costs(linear, y)
        terms = np.concatenate([_at_sides(linear, y), _least_in_box(linear, low, high)])
    if not np.isfinite(terms).all():
        return -math.inf
    total = math.fsum([linear.offset, *terms.tolist()])
    error = EPS * math.fsum(np.abs(terms).tolist()) + UNDERFLOW
    return math.nextafter(total - error, -math.inf)


def refuted(linear: Linear, multipliers: Floats) -> bool:
    """Whether the multipliers prove that no x keeps the rows and the box (Farkas).

    Parameters
    ----------
    multipliers
        Shape (m,), such as HiGHS's dual ray.
    """
    nothing = replace(linear, cost=np.zeros(len(linear.cost)), offset=0.0, maximise=False)
    return dual_bound(nothing, multipliers) > 0


def _usable(linear: Linear, multipliers: Floats) -> Floats:
    """Return the multipliers with 0 where they are too small, or their side is open."""
    y = np.where(np.abs(multipliers) >= LEAST_MULTIPLIER, multipliers, 0.0)  # also where NaN
    side = np.where(y > 0, linear.row_lower, linear.row_upper)
    return np.where(np.isfinite(y) & np.isfinite(side), y, 0.0)


def _reduced_costs(linear: Linear, y: Floats) -> tuple[Floats, Floats]:
    """Return numbers below and above c − yᵀA, by column."""
    by_row = linear.matrix.T
    size = abs(by_row) @ np.abs(y)
    entries = np.diff(linear.matrix.indptr)
    reduced = linear.cost - by_row @ y
    error = (entries + 3) * EPS * (np.abs(linear.cost) + size) + UNDERFLOW
    # Exact where no row plays a part.
    error = np.where((abs(by_row) @ (y != 0).astype(np.float64)) > 0, error, 0.0)
    return reduced - error, reduced + error


def _at_sides(linear: Linear, y: Floats) -> Floats:
    side = np.where(y > 0, linear.row_lower, linear.row_upper)
    return np.where(y != 0, side, 0.0) * y


def _least_in_box(linear: Linear, low: Floats, high: Floats) -> Floats:
    """Return the least of d·x for d between `low` and `high` and x in the box, by column.

    It is least at corners. An open end counts where d may have the wrong sign, as −inf.
    """
    least = np.full(len(low), np.inf)
    for end, wrong in ((linear.column_lower, high > 0), (linear.column_upper, low < 0)):
        closed = np.isfinite(end)
        corner = np.where(closed, end, 0.0)
        at_end = np.minimum(low * corner, high * corner)
        least = np.minimum(least, np.where(closed, at_end, np.where(wrong, -np.inf, np.inf)))
    return np.where(np.isposinf(least), 0.0, least)  # both ends open, d = 0
