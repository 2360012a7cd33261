"""What is left of a program for a cutoff keeps every solution up to it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exact_programs import keeps, loosened, random_program, solutions
from scipy.sparse import csc_array

from stagecut.formulations.linear import Linear
from stagecut.solvers.core.tighten import tighten


def two_devices(price: float) -> Linear:
    """min T: in ≥ x1 − x2, 0.3 x1 + 0.5 x2 + price·in ≤ T, x1 + x2 ≥ 1; x1, x2 whole."""
    entries = [[1.0, -1.0, -1.0, 0.0], [0.3, 0.5, price, -1.0], [1.0, 1.0, 0.0, 0.0]]
    return Linear(
        cost=np.array([0.0, 0.0, 0.0, 1.0]),
        column_lower=np.zeros(4),
        column_upper=np.array([1.0, 1.0, 1.0, np.inf]),
        integer=np.array([True, True, False, False]),
        matrix=csc_array(np.array(entries)),
        row_lower=np.array([-np.inf, -np.inf, 1.0]),
        row_upper=np.array([0.0, 0.0, np.inf]),
    )


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(80))
def test_no_solution_up_to_the_cutoff_is_lost(seed: int, wide: bool) -> None:
    linear = random_program(seed, wide=wide, continuous=seed % 3)
    found = solutions(linear)
    middle = float(found[len(found) // 2][0]) if found else 0.0
    for cutoff in (math.inf, middle):
        tight = tighten(linear, cutoff)
        limit = cutoff + 0.99e-9 * abs(cutoff)
        wanted = [(value, x) for value, x in found if value <= limit]
        if tight is None:
            assert not wanted
            continue
        rows = [[Fraction(a) for a in row] for row in tight.matrix.toarray().tolist()]
        left = {_whole(linear, x): value for value, x in solutions(tight)}
        for value, x in wanted:
            if linear.integer.all():
                assert keeps(tight, rows, x)
            assert left[_whole(linear, x)] <= value


def _whole(linear: Linear, x: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    return tuple(value for value, whole in zip(x, linear.integer, strict=True) if whole)


@pytest.mark.parametrize("seed", range(50))
def test_ordinary_programs_stay_what_they_are(seed: int) -> None:
    """Without small entries, what is left has no other solutions than before."""
    linear = random_program(seed, continuous=seed % 3)
    tight = tighten(linear)
    before = {_whole(linear, x): float(value) for value, x in solutions(linear)}
    if tight is None:
        assert not before
        return
    after = {_whole(linear, x): float(value) for value, x in solutions(tight)}
    assert set(after) <= {_whole(linear, x) for _, x in solutions(loosened(linear, 1e-12))}
    assert {x: after[x] for x in before} == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("price", [3.0, 1e8, 1e10, 1e15])
def test_dear_continuous_columns_leave_rows_of_whole_numbers(price: float) -> None:
    tight = tighten(two_devices(price), 1.0)
    assert tight is not None
    assert tight.matrix.toarray().tolist() == [[1, -1, 0, 0], [0.3, 0.5, 0, -1], [1, 1, 0, 0]]
    assert tight.row_lower.tolist() == [-np.inf, -np.inf, 1]
    assert tight.row_upper.tolist() == [0, 0, np.inf]
    assert tight.column_upper[2] == 0


@pytest.mark.parametrize("exact", [False, True])
def test_continuous_columns_of_no_range_leave_rows_with_others(exact: bool) -> None:
    """in + y ≥ x1 − x2 with y ≤ 1 is no row of whole numbers, but in ≤ 1e-8 is not worth a word."""
    linear = two_devices(1e8)
    entries = np.insert(linear.matrix.toarray(), 4, [-1.0, 0.1, 0.0], axis=1)
    linear = replace(
        linear,
        cost=np.append(linear.cost, 0.0),
        column_lower=np.zeros(5),
        column_upper=np.array([1.0, 1.0, 1.0, np.inf, 1.0]),
        integer=np.append(linear.integer, False),
        matrix=csc_array(entries),
    )
    tight = tighten(linear, 1.0, exact=exact)
    assert tight is not None
    assert tight.matrix.toarray()[:, 2].any() == exact
    assert 0 <= tight.row_upper[0] <= 1.01e-8


def test_cheap_columns_stay() -> None:
    tight = tighten(two_devices(0.4), 1.0)
    assert tight is not None
    assert tight.matrix.nnz == two_devices(0.4).matrix.nnz


def test_a_cutoff_below_everything_leaves_nothing() -> None:
    assert tighten(two_devices(1e8), 0.5) is not None  # x2 = 1
    assert tighten(two_devices(1e8), 0.49999) is None


def test_fixed_columns_go_to_the_sides() -> None:
    linear = replace(two_devices(1e8), column_lower=np.array([1.0, 1.0, 0.0, 0.0]))
    tight = tighten(linear, 1.0)
    assert tight is not None
    assert not tight.matrix.toarray()[:, :3].any()
    assert tight.column_lower[3] == pytest.approx(0.8, rel=1e-15)
    assert tight.column_lower[3] <= Fraction(0.3) + Fraction(0.5)


def test_entries_that_a_solver_would_lose_make_rows_say_less() -> None:
    linear = two_devices(1.0)
    entries = linear.matrix.toarray()
    entries[2] = [1e12, 1.0, 0.0, 0.0]
    linear = replace(
        linear, matrix=csc_array(entries), row_lower=np.array([-np.inf, -np.inf, 2e11])
    )
    linear = replace(linear, integer=np.zeros(4, np.bool_))
    tight = tighten(linear)
    assert tight is not None
    assert tight.matrix.toarray()[2].tolist() == [1e12, 0, 0, 0]
    assert 2e11 - 1.001 <= tight.row_lower[2] <= 2e11 - 1


def test_rows_of_tiny_entries_are_scaled_up() -> None:
    linear = two_devices(1.0)
    entries = linear.matrix.toarray()
    entries[2] *= 1e-12
    linear = replace(
        linear, matrix=csc_array(entries), row_lower=np.array([-np.inf, -np.inf, 1e-12])
    )
    tight = tighten(linear)
    assert tight is not None
    row = tight.matrix.toarray()[2]
    assert 0.5 <= row.max() <= 2
    assert tight.row_lower[2] == row[0]
