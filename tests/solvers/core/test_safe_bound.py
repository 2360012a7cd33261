"""Bounds by multipliers against solutions in rational numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exact_programs import random_program, solutions
from scipy.sparse import csc_array

from stagecut.formulations.linear import Linear
from stagecut.solvers.core.proofs import dual_bound, refuted, relax


def over(entries: list[list[float]], **changes: object) -> Linear:
    """min x + y, both at least 0, with rows ≥ 1."""
    matrix = csc_array(np.array(entries))
    m, n = matrix.shape
    linear = Linear(
        cost=np.ones(n),
        column_lower=np.zeros(n),
        column_upper=np.full(n, np.inf),
        integer=np.zeros(n, np.bool_),
        matrix=matrix,
        row_lower=np.ones(m),
        row_upper=np.full(m, np.inf),
    )
    return replace(linear, **changes)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_no_multipliers_bound_above_the_optimum(seed: int, wide: bool) -> None:
    linear = random_program(seed, wide=wide, continuous=seed % 3)
    found = solutions(linear)
    optimum = found[0][0] if found else math.inf
    rng = np.random.default_rng(seed)
    draws = [rng.normal(size=len(linear.row_lower)) * 10.0**e for e in range(-12, 13, 4)]
    best = relax(linear).multipliers
    for y in [*draws, *([] if best is None else [best, -best, best * (1 + 1e-9)])]:
        assert dual_bound(linear, y) <= optimum
        assert not (refuted(linear, y) and found)


@pytest.mark.parametrize("seed", range(60))
def test_the_multipliers_of_the_relaxation_give_its_optimum(seed: int) -> None:
    linear = random_program(seed, continuous=2)
    linear = replace(linear, integer=np.zeros(len(linear.cost), np.bool_))
    relaxation = relax(linear)
    assert relaxation.multipliers is not None
    if relaxation.x is None:
        assert refuted(linear, relaxation.multipliers)
    else:
        optimum = float(linear.cost @ relaxation.x) + linear.offset
        assert dual_bound(linear, relaxation.multipliers) == pytest.approx(optimum, abs=1e-9)


def test_multipliers_shrink_where_a_column_has_no_bound() -> None:
    linear = over([[3.0, 1.0]])
    assert dual_bound(linear, np.array([1 / 3])) == pytest.approx(1 / 3, rel=1e-12)
    assert dual_bound(linear, np.array([1.0])) == pytest.approx(1 / 3, rel=1e-12)
    assert dual_bound(linear, np.array([1.0])) <= Fraction(1, 3)


def test_no_bound_where_a_cost_falls_without_end() -> None:
    linear = over([[3.0, 1.0]], cost=np.array([1.0, -1.0]))
    assert dual_bound(linear, np.array([0.1])) == -math.inf


def test_open_sides_and_odd_numbers_count_as_no_multiplier() -> None:
    linear = over([[3.0, 1.0], [1.0, 1.0]])
    plain = dual_bound(linear, np.array([0.2, 0.0]))
    assert plain == pytest.approx(0.2)
    for odd in (-1.0, math.nan, math.inf, 1e-300):
        assert dual_bound(linear, np.array([0.2, odd])) == plain


def test_what_rounding_may_hold_counts_against_the_bound() -> None:
    # 0.1 + 0.2 is above 0.3 in floating point: x1 = x2 = x3 = 1 is no exact solution of the row
    # but is of the objective; the sum of the terms must not be claimed.
    linear = over([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    linear = replace(linear, cost=np.array([0.1, 0.2, 1e17]))
    bound = dual_bound(linear, linear.cost)
    assert Fraction(bound) <= Fraction(0.1) + Fraction(0.2) + 10**17
