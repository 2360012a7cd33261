"""A solver that fails ends no plan, and a note says what is missing for it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import highspy
import numpy as np
import pyomo.environ as pyo
import pytest
from cases import random_case
from conformance import chain
from pyomo.opt import TerminationCondition

from stagecut import Cluster, DeviceKind, Limits, PipelineJob, Result, Throughput, solve
from stagecut.formulations import linear
from stagecut.formulations.linear import MatrixEntries, SolverError, least_cost
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
        "formulations.linear",
        "solvers.core.proofs",
        "solvers.throughput.column_generation.column_generation",
    ):
        monkeypatch.setattr(f"stagecut.{module}.run_here", refused)


def told(result: Result) -> bool:
    return any("HiGHS ended with 'Memory limit reached'" in note for note in result.notes)


@pytest.mark.usefixtures("_no_highs")
@pytest.mark.parametrize("method", ["greedy", "column-generation", "milp"])
def test_a_plan_without_linear_programs_says_so(method: str) -> None:
    workload = chain([1.0] * 12)
    problem = Throughput(split="noncontiguous")
    result = solve(workload, FAST_AND_SLOW, problem, method=method, limits=Limits(nodes=4))
    assert told(result)
    assert result.plan is not None
    assert result.bound > 0


@pytest.mark.usefixtures("_no_highs")
def test_an_iteration_without_linear_programs_says_so() -> None:
    workload, cluster = random_case(2, max_cores=0)
    result = solve(workload, cluster, PipelineJob(3, "1f1b"), workers=1)
    assert result.plan is not None
    assert told(result) or result.status == "optimal"


def test_a_linear_program_without_an_optimum_is_no_answer() -> None:
    none = np.zeros(0)
    empty = MatrixEntries(none.astype(np.int64), none.astype(np.int64), none)
    with pytest.raises(SolverError, match="Unbounded"):
        least_cost(np.array([-1.0]), np.array([0.0]), empty, none, none)
    one = MatrixEntries(np.array([0]), np.array([0]), np.array([1.0]))
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
        linear.run_here(highs)  # type: ignore[arg-type]
    assert highs.asked == ["run", ("threads", 0), "run"]


def pretended(monkeypatch: pytest.MonkeyPatch, ended: object, told: str = "") -> Result:
    """What comes of a solver that ends so with the first values that it finds; or fails so."""

    class Pretending:
        options: dict[str, object] = {}  # noqa: RUF012

        def __contains__(self, _name: str) -> bool:
            return True

        def __call__(self, _name: str) -> Pretending:
            return self

        def available(self, **_options: bool) -> bool:
            return True

        def solve(self, model: object, **_options: object) -> object:
            if isinstance(ended, Exception):
                raise ended
            solver = SimpleNamespace(termination_condition=ended, message=told)
            solution: list[object] = []
            if ended in (TerminationCondition.feasible, TerminationCondition.other):
                best = real("appsi_highs").solve(model)
                assert best.solver.termination_condition == TerminationCondition.optimal
                model.solutions = SimpleNamespace(load_from=lambda _results: None)
                solution = [model]
            problem = SimpleNamespace(lower_bound=-math.inf)
            return SimpleNamespace(solver=solver, solution=solution, problem=problem)

    real = other_solvers.pyo.SolverFactory
    monkeypatch.setattr(other_solvers.pyo, "SolverFactory", Pretending())
    workload = chain([1.0, 2.0, 4.0])
    return solve(workload, FAST_AND_SLOW, method="milp:scip", limits=Limits(gap=0.01))


@pytest.mark.parametrize("ended", sorted(other_solvers.FAILURES, key=str))
def test_how_another_solver_fails_is_told_and_is_no_time_limit(
    monkeypatch: pytest.MonkeyPatch, ended: TerminationCondition
) -> None:
    result = pretended(monkeypatch, ended)
    assert any(f"solver scip ended with '{ended}'" in note for note in result.notes)
    assert result.limit == "none"


@pytest.mark.parametrize("ended", sorted(set(TerminationCondition), key=str))
def test_no_end_of_another_solver_but_of_time_is_called_so(
    monkeypatch: pytest.MonkeyPatch, ended: TerminationCondition
) -> None:
    result = pretended(monkeypatch, ended)
    assert (result.limit == "time") == (ended == TerminationCondition.maxTimeLimit)


@pytest.mark.parametrize(("told", "answer"), [("gap limit", True), ("memory limit", False)])
def test_the_gap_asked_for_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, told: str, answer: bool
) -> None:
    """SCIP's end at the gap is ``other`` to Pyomo; it was called a limit of time."""
    result = pretended(monkeypatch, TerminationCondition.other, f"{told} reached")
    assert result.limit == "none"
    assert any("ended with 'other'" in note for note in result.notes) != answer


class LicenceError(Exception):
    """As `gurobipy.GurobiError`: of no class that anything else has."""


@pytest.mark.parametrize("text", ["Model too large for size-limited license; visit us\nmore", ""])
def test_what_an_interface_raises_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    result = pretended(monkeypatch, LicenceError(text))
    of_licence = "its licence does not cover this program: "
    told = of_licence + text.splitlines()[0] if text else "LicenceError"
    assert any(note.endswith(f"solver scip: {told}") for note in result.notes), result.notes


def test_glpk_says_whether_it_reached_the_gap_or_the_time_limit() -> None:
    if not pyo.SolverFactory("glpk").available(exception_flag=False):
        pytest.skip("glpk is not installed")
    workload, cluster = random_case(3, max_nodes=8)
    result = solve(workload, cluster, method="milp:glpk", limits=Limits(gap=0.5))
    assert result.limit == "none"
    assert result.gap <= 0.5
