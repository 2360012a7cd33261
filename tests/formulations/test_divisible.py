"""Work divided at will: below every plan's makespan by brute force, tight where work divides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sweep import ORDINARY, WIDE

import stagecut
from stagecut import Limits, PipelineJob
from stagecut.formulations.job.iteration_bounds import ORIGIN, divisible_bound
from stagecut.formulations.task import pose
from stagecut.instances import is_iteration, price
from stagecut.runtime.verify.bounds.check import CLAIM_TOLERANCE, check_bound
from stagecut.runtime.verify.bounds.job import divided_work_bound
from stagecut.solvers.core.under_rules import cheap_bounds

VARIANTS = {
    name: case for name, case in (ORDINARY | WIDE).items() if "iteration" in name.split()[:2]
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_first_bound_is_above_the_optimum(variant: str) -> None:
    """Of every schedule, relayed, with overlap, unequal devices, few stages and wide numbers."""
    for seed in range(10):
        case = VARIANTS[variant](seed)
        task = pose(case.workload, case.cluster, case.problem)
        found = {origin: bound for bound, origin in cheap_bounds(task)}
        best = case.optimum()
        assert max(found.values(), default=0.0) <= best * (1 + 1e-12), seed
        if ORIGIN not in found:
            continue
        assert is_iteration(case.problem)
        costs = price(case.workload, case.cluster)
        again = divided_work_bound(case.workload, costs, case.problem, 1e300)
        assert found[ORIGIN] * (1 - CLAIM_TOLERANCE) <= again <= best * (1 + 1e-9), seed


@pytest.mark.parametrize("stages", [1, 2, 8, 48])
@pytest.mark.parametrize("microbatches", [1, 8, 96])
def test_equal_stages_under_gpipe_are_the_best_division(stages: int, microbatches: int) -> None:
    """GPipe: Σ w + (M − 1) (max f + max b), equation (3), which equal stages make least."""
    problem = PipelineJob(microbatches, "gpipe")
    bound = divisible_bound(problem, range(1, stages + 1), np.array([1.0, 2.0]))
    assert bound == pytest.approx(3 + 3 * (microbatches - 1) / stages, rel=1e-3)


def test_every_method_of_a_large_graph_begins_with_it() -> None:
    """Fill and drain are counted although the graph has too many ideals, and it is checked."""
    workload = stagecut.load("bert-large-operators-training")
    cluster = stagecut.accelerators_and_cpus(4)
    problem = PipelineJob(8)
    result = stagecut.solve(workload, cluster, problem, method="deepspeed-uniform")
    assert result.plan is not None
    assert result.bound_origin == ORIGIN
    assert result.plan.gap < 0.08
    assert check_bound(workload, result.plan).value >= result.bound * (1 - CLAIM_TOLERANCE)


def test_schedules_of_many_passes_leave_it_to_the_search() -> None:
    workload = stagecut.load("gpt2-xl-training")
    cluster = stagecut.accelerators_and_cpus(16)
    first = [origin for _, origin in cheap_bounds(pose(workload, cluster, PipelineJob(96)))]
    assert ORIGIN not in first
    result = stagecut.solve(workload, cluster, PipelineJob(96), limits=Limits(seconds=60, gap=0.2))
    assert result.bound_origin == ORIGIN
    assert math.isfinite(result.bound)
