"""Shardings: every exact method finds what trying everything finds, and verifies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_sharding import least_cost, random_problem, random_program

from stagecut import Limits, Sharding, Workload, evaluate, solve, verify
from stagecut.solvers import METHODS

LIMITS = Limits(seconds=120, nodes=5000)


def cases(first: int, count: int) -> list[tuple[Workload, Sharding, float]]:
    """Programs and problems with their optimum."""
    found = []
    for seed in range(first, first + count):
        rng = np.random.default_rng([seed, 18])
        workload, problem = random_program(rng), random_problem(rng)
        optimum = least_cost(workload, problem)
        if optimum is not None:
            found.append((workload, problem, optimum))
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_elimination_and_programs_find_the_optimum(chunk: int) -> None:
    met = cases(60 * chunk, 60)
    assert len(met) > 30
    for workload, problem, optimum in met:
        for method in ("elimination", "milp", "auto"):
            result = solve(workload, problem=problem, method=method, limits=LIMITS)
            assert result.plan is not None, result.notes
            assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), method
            assert result.status == "optimal", (method, result.bound, result.notes)
            assert result.bound <= optimum * (1 + 1e-6) + 1e-9
            verify(workload, result.plan)


def test_the_compact_program_states_the_same() -> None:
    for workload, problem, optimum in cases(1000, 25):
        result = solve(workload, problem=problem, method="milp-compact", limits=LIMITS)
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("chunk", range(2))
def test_with_a_memory_that_binds(chunk: int) -> None:
    words = set()
    for workload, problem, _ in cases(2000 + 60 * chunk, 40):
        free = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert free is not None
        report = evaluate(workload, free.cluster, problem, free.solution)
        tight = replace(problem, memory_bytes=0.8 * report.memory_bytes)  # type: ignore[attr-defined]
        optimum = least_cost(workload, tight)
        assert optimum is not None
        for method in ("milp", "auto"):
            result = solve(workload, problem=tight, method=method, limits=LIMITS)
            words.add(result.status)
            if math.isinf(optimum):
                assert result.status == "infeasible", (method, result.notes)
                continue
            assert result.plan is not None, (method, result.notes)
            assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), method
            assert result.status == "optimal"
            verify(workload, result.plan)
    assert words == {"optimal", "infeasible"}


def test_no_method_is_better_than_the_optimum_and_each_has_a_plan() -> None:
    for workload, problem, optimum in cases(3000, 20):
        for method in METHODS["sharding"]:
            if method.startswith("milp"):
                continue
            result = solve(workload, problem=problem, method=method, limits=LIMITS)
            assert result.objective is not None, method
            assert result.objective >= optimum * (1 - 1e-9) - 1e-9
            assert not any("defect" in note for note in result.notes)
