"""Training plans: the DP against brute force, and against the published program's values."""

from __future__ import annotations

import math

import pytest
from training_cases import best_objective, random_training_case

from stagecut import solve, verify

GIB = 2.0**30


@pytest.mark.parametrize("seed", range(120))
def test_dp_is_brute_force(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed)
    best = best_objective(workload, cluster, problem)
    result = solve(workload, cluster, problem, method="dp")
    if math.isinf(best):
        assert result.status == "infeasible"
        assert result.reason
        return
    assert result.plan is not None
    assert result.status == "optimal"
    assert result.objective == pytest.approx(best, rel=2e-9)
    verify(workload, result.plan)
