"""Methods for iterations against all placements, each judged by the simulator.

More cases: `tests/solvers/test_random_cases.py`, and `benchmarks/random_cases.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from brute_iteration import SCHEDULES, least_makespan
from sweep import DEFECTS, Case, case_of, judged

from stagecut import InputError, Limits, PipelineJob, Workload, accelerators_and_cpus, solve

LIMITS = Limits(seconds=120)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "given"])
def test_the_least_makespan_is_found_and_proved(schedule: str) -> None:
    """Contiguous splits without overlap: `dp` and `milp` come to their end, and agree."""
    seen: Counter[str] = Counter()
    for seed in range(100, 108):
        case = case_of(f"iteration {schedule}", seed)
        problem = replace(case.problem, overlap=False)  # type: ignore[type-var]
        best = least_makespan(case.workload, case.cluster, problem)  # type: ignore[arg-type]
        case = Case(case.workload, case.cluster, problem, lambda: math.nan)
        for method in ("dp", "milp"):
            try:
                result = solve(case.workload, case.cluster, problem, method=method, limits=LIMITS)
            except InputError:
                seen[f"{method} refuses"] += 1
                continue
            word = judged(case, result, best)
            assert word.word not in DEFECTS, f"{seed} {method}: {word.detail}"
            assert result.status == ("optimal" if math.isfinite(best) else "infeasible")
            seen[method] += math.isfinite(best)
    assert not seen["dp refuses"]
    assert seen["dp"] >= 3
    assert seen["milp"] >= 2


def late(seconds: float) -> Workload:
    """Two layers; the second's backward pass needs what the first's forward pass has made.

    Its forward pass does not: the data moves in the backward pass, and costs `seconds`.
    """
    return Workload(
        name="late",
        ids=tuple(range(4)),
        edges=np.array([(0, 2), (2, 3), (0, 3)]),
        times={"accelerator": np.array([1.0, 1.0, 2.0, 2.0])},
        memory_bytes=np.ones(4),
        transfer=np.array([seconds, 0.0, 0.0, 0.0]),
        backward=np.array([False, False, True, True]),
        colours=np.array([0, 1, 1, 0]),
    )


def test_the_program_knows_data_that_moves_in_the_backward_pass() -> None:
    for seconds, stages in ((0.25, 2), (40.0, 1)):
        workload, cluster, problem = late(seconds), accelerators_and_cpus(2), PipelineJob(4)
        best = least_makespan(workload, cluster, problem)
        result = solve(workload, cluster, problem, method="milp", limits=LIMITS)
        assert result.plan is not None
        assert result.status == "optimal"
        assert result.objective == pytest.approx(best, rel=1e-6)
        assert len(result.plan.solution.devices) == stages  # type: ignore[union-attr]
