"""A solver that fails ends no plan, and a note says what is missing for it."""

from __future__ import annotations

from types import SimpleNamespace

import highspy
import numpy as np
import pytest
from cases import random_case
from conformance import chain
from pyomo.opt import TerminationCondition

from stagecut import Cluster, DeviceKind, Iteration, Limits, Result, Throughput, solve
from stagecut.formulations import linear_program
from stagecut.formulations.linear_program import Entries, SolverError, least_cost
from stagecut.solvers.core import other_solvers

FAST_AND_SLOW = Cluster(
    (
        DeviceKind("slow", 1, times="accelerator"),
        DeviceKind("fast", 1, times="accelerator", slowdown=1 / 3),
    )
)


@pytest.fixture
def _no_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let HiGHS refuse every linear program, as it does where its memory is used up."""

    def refused(_highs: highspy.Highs) -> None:
        raise SolverError("HiGHS ended with 'Memory limit reached'")

    for module in (
        "formulations.linear_program",
        "solvers.core.proofs.relaxation",
        "solvers.throughput.column_generation.price_model",
    ):
        monkeypatch.setattr(f"stagecut.{module}.run_here", refused)


def told(result: Result) -> bool:
    return any("HiGHS ended with 'Memory limit reached'" in note for note in result.notes)


@pytest.mark.usefixtures("_no_highs")
@pytest.mark.parametrize("method", ["greedy", "column-generation", "milp"])
def test_a_plan_without_linear_programs_says_so(method: str) -> None:
    workload = chain([1.0] * 12)
    problem = Throughput(split="noncontiguous")
    result = solve(workload, FAST_AND_SLOW, problem, method=method, limits=Limits(nodes=20))
    assert told(result)
    assert result.plan is not None
    assert result.bound > 0


@pytest.mark.usefixtures("_no_highs")
def test_an_iteration_without_linear_programs_says_so() -> None:
    workload, cluster = random_case(2, max_cores=0)
    result = solve(workload, cluster, Iteration(3, "1f1b"), workers=1)
    assert result.plan is not None
    assert told(result) or result.status == "optimal"


def test_a_linear_program_without_an_optimum_is_no_answer() -> None:
    none = np.zeros(0)
    empty = Entries(none.astype(np.int64), none.astype(np.int64), none)
    with pytest.raises(SolverError, match="Unbounded"):
        least_cost(np.array([-1.0]), np.array([0.0]), empty, none, none)
    one = Entries(np.array([0]), np.array([0]), np.array([1.0]))
    assert least_cost(np.array([1.0]), np.array([0.0]), one, np.array([-2.0]), -np.ones(1)) is None


def test_highs_that_refuses_to_run_is_asked_once_more_and_then_told() -> None:
    class Refusing:
        def __init__(self) -> None:
            self.asked: list[object] = []

        def run(self) -> highspy.HighsStatus:
            self.asked.append("run")
            return highspy.HighsStatus.kError

        def setOptionValue(self, name: str, value: int) -> None:
            self.asked.append((name, value))

        def getModelStatus(self) -> highspy.HighsModelStatus:
            return highspy.HighsModelStatus.kNotset

        def modelStatusToString(self, _status: object) -> str:
            return "Not Set"

    highs = Refusing()
    with pytest.raises(SolverError, match="'Not Set'"):
        linear_program.run_here(highs)  # type: ignore[arg-type]
    assert highs.asked == ["run", ("threads", 0), "run"]


@pytest.mark.parametrize("ended", sorted(other_solvers.FAILURES, key=str))
def test_how_another_solver_fails_is_told_and_is_no_time_limit(
    monkeypatch: pytest.MonkeyPatch, ended: TerminationCondition
) -> None:
    class Failing:
        options: dict[str, object] = {}  # noqa: RUF012

        def __contains__(self, _name: str) -> bool:
            return True

        def __call__(self, _name: str) -> Failing:
            return self

        def available(self, **_options: bool) -> bool:
            return True

        def solve(self, _model: object, **_options: object) -> object:
            solver = SimpleNamespace(termination_condition=ended)
            return SimpleNamespace(solver=solver, solution=[], problem=None)

    monkeypatch.setattr(other_solvers.pyo, "SolverFactory", Failing())
    workload = chain([1.0, 2.0, 4.0])
    result = solve(workload, FAST_AND_SLOW, method="milp", solver="glpk", limits=Limits())
    assert any(f"solver glpk ended with '{ended}'" in note for note in result.notes)
    assert result.limit == "none"
