"""Small random integer programs, some with numbers of all sizes, and their solutions, exactly."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from scipy.sparse import csc_array

from stagecut.formulations.linear import Linear

Point = tuple[Fraction, ...]
Row = list[Fraction]


def random_program(seed: int, *, wide: bool = False, continuous: int = 0) -> Linear:
    """Return a program with up to five whole-number columns; the same for the same seed.

    Sides are near what some point takes, a few of them exactly there, so that some programs have
    solutions and some have none.

    Parameters
    ----------
    wide
        Entries from 1e-12 to 1e12: by row, by column, or each for itself.
    continuous
        Further columns, between 0 and 1 or so.
    """
    rng = np.random.default_rng([seed, int(wide), continuous])
    whole = int(rng.integers(1, 6 - continuous))
    n, m = whole + continuous, int(rng.integers(1, 6))
    matrix = np.round(rng.normal(size=(m, n)) * 3) * (rng.random((m, n)) < 0.7)
    if rng.random() < 0.4:
        matrix = matrix * rng.random((m, n))
    if wide:
        shape = [(m, 1), (1, n), (m, n)][int(rng.integers(3))]
        matrix = matrix * 10.0 ** rng.integers(-12, 13, shape)
    lower = rng.integers(-2, 1, n).astype(np.float64)
    upper = lower + rng.integers(0, 4, n)
    point = np.array([rng.integers(a, b + 1) for a, b in zip(lower, upper, strict=True)])
    share = rng.choice([0.0, 0.0, 1e-9, 0.1, 1.0], m)
    side = matrix @ point + rng.integers(-1, 2, m) * np.abs(matrix).max(axis=1) * share
    kind = rng.integers(0, 3, m)
    return Linear(
        cost=np.round(rng.normal(size=n) * 3, int(rng.integers(0, 3))),
        column_lower=lower,
        column_upper=upper,
        integer=np.arange(n) < whole,
        matrix=csc_array(matrix),
        row_lower=np.where(kind != 1, side, -np.inf),
        row_upper=np.where(kind != 0, side, np.inf),
        offset=float(rng.choice([0.0, 1.5])),
    )


def loosened(linear: Linear, share: float) -> Linear:
    """Return the program with rows that may be broken by a share of their largest terms."""
    ends = np.maximum(np.abs(linear.column_lower), np.abs(linear.column_upper))
    size = abs(linear.matrix) @ ends
    sides = [np.where(np.isfinite(s), np.abs(s), 0.0) for s in (linear.row_lower, linear.row_upper)]
    margin = share * np.maximum(size, np.maximum(*sides))
    return replace(linear, row_lower=linear.row_lower - margin, row_upper=linear.row_upper + margin)


def solutions(linear: Linear) -> list[tuple[Fraction, Point]]:
    """Return objective and point of the best solution for each value of the whole-number columns.

    In rational numbers; up to two continuous columns, whose best values are at a vertex.
    """
    rows = [[Fraction(a) for a in row] for row in linear.matrix.toarray().tolist()]
    cost = [Fraction(c) for c in linear.cost.tolist()]
    ranges = [
        range(int(a), int(b) + 1) if whole else [None]
        for a, b, whole in zip(
            linear.column_lower.tolist(),
            linear.column_upper.tolist(),
            linear.integer.tolist(),
            strict=True,
        )
    ]
    found = []
    for values in itertools.product(*ranges):
        points = _vertices(linear, rows, values)
        best = [(_dot(cost, x), x) for x in points if keeps(linear, rows, x)]
        if best:
            objective, x = min(best)
            found.append((objective + Fraction(linear.offset), x))
    return sorted(found)


def keeps(linear: Linear, rows: list[Row], x: Point) -> bool:
    """Whether a point is in the box and keeps the rows."""
    ends = zip(linear.column_lower.tolist(), x, linear.column_upper.tolist(), strict=True)
    if not all(low <= value <= high for low, value, high in ends):
        return False
    for row, low, high in zip(
        rows, linear.row_lower.tolist(), linear.row_upper.tolist(), strict=True
    ):
        if not low <= _dot(row, x) <= high:
            return False
    return True


def _vertices(linear: Linear, rows: list[Row], values: tuple[int | None, ...]) -> list[Point]:
    """Return the points where as many rows and ends meet as there are values left open."""
    base = [Fraction(v) if v is not None else Fraction(0) for v in values]
    free = [j for j, v in enumerate(values) if v is None]
    if not free:
        return [tuple(base)]
    equations = []
    for row, *sides in zip(rows, linear.row_lower.tolist(), linear.row_upper.tolist(), strict=True):
        part = [row[j] for j in free]
        equations += [(part, Fraction(s) - _dot(row, base)) for s in sides if math.isfinite(s)]
    for i, j in enumerate(free):
        unit = [Fraction(int(i == k)) for k in range(len(free))]
        equations += [
            (unit, Fraction(float(end[j]))) for end in (linear.column_lower, linear.column_upper)
        ]
    points = []
    for chosen in itertools.combinations(equations, len(free)):
        solved = _cramer([a for a, _ in chosen], [b for _, b in chosen])
        if solved is not None:
            point = list(base)
            for j, value in zip(free, solved, strict=True):
                point[j] = value
            points.append(tuple(point))
    return points


def _cramer(a: list[Row], b: Row) -> Row | None:
    if len(a) == 1:
        return [b[0] / a[0][0]] if a[0][0] else None
    (p, q), (r, s) = a
    det = p * s - q * r
    return [(b[0] * s - q * b[1]) / det, (p * b[1] - b[0] * r) / det] if det else None


def _dot(row: Row, x: Row | Point) -> Fraction:
    return sum((a * v for a, v in zip(row, x, strict=True) if a and v), Fraction(0))
