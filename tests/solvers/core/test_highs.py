"""The HiGHS adapter: compiled form, starts, limits, callbacks; a canary for the pinned release."""

from __future__ import annotations

import ctypes
import math
import threading
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import highspy
import numpy as np
import pyomo.environ as pyo
import pytest
from every_solver import claimed, incumbent_of
from scipy.sparse import csc_array
from sweep import case_of

from stagecut import Limits
from stagecut.formulations.linear import Linear
from stagecut.instances import StagecutError
from stagecut.solvers.core import highs
from stagecut.solvers.core.compiled_model import compile_model
from stagecut.solvers.core.highs import run_highs
from stagecut.solvers.core.search import Search


def new_search(**limits: float | int | None) -> Search[object]:
    return Search(Limits(**limits), lambda _: 0.0)


def knapsack(n: int = 30, seed: int = 0) -> pyo.ConcreteModel:
    """A market-split problem: quick to state, slow to solve."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 100, (4, n))
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(n), domain=pyo.Binary)
    m.over = pyo.Var(range(4), bounds=(0, None))
    m.under = pyo.Var(range(4), bounds=(0, None))
    m.split = pyo.Constraint(
        range(4),
        rule=lambda m, i: (
            pyo.quicksum(float(rows[i, j]) * m.x[j] for j in range(n)) + m.under[i] - m.over[i]
            == float(rows[i].sum() // 2)
        ),
    )
    m.miss = pyo.Objective(expr=pyo.quicksum(m.over.values()) + pyo.quicksum(m.under.values()))
    return m


def exact_optimum(linear: Linear) -> float:
    """Optimum of a small pure integer program with bounded columns, by trying every point."""
    ranges = [
        np.arange(low, high + 1)
        for low, high in zip(linear.column_lower, linear.column_upper, strict=True)
    ]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*ranges)], axis=1)
    activity = points @ linear.matrix.toarray().T
    fine = (activity >= linear.row_lower - 1e-9) & (activity <= linear.row_upper + 1e-9)
    values = points[fine.all(axis=1)] @ linear.cost + linear.offset
    return float(values.min())


@pytest.mark.parametrize("seed", range(40))
def test_canary_random_integer_programs_are_solved_right(seed: int) -> None:
    """HiGHS 1.14.0 gives wrong optima for programs as small as these: watch the pin."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    inside = rng.integers(0, 4, n)
    rows = rng.integers(-9, 10, (m, n)).astype(float) * rng.choice([1.0, 0.1, 1e3])
    at = rows @ inside
    linear = Linear(
        cost=rng.integers(-20, 21, n).astype(float) / 10,
        column_lower=np.zeros(n),
        column_upper=np.full(n, 4.0),
        integer=np.ones(n, np.bool_),
        matrix=csc_array(rows),
        row_lower=np.where(rng.random(m) < 0.5, at - rng.integers(0, 5, m), -math.inf),
        row_upper=np.where(rng.random(m) < 0.7, at + rng.integers(0, 5, m), math.inf),
        offset=float(rng.integers(-5, 6)),
    )
    outcome = run_highs(linear, new_search())
    assert outcome.status == "optimal"
    assert outcome.objective == pytest.approx(exact_optimum(linear), abs=1e-6)
    assert outcome.bound == pytest.approx(outcome.objective, abs=1e-5)


@pytest.mark.parametrize(
    ("build", "right"),
    [
        # Knapsack equality with a large coefficient: 20 = 4·5.
        (lambda m: [m.x * 7 + m.y * 5 == 20, m.z >= m.x + 16], 20.0),
        # Big-M link: y must be on for x to be used.
        (lambda m: [m.x <= 1000 * m.b, m.x + m.y >= 3.5, m.z >= 5 * m.b + m.y], 4.0),
        # Ranged row and a free column.
        (lambda m: [pyo.inequality(8, m.x + 2 * m.y, 9), m.z >= 3 * m.x + 2 * m.y - 1], 7.0),
    ],
)
def test_canary_known_answers(build, right: float) -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.NonNegativeIntegers, bounds=(0, 10))
    m.y = pyo.Var(domain=pyo.NonNegativeIntegers, bounds=(0, 10))
    m.b = pyo.Var(domain=pyo.Binary)
    m.z = pyo.Var(bounds=(None, 1e5))
    m.rows = pyo.ConstraintList()
    for row in build(m):
        m.rows.add(row)
    m.o = pyo.Objective(expr=m.z + 0 * m.b + (m.y if right == 20.0 else 0))
    compiled = compile_model(m)
    outcome = run_highs(compiled.linear, new_search())
    assert outcome.status == "optimal"
    assert outcome.objective == pytest.approx(right, abs=1e-6)


