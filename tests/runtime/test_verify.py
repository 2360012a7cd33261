"""The verifier against brute force, and against plans that break one rule."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load, max_load
from cases import THROUGHPUT_PROBLEMS, random_case

from stagecut import (
    Plan,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    solve,
    verify,
)
from stagecut.instances import Placement, Split, price
from stagecut.runtime import evaluate


@pytest.mark.parametrize("seed", range(48))
def test_the_verifier_and_brute_force_agree_on_every_placement(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=5, max_accelerators=2, max_kinds=2)
    problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
    best = math.inf
    for devices in itertools.product(range(cluster.size), repeat=workload.n):
        report = evaluate(workload, cluster, problem, Placement(np.array(devices)))
        if not report.violations:
            best = min(best, report.objective)
    assert best == pytest.approx(best_max_load(workload, cluster, problem), rel=1e-12)


@pytest.mark.parametrize("seed", range(16))
def test_every_placement_costs_what_the_definition_says(seed: int) -> None:
    """The best of all hides most of what could be wrong with the others."""
    workload, cluster = random_case(seed, max_nodes=7, max_accelerators=2, max_kinds=2)
    rng = np.random.default_rng(seed)
    for problem in THROUGHPUT_PROBLEMS[:4]:  # the split changes what is allowed alone
        for where in rng.integers(cluster.size, size=(15, workload.n)):
            report = evaluate(workload, cluster, problem, Placement(where))
            expected = max_load(workload, cluster, problem, where)
            assert report.objective == pytest.approx(expected, rel=1e-12)


def _verified(seed: int) -> tuple[Workload, Plan] | None:
    """A random workload with its contiguous optimum, if it has one."""
    workload, cluster = random_case(seed, max_nodes=7, max_kinds=2)
    result = solve(workload, cluster, Throughput(split="contiguous"), method="dp")
    return None if result.plan is None else (workload, result.plan)


def _broken(workload: Workload, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Copies of a plan, each with one rule broken, and what the verifier must say of it."""
    cluster, costs = plan.cluster, price(workload, plan.cluster)
    yield "claims objective", replace(plan, objective=plan.objective + 1.0)
    yield "claims bound", replace(plan, bound=plan.objective + 1.0)
    yield "claims bound", replace(plan, bound=math.nan)
    yield "places", replace(plan, solution=Placement(plan.placement[:-1]))
    for v in range(workload.n):
        for d in range(cluster.size):
            moved = plan.placement.copy()
            moved[v] = d
            broken = replace(plan, solution=Placement(moved))
            if d == plan.placement[v]:
                continue
            mates = [u for u in range(workload.n) if workload.colours[u] == workload.colours[v]]
            if workload.colours[v] >= 0 and len(mates) > 1:
                yield "colour", broken
            if math.isinf(costs.compute[costs.kind_of[d], v]):
                yield "does not support", broken
            used = workload.memory_bytes[moved == d].sum()
            if used > cluster.kinds[costs.kind_of[d]].memory_bytes:
                yield "more than its", broken


def test_every_plan_that_breaks_a_rule_is_refused() -> None:
    refused: Counter[str] = Counter()
    for seed in range(150):
        case = _verified(seed)
        if case is None:
            continue
        workload, plan = case
        verify(workload, plan)
        for rule, broken in _broken(workload, plan):
            with pytest.raises(VerificationError, match="plan: "):
                verify(workload, broken)
            if rule in ("colour", "does not support", "more than its"):
                report = evaluate(workload, plan.cluster, plan.problem, broken.solution)
                assert any(rule in line for line in report.violations)
            refused[rule] += 1
    assert min(refused[rule] for rule in ("claims objective", "claims bound", "places")) > 50
    assert min(refused[rule] for rule in ("colour", "does not support", "more than its")) > 20


@pytest.mark.parametrize("split", ["contiguous", "per-device"])
def test_a_device_that_is_left_and_entered_again_is_refused(split: Split) -> None:
    workload = Workload(
        name="a b a",
        ids=("a", "b", "c"),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.ones(3)},
        memory_bytes=np.zeros(3),
        transfer=np.zeros(3),
    )
    cluster = accelerators_and_cpus(2)
    torn = Placement(np.array([0, 1, 0]))
    assert evaluate(workload, cluster, Throughput(), torn).violations == ()
    (line,) = evaluate(workload, cluster, Throughput(split=split), torn).violations
    assert "not contiguous" in line
