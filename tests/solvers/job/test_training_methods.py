"""All methods for training plans on small cases with every rule, switch and kind of device."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_cases import best_objective, random_training_case

from stagecut import PipelineJob, accelerators_and_cpus, load, solve
from stagecut.formulations.job.stream_bounds import stream_cheap_bounds
from stagecut.formulations.task import Task
from stagecut.instances import Cluster, DeviceKind, StagePlacement
from stagecut.runtime import evaluate

GIB = 2.0**30
METHODS = ("auto", "dp", "piper", "equal-stages", "data-parallel", "pipedream")


@pytest.mark.parametrize("seed", range(80))
def test_no_method_fails_or_proves_what_is_not_so(seed: int) -> None:
    kinds = 1 + seed % 2
    workload, cluster, problem = random_training_case(
        seed, max_nodes=4, max_devices=4 if kinds == 1 else 3, kinds=kinds
    )
    best = best_objective(workload, cluster, problem)
    for method in METHODS:
        result = solve(workload, cluster, problem, method=method)
        if result.status == "infeasible":
            assert math.isinf(best)
            continue
        assert result.bound <= best * (1 + 1e-6)
        if result.plan is None:
            assert result.notes  # which says that it only found none
        else:
            assert result.plan.objective >= best * (1 - 1e-9)
            assert result.bound > -math.inf
        if method == "auto":
            assert result.objective == pytest.approx(best, rel=2e-7)


@pytest.mark.parametrize("seed", range(200))
def test_the_first_bounds_hold(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed, max_nodes=3, max_devices=3, kinds=2)
    best = best_objective(workload, cluster, problem)
    found = list(stream_cheap_bounds(Task(workload, cluster, problem)))
    assert found or math.isinf(best)
    for bound, origin in found:
        assert bound <= best, origin


def test_short_memory_raises_the_bound_by_work() -> None:
    """With little memory some layers must take configurations that need less, and more time."""
    raised = 0
    for seed in range(200):
        workload, cluster, problem = random_training_case(seed)
        roomy = Cluster(tuple(replace(k, memory_bytes=math.inf) for k in cluster.kinds))
        short, free = (
            {y: x for x, y in stream_cheap_bounds(Task(workload, where, problem))}
            for where in (cluster, roomy)
        )
        for origin, bound in short.items():
            assert bound >= free[origin]
            raised += origin.startswith("total work") and bound > 1.01 * free[origin]
    assert raised >= 5


def test_unequal_devices_are_all_used(benchmarks: Path) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = Cluster(
        (
            DeviceKind("fast", 4, 8 * GIB),
            DeviceKind("slow", 4, 16 * GIB, slowdown=2.0),
        )
    )
    result = solve(workload, cluster, PipelineJob(bandwidth=25 * GIB))
    assert result.status == "optimal"
    assert result.plan is not None
    assert isinstance(result.plan.solution, StagePlacement)
    assert {stage.kind for stage in result.plan.solution.stages} == {0, 1}
    assert result.objective == pytest.approx(0.20755275, rel=1e-6)


@pytest.mark.parametrize(
    ("memory", "devices", "value"),
    [
        (2, 64, 0.12333875),
        pytest.param(2, 128, 0.0482573118, marks=pytest.mark.slow),
        pytest.param(2, 512, 0.0120755538, marks=pytest.mark.slow),
        (8, 8, 0.230978),
        (8, 32, 0.0513510889),
        pytest.param(80, 128, 0.00805324292, marks=pytest.mark.slow),
    ],
)
def test_equal_stages_are_those_of_pipers_authors(
    benchmarks: Path, memory: int, devices: int, value: float
) -> None:
    """Values of the authors' program with tensor parallelism and ends apart."""
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = accelerators_and_cpus(devices, 0, memory * GIB)
    result = solve(workload, cluster, PipelineJob(bandwidth=25 * GIB), method="equal-stages")
    assert result.objective == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("seed", range(60))
def test_the_verifier_refuses_every_mutated_plan_without_failing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload, cluster, problem = random_training_case(seed)
    plan = solve(workload, cluster, problem, method="dp").plan
    if plan is None:
        return
    assert isinstance(plan.solution, StagePlacement)
    stages = list(plan.solution.stages)
    i = int(rng.integers(len(stages)))
    wrong = int(rng.choice([-1, 0, 10**9]))
    for change in (
        {"replicas": wrong},
        {"degree": wrong},
        {"kind": len(cluster.kinds)},
        {"nodes": (workload.n, *stages[i].nodes[1:])},
        {"configuration": (10**6, *stages[i].configuration[1:])},
        {"configuration": ()},
    ):
        mutated = [*stages[:i], replace(stages[i], **change), *stages[i + 1 :]]  # type: ignore[arg-type]
        report = evaluate(
            workload, cluster, problem, StagePlacement(tuple(mutated), plan.solution.device)
        )
        assert report.violations, change