def test_the_pin_is_the_release_that_was_checked() -> None:
    assert highspy.Highs().version() == "1.12.0"


def test_compiling_keeps_offset_ranges_and_variables_that_occur_nowhere_and_minimises() -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers, bounds=(0, 9))
    m.nowhere = pyo.Var(bounds=(2, 5))
    m.fixed = pyo.Var(initialize=3)
    m.fixed.fix()
    m.row = pyo.Constraint(expr=pyo.inequality(1, m.x + m.fixed, 7.5))
    m.o = pyo.Objective(expr=2 * m.x + 10 + m.fixed, sense=pyo.maximize)
    compiled = compile_model(m)
    outcome = run_highs(compiled.linear, new_search())
    assert outcome.objective == pytest.approx(-21)
    assert outcome.bound == pytest.approx(-21)
    values = [compiled.value(v, outcome.x) for v in (m.x, m.nowhere, m.fixed)]
    assert values == pytest.approx([4, 2, 3])
    assert compiled.column(m.nowhere) is None


def test_a_row_that_cannot_hold_is_infeasible_not_a_crash() -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(bounds=(0, 1))
    m.f = pyo.Var(initialize=2)
    m.f.fix()
    m.impossible = pyo.Constraint(expr=m.f <= 1)
    m.o = pyo.Objective(expr=m.x)
    compiled = compile_model(m)
    assert compiled.linear is None
    assert "impossible" in compiled.why_infeasible


def test_infeasible_and_unbounded_programs() -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.NonNegativeIntegers)
    m.o = pyo.Objective(expr=m.x)
    m.c = pyo.Constraint(expr=pyo.inequality(0.2, m.x, 0.8))
    outcome = run_highs(compile_model(m).linear, new_search())
    assert outcome.status == "infeasible"
    assert outcome.x is None
    m.c.deactivate()
    m.o.sense = pyo.maximize
    m.d = pyo.Constraint(expr=m.x >= 2)
    with pytest.raises(StagecutError, match="unbounded"):
        run_highs(compile_model(m).linear, new_search())


def test_a_partial_start_is_completed_and_used() -> None:
    m = knapsack()
    compiled = compile_model(m)
    start = compiled.start([(m.x[j], float(j % 2)) for j in range(30)])
    found: list[float] = []
    outcome = run_highs(
        compiled.linear,
        new_search(nodes=1),
        start=start,
        on_incumbent=lambda x: found.append(float(compiled.linear.cost @ x)),
    )
    rest = replace(
        compiled.linear,
        column_lower=np.where(np.isnan(start), compiled.linear.column_lower, start),
        column_upper=np.where(np.isnan(start), compiled.linear.column_upper, start),
    )
    assert found[0] == pytest.approx(run_highs(rest, new_search()).objective)
    assert outcome.objective <= found[0]


def test_an_infeasible_start_is_ignored() -> None:
    m = knapsack(12)
    m.one = pyo.Constraint(expr=m.x[0] + m.x[1] == 1)
    compiled = compile_model(m)
    start = compiled.start([(m.x[j], float(j < 2)) for j in range(12)])
    outcome = run_highs(compiled.linear, new_search(), start=start)
    assert outcome.status == "optimal"
    assert outcome.objective == pytest.approx(run_highs(compiled.linear, new_search()).objective)


def test_limits_by_nodes_give_the_same_every_time() -> None:
    linear = compile_model(knapsack()).linear
    outcomes = [run_highs(linear, new_search(nodes=200, seed=7)) for _ in range(2)]
    assert outcomes[0].limit == "nodes"
    assert outcomes[0].status == "feasible"
    assert outcomes[0].objective == outcomes[1].objective
    assert outcomes[0].bound == outcomes[1].bound


