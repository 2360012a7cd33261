"""A basis of a small linear program evaluated in rational numbers: exact point, exact bound."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ....formulations.linear import Linear
from .relaxation import Relaxation

#: Largest system of equations that is solved in rational numbers.
LARGEST_SYSTEM = 80

Row = dict[int, Fraction]


@dataclass(frozen=True, eq=False)
class ExactBasis:
    """What a basis says without rounding.

    Parameters
    ----------
    x
        The point, by column; None if it breaks a row or a bound.
    bound
        cost·x + offset is not below this for any x within rows and box; None if the basis gives
        no bound.
    """

    x: list[Fraction] | None
    bound: Fraction | None


def evaluate(linear: Linear, relaxation: Relaxation) -> ExactBasis | None:
    """Return what the basis of a relaxation says exactly; None if it is too large or singular."""
    tight = np.flatnonzero(~relaxation.basic_rows).tolist()
    basic = np.flatnonzero(relaxation.basic_columns).tolist()
    if relaxation.x is None or len(tight) != len(basic) or len(basic) > LARGEST_SYSTEM:
        return None
    by_row = linear.matrix.tocsr()
    rows: list[Row] = [
        {
            int(j): Fraction(a)
            for j, a in zip(
                by_row.indices[by_row.indptr[i] : by_row.indptr[i + 1]],
                by_row.data[by_row.indptr[i] : by_row.indptr[i + 1]].tolist(),
                strict=True,
            )
            if a
        }
        for i in range(len(linear.row_lower))
    ]
    x = _point(linear, relaxation, rows, tight, basic)
    y = _multipliers(linear, rows, tight, basic)
    if x is None or y is None:
        return None
    return ExactBasis(
        x=x if keeps(linear, rows, x) else None,
        bound=_bound(linear, rows, dict(zip(tight, y, strict=True))),
    )


def keeps(linear: Linear, rows: list[Row], x: list[Fraction]) -> bool:
    """Whether a point is within rows and box."""
    values = [sum((a * x[j] for j, a in row.items()), Fraction(0)) for row in rows]
    sides = zip(linear.row_lower.tolist(), values, linear.row_upper.tolist(), strict=True)
    ends = zip(linear.column_lower.tolist(), x, linear.column_upper.tolist(), strict=True)
    return all(low <= value <= high for low, value, high in [*sides, *ends])


def _point(
    linear: Linear, relaxation: Relaxation, rows: list[Row], tight: list[int], basic: list[int]
) -> list[Fraction] | None:
    """Return the point where the tight rows hold as equations, other columns at an end."""
    assert relaxation.x is not None
    box = zip(linear.column_lower.tolist(), linear.column_upper.tolist(), strict=True)
    x = [_nearer(value, *ends) for value, ends in zip(relaxation.x.tolist(), box, strict=True)]
    among = set(basic)
    system, right = [], []
    for i in tight:
        row = rows[i]
        value = sum(a * relaxation.x[j] for j, a in row.items())
        side = _nearer(float(value), float(linear.row_lower[i]), float(linear.row_upper[i]))
        system.append({j: a for j, a in row.items() if j in among})
        right.append(side - sum((a * x[j] for j, a in row.items() if j not in among), Fraction(0)))
    solved = _solve(system, right)
    if solved is None:
        return None
    for j, value in solved.items():
        x[j] = value
    return x


def _nearer(value: float, low: float, high: float) -> Fraction:
    """Return the end that a value is nearer to; 0 without an end."""
    ends = [end for end in (low, high) if np.isfinite(end)]
    return Fraction(min(ends, key=lambda end: abs(end - value), default=0.0))


def _multipliers(
    linear: Linear, rows: list[Row], tight: list[int], basic: list[int]
) -> list[Fraction] | None:
    """Return the multipliers of the tight rows that leave basic columns a reduced cost of 0."""
    place = {i: k for k, i in enumerate(tight)}
    system: dict[int, Row] = {j: {} for j in basic}
    for i, k in place.items():
        for j, a in rows[i].items():
            if j in system:
                system[j][k] = a
    solved = _solve(list(system.values()), [Fraction(float(linear.cost[j])) for j in basic])
    return None if solved is None else [solved[k] for k in range(len(tight))]


def _bound(linear: Linear, rows: list[Row], y: dict[int, Fraction]) -> Fraction | None:
    """Return the bound of `safe_bound.dual_bound`, exactly; None if it is −∞."""
    total = Fraction(linear.offset)
    reduced = [Fraction(c) for c in linear.cost.tolist()]
    for i, multiplier in y.items():
        side = float(linear.row_lower[i] if multiplier > 0 else linear.row_upper[i])
        if not multiplier or not np.isfinite(side):
            continue
        total += multiplier * Fraction(side)
        for j, a in rows[i].items():
            reduced[j] -= multiplier * a
    for j, d in enumerate(reduced):
        end = float(linear.column_lower[j] if d > 0 else linear.column_upper[j])
        if d:
            if not np.isfinite(end):
                return None
            total += d * Fraction(end)
    return total


def _solve(system: list[Row], right: list[Fraction]) -> Row | None:
    """Return the solution of as many equations as unknowns by elimination; None if singular."""
    open_rows = [(dict(row), value) for row, value in zip(system, right, strict=True)]
    done: list[tuple[int, Row, Fraction]] = []
    while open_rows:
        row, value = open_rows.pop(min(range(len(open_rows)), key=lambda i: len(open_rows[i][0])))
        if not row:
            return None
        pivot = next(iter(row))
        first = row.pop(pivot)
        row = {j: a / first for j, a in row.items()}
        value /= first
        done.append((pivot, row, value))
        for i, (other, edge) in enumerate(open_rows):
            factor = other.pop(pivot, None)
            if factor is None:
                continue
            for j, a in row.items():
                left = other.get(j, Fraction(0)) - factor * a
                if left:
                    other[j] = left
                else:
                    other.pop(j, None)
            open_rows[i] = (other, edge - factor * value)
    x: Row = {}
    for pivot, row, value in reversed(done):
        x[pivot] = value - sum((a * x[j] for j, a in row.items()), Fraction(0))
    return x
