"""Bounds that follow from a workload alone: never above the optimum, never below what is claimed.

The verifier has code of its own for each, and is held against brute force and against the searches.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load
from brute_latency import least_latency
from cases import THROUGHPUT_PROBLEMS, linked_case, random_case
from training_cases import best_objective, random_training_case

import stagecut
from stagecut import (
    Cluster,
    DeviceMapping,
    Latency,
    Limits,
    PipelineJob,
    Plan,
    Workload,
)
from stagecut.formulations.task import pose
from stagecut.instances import Problem, UncheckedError, topology
from stagecut.runtime.verify.bounds.check import (
    CLAIM_TOLERANCE,
    bound_without_certificate,
    check_bound,
)
from stagecut.solvers.core.under_rules import cheap_bounds

#: Above all that any plan here takes: with it as target nothing is left out.
HIGH = 1e9


def quick_plan(workload: Workload, cluster: Cluster | None, problem: Problem) -> Plan | None:
    quick = {"mapping": "layouts", "pipeline": "deepspeed-uniform"}
    method = quick.get(problem.name, "greedy")
    limits = Limits(nodes=1)
    return stagecut.solve(workload, cluster, problem, method=method, limits=limits).plan


def proved(workload: Workload, plan: Plan) -> float:
    return bound_without_certificate(workload, replace(plan, bound=HIGH))


def first_bound(workload: Workload, plan: Plan) -> float:
    bounds = cheap_bounds(pose(workload, plan.cluster, plan.problem))
    return max((bound for bound, _ in bounds), default=0.0)


@pytest.mark.parametrize("chunk", range(12))
def test_of_the_max_load(chunk: int) -> None:
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
        case = linked_case if seed % 7 == 0 else random_case
        workload, cluster = case(seed, max_nodes=6, max_cores=2, max_kinds=1 + seed % 2)
        plan = quick_plan(workload, cluster, problem)
        if plan is None:
            continue
        found = proved(workload, plan)
        assert found <= best_max_load(workload, cluster, problem) * (1 + 1e-12), (seed, problem)
        assert found >= first_bound(workload, plan) * (1 - CLAIM_TOLERANCE), (seed, problem)
        check_bound(workload, plan)


@pytest.mark.parametrize("calls", [1, 2])
def test_of_the_latency(calls: int) -> None:
    by_paths = 0
    for seed in range(60):
        case = linked_case if seed % 7 == 0 else random_case
        workload, cluster = case(seed, max_nodes=5, max_cores=1, max_kinds=1 + seed % 2)
        plan = quick_plan(workload, cluster, Latency(calls))
        if plan is None:
            continue
        found, first = proved(workload, plan), first_bound(workload, plan)
        best = least_latency(workload, cluster, plan.problem)  # type: ignore[arg-type]
        assert found <= best * (1 + 1e-12), seed
        assert found >= first * (1 - CLAIM_TOLERANCE), seed
        by_paths += found > first * (1 + 1e-6)
    assert by_paths >= 8


def test_paths_prove_what_the_search_proves_by_them() -> None:
    tried = 0
    for seed in range(60):
        workload, cluster = random_case(seed, max_nodes=8, max_cores=1)
        plan = stagecut.solve(workload, cluster, Latency(), limits=Limits(nodes=20, gap=0)).plan
        if plan is None or plan.certificate.get("origin") != "path-interval bound":
            continue
        tried += 1
        check_bound(workload, plan)
    assert tried >= 5


def test_of_training_plans() -> None:
    for seed in range(40):
        workload, cluster, problem = random_training_case(seed)
        best = best_objective(workload, cluster, problem)
        plan = stagecut.solve(workload, cluster, problem, method="dp").plan
        if plan is not None and math.isfinite(best):
            assert proved(workload, plan) <= best * (1 + 1e-9), seed


def test_of_iterations_and_mappings() -> None:
    workload = stagecut.load("gpt2-xl-training")
    cluster = stagecut.accelerators_and_cpus(4)
    problems: list[tuple[Cluster | None, Problem]] = [
        (cluster, PipelineJob(8)),
        (cluster, PipelineJob(8, schedule="interleaved")),
        (None, DeviceMapping(topology("ring:4"), 2, 2)),
    ]
    for where, problem in problems:
        plan = quick_plan(workload, where, problem)
        assert plan is not None
        first = first_bound(workload, plan)
        assert first * (1 - CLAIM_TOLERANCE) <= proved(workload, plan) <= plan.objective
        check_bound(workload, replace(plan, bound=first, certificate={"origin": "heaviest unit"}))


def test_a_heavy_unit_takes_its_transfers_with_it() -> None:
    """Two heavy nodes, each of which reads much of what light ones make, on two devices."""
    workload = Workload(
        name="heavy",
        ids=tuple("abcd"),
        edges=np.array([(0, 1), (1, 2), (2, 3)]),
        times={"accelerator": np.array([1.0, 9.0, 9.0, 1.0])},
        memory_bytes=np.zeros(4),
        transfer=np.array([4.0, 2.0, 4.0, 0.0]),
    )
    cluster = stagecut.accelerators_and_cpus(2, cpus=0)
    plan = stagecut.solve(workload, cluster, stagecut.Throughput(), method="greedy").plan
    assert plan is not None
    assert plan.certificate["origin"] == "a heavy unit and its transfers"
    assert plan.bound == pytest.approx(12.0)  # a and b, or c and d, and what passes between them
    assert check_bound(workload, plan).value == pytest.approx(12.0)


@pytest.mark.parametrize("part", [1e-6, 0.3])
def test_a_bound_that_does_not_follow_is_refused(part: float) -> None:
    workload, cluster = random_case(3, max_nodes=6)
    for problem in (stagecut.Throughput(), Latency(), Latency(2)):
        plan = quick_plan(workload, cluster, problem)
        assert plan is not None
        above = proved(workload, plan) * (1 + part)
        for origin in ("heaviest unit", "path-interval bound", "dp over ideals", "", 7, None):
            forged = replace(plan, bound=above, certificate={"origin": origin})
            with pytest.raises(UncheckedError, match=r"rely on \S{1,12}( m?s)?, which follows"):
                check_bound(workload, forged)