def test_the_deadline_ends_a_solve_with_what_it_has() -> None:
    linear = compile_model(knapsack(60)).linear
    outcome = run_highs(linear, new_search(seconds=0.5))
    assert outcome.status == "feasible"
    assert outcome.limit in ("time", "stopped")
    assert outcome.bound <= outcome.objective


def test_an_interrupt_ends_a_solve_with_what_it_has() -> None:
    search = new_search()
    threading.Timer(0.3, search.interrupt).start()
    outcome = run_highs(compile_model(knapsack(60)).linear, search)
    assert outcome.status == "feasible"
    assert outcome.limit == "stopped"


def test_a_solve_that_does_not_stop_is_left_with_what_it_has_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(highs, "PATIENCE_S", -1.0)
    linear = compile_model(knapsack(60)).linear
    outcome = run_highs(linear, new_search(), on_incumbent=lambda _: True)
    assert (outcome.status, outcome.limit) == ("feasible", "stopped")
    assert outcome.objective == pytest.approx(float(linear.cost @ outcome.x))


def test_what_a_callback_raises_ends_the_solve_and_reaches_the_caller() -> None:
    def broken(_: object) -> None:
        raise KeyError("from the callback")

    linear = compile_model(knapsack(60)).linear
    with pytest.raises(KeyError, match="from the callback"):
        run_highs(linear, new_search(), on_incumbent=broken)


def test_a_callback_that_has_enough_ends_the_solve() -> None:
    bounds: list[float] = []
    outcome = run_highs(
        compile_model(knapsack(60)).linear,
        new_search(),
        on_incumbent=lambda _: True,
        on_bound=bounds.append,
    )
    assert outcome.limit == "stopped"
    assert bounds == sorted(bounds)


def test_other_threads_settings_in_the_process_do_not_matter() -> None:
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.run()
    outcome = run_highs(compile_model(knapsack(12)).linear, new_search())
    assert outcome.status == "optimal"


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(StagecutError, match="no_such_option"):
        run_highs(compile_model(knapsack(8)).linear, new_search(), options={"no_such_option": 1})


def test_infeasible_is_confirmed_without_presolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with an unbounded column that is wrongly called infeasible is solved after all."""
    linear = Linear(
        cost=np.array([1.0, 2.0, 3.0, 10.0]),
        column_lower=np.zeros(4),
        column_upper=np.array([5.0, 1.0, 7.0, math.inf]),
        integer=np.array([True, True, True, False]),
        matrix=csc_array(np.array([[1.0, 1, 1, 0], [0, 0, 1, 1]])),
        row_lower=np.array([8.0, 3.5]),
        row_upper=np.array([8.0, math.inf]),
    )
    read, calls = highs._outcome, []

    def first_is_wrong(*given: object) -> highs.Outcome:
        calls.append(given)
        if len(calls) == 1:
            return highs.Outcome("infeasible", "none", None, math.inf, math.inf)
        return read(*given)

    monkeypatch.setattr(highs, "_outcome", first_is_wrong)
    seen: list[list[float]] = []
    outcome = run_highs(linear, new_search(), on_incumbent=lambda x: seen.append(x.tolist()))
    assert len(calls) == 2
    assert outcome.status == "optimal"
    assert outcome.x.tolist() == pytest.approx([4, 0, 4, 0])
    assert seen[-1] == pytest.approx([4, 0, 4, 0])


def test_what_highs_prints_itself_reaches_no_output(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.12 prints by C when it repairs a solution; what Python prints meanwhile is kept."""
    case = case_of("ranges throughput contiguous", 8)
    incumbent, optimum = incumbent_of(case), case.optimum()

    def printed() -> str:
        claimed(case, "throughput.milp.compact", optimum, incumbent, 1.3)
        ctypes.CDLL(None).fflush(None)
        return capfd.readouterr().out

    with highs._without_own_line(), highs._without_own_line():
        ctypes.CDLL(None).puts(b"discarded")
        print("kept")
    ctypes.CDLL(None).puts(b"as before")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "kept\nas before\n"
    assert printed() == ""
    with patch.object(highs, "_without_own_line", nullcontext):
        assert "HighsMipSolverData::" in printed()  # else this case shows nothing
