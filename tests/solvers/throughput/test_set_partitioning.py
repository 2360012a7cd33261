"""The set partitioning method against brute force, and its certificates against their checker."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyomo.environ as pyo
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import (
    Cluster,
    InputError,
    Limits,
    Plan,
    Result,
    Throughput,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.formulations.task import pose
from stagecut.formulations.throughput import set_partitioning
from stagecut.formulations.throughput.certificate import Prices, certificate
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.instances import Solution, UncheckedError
from stagecut.instances.formats.plan_json import PriceCertificate
from stagecut.runtime.verify.bounds import prices as price_check
from stagecut.runtime.verify.bounds.check import bound_without_certificate, check_bound
from stagecut.solvers import Search
from stagecut.solvers.core import session
from stagecut.solvers.throughput import set_partitioning as search_module
from stagecut.solvers.throughput.column_generation.column_generation import DualState, boxstep
from stagecut.solvers.throughput.column_generation.pricing_problem import (
    PricingProblem,
    first_prices,
    pricing_problem,
)

PROBLEMS = [
    Throughput(),
    Throughput(),
    Throughput(overlap=True),
    Throughput(pipeline="gpipe"),
    Throughput(pipeline="gpipe", overlap=True),
]


def case(seed: int) -> tuple[Workload, Cluster, Throughput]:
    workload, cluster = random_case(
        seed, max_nodes=7, max_accelerators=3, max_cores=2, max_kinds=1 + seed % 2
    )
    return workload, cluster, PROBLEMS[seed // 2 % len(PROBLEMS)]


@pytest.fixture(autouse=True)
def only_its_own_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the bounds that every search begins with: they would hide those under test."""
    monkeypatch.setattr(session, "raise_first_bounds", lambda *_: None)


def run(seed: int) -> Result:
    workload, cluster, problem = case(seed)
    return solve(
        workload, cluster, problem, method="column-generation", limits=Limits(nodes=4, seed=seed)
    )


@cache
def ran(seed: int) -> Result:
    return run(seed)


@pytest.mark.parametrize("block", range(12))
def test_bound_below_brute_force_below_objective(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        workload, cluster, problem = case(seed)
        best = best_max_load(workload, cluster, problem)
        result = ran(seed)
        assert result.bound <= best * (1 + 1e-9), seed
        if math.isinf(best):
            assert result.plan is None, seed
            assert result.status == "infeasible", seed
            continue
        assert result.plan is not None, seed
        assert result.plan.objective >= best * (1 - 1e-9), seed
        verify(workload, result.plan)
        if problem == Throughput():
            assert result.plan.objective == pytest.approx(best, rel=1e-9), seed
        if result.bound_origin == "set partitioning":
            assert result.bound > 0
            check_bound(workload, result.plan)
            if result.bound > best * (1 - 1e-9):
                continue  # true whatever the prices
            with pytest.raises(VerificationError, match="not proved"):
                check_bound(workload, spoiled(result.plan, best))


def spoiled(plan: Plan, best: float) -> Plan:
    """Return a plan that claims more than can be true, by the prices of a lower target."""
    certificate = dict(plan.certificate) | {"target": best * (1 + 1e-6)}
    return replace(plan, certificate=certificate)


def test_prices_by_value_bound_what_brute_force_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "BY_VALUE_GAP", math.inf)
    by_value = 0
    for seed in range(24):
        workload, cluster, problem = case(seed)
        best = best_max_load(workload, cluster, problem)
        result = run(seed)
        assert result.bound <= best * (1 + 1e-9), seed
        if result.plan is None or not result.plan.certificate.get("parts"):
            continue
        by_value += 1
        check_bound(workload, result.plan)
        if result.bound < best * (1 - 1e-9):
            with pytest.raises(VerificationError, match="not proved"):
                check_bound(workload, spoiled(result.plan, best))
    assert by_value >= 6


def test_prices_far_from_the_work_are_not_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers take a fifth of the bound: by value, these rounds leave 2.2 %."""
    monkeypatch.undo()  # with the bounds that every search begins with
    workload, cluster = load("resnet50-operators"), accelerators_and_cpus(4, 1, 16 * 2.0**30)
    limits = Limits(nodes=6, gap=0.01)
    result = solve(workload, cluster, method="column-generation", limits=limits, workers=1)
    assert result.plan is not None
    assert result.plan.gap <= 0.015


def test_memory_has_a_price_once_prices_without_one_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten units, of which two devices hold three each; the others take 16 on the CPU."""
    ways = []

    def noted(*given: Any, by_value: bool) -> PricingProblem:
        ways.append(by_value)
        return pricing_problem(*given, by_value=by_value)

    monkeypatch.setattr(search_module, "BY_VALUE_GAP", math.inf)
    monkeypatch.setattr(search_module, "pricing_problem", noted)
    workload = Workload(
        name="boxes",
        ids=tuple(f"box{v}" for v in range(10)),
        edges=(),
        times={"accelerator": np.ones(10), "cpu": np.full(10, 4.0)},
        memory_bytes=np.ones(10),
        transfer=np.zeros(10),
    )
    cluster = accelerators_and_cpus(2, cpus=1, memory_bytes=3.0)
    result = solve(workload, cluster, method="column-generation", limits=Limits(nodes=12, gap=0.0))
    assert ways[0]
    assert not ways[-1]
    assert 10 / 2.25 * (1 + 1e-6) < result.bound <= 16.0 * (1 + 1e-9)
    assert result.plan is not None
    check_bound(workload, result.plan)


@pytest.mark.slow
def test_prices_near_the_work_prove_inceptionv3(
    benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By 0.16 % more than the work over all devices; the check needs no fine steps of load."""
    workload = load(benchmarks / "placement/throughput/LayerGraphs/inceptionv3_inference.json")
    assert workload.cluster is not None
    task = pose(workload, workload.cluster, Throughput())
    graph = hypergraph(task)
    pricing = pricing_problem(task, graph, 51.15)
    assert pricing.parts
    state = DualState(first_prices(pricing, graph, task.costs.host), first=0.003)
    proofs: list[Prices] = []
    search: Search[Solution] = Search(Limits(), lambda _: math.inf)
    outcome = boxstep(state, pricing, 51.06, lambda _, prices: proofs.append(prices), search, 30)
    assert outcome == "proved"
    assert state.pricings <= 20
    monkeypatch.setattr(price_check, "STEPS", price_check.STEPS[:1])
    order = pricing.states[0].order
    evidence = certificate(task, graph, state.prices, 51.06, order, pricing.parts)
    given = msgspec.convert({"origin": "set partitioning"} | evidence, PriceCertificate)
    assert price_check.check_prices(workload, task.costs, Throughput(), given).target == 51.06
    with pytest.raises(VerificationError, match="not proved"):
        price_check.check_prices(
            workload, task.costs, Throughput(), msgspec.structs.replace(given, target=51.2)
        )


def test_a_certificate_with_one_price_changed_is_refused() -> None:
    refused = 0
    for seed in range(24):
        workload, _, _ = case(seed)
        result = ran(seed)
        if result.bound_origin != "set partitioning" or result.plan is None:
            continue
        prices = np.array(result.plan.certificate["prices"])
        prices[int(prices.argmax())] -= 1.01 * prices.sum()
        changed = dict(result.plan.certificate) | {"prices": prices.tolist()}
        with pytest.raises(VerificationError, match="not proved"):
            check_bound(workload, replace(result.plan, certificate=changed))
        refused += 1
    assert refused >= 6


def proved_by_prices(seed: int) -> tuple[Workload, Plan] | None:
    """Return a plan whose bound does not follow from the workload alone."""
    plan, (workload, _, _) = ran(seed).plan, case(seed)
    if plan is None or plan.certificate.get("origin") != "set partitioning":
        return None
    return (
        (workload, plan)
        if bound_without_certificate(workload, plan) < plan.bound * (1 - 1e-6)
        else None
    )


def test_a_certificate_with_wrong_fields_is_refused() -> None:
    workload, plan = next(found for seed in range(40) if (found := proved_by_prices(seed)))
    data = dict(plan.certificate)
    for broken, error, said in [
        ({"prices": [1.0]}, InputError, "prices"),
        ({"target": plan.bound / 2}, VerificationError, "below"),
        ({"memory_prices": [-1.0] * len(plan.cluster.kinds)}, InputError, "memory_prices"),
        ({"transfer_prices": [1.0] * len(plan.cluster.kinds)}, VerificationError, "overlap"),
        ({"parts": -1}, InputError, "parts"),
        ({"parts": 10**400}, InputError, "parts"),
        ({"parts": 10**9}, VerificationError, "parts"),
        ({"parts": 1}, VerificationError, "not proved"),
        (
            {"parts": 50, "memory_prices": [1.0] * len(plan.cluster.kinds)},
            VerificationError,
            "parts: prices of memory",
        ),
        ({"origin": "HiGHS"}, UncheckedError, "without a certificate"),
    ]:
        with pytest.raises(error, match=said):
            check_bound(workload, replace(plan, certificate=data | broken))


@pytest.mark.parametrize("seed", range(12))
def test_the_program_over_all_sets_is_exact(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=6, max_cores=2, max_kinds=2)
    problem = Throughput(overlap=seed % 3 == 0)
    task = pose(workload, cluster, problem)
    model = set_partitioning.model(task, hypergraph(task))
    outcome = pyo.SolverFactory("appsi_highs").solve(model, load_solutions=False)
    best = best_max_load(workload, cluster, problem)
    if math.isinf(best):
        assert outcome.solver.termination_condition == pyo.TerminationCondition.infeasible
    else:
        model.solutions.load_from(outcome) if len(outcome.solution) else None
        assert outcome.problem.upper_bound == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_contiguous_splits_are_refused() -> None:
    workload, cluster = random_case(3)
    with pytest.raises(InputError, match="non-contiguous"):
        solve(workload, cluster, Throughput(split="contiguous"), method="column-generation")


def test_same_seed_same_plan() -> None:
    first, second = run(13), run(13)
    assert first.plan is not None
    assert second.plan is not None
    assert np.array_equal(first.plan.placement, second.plan.placement)
    assert first.bound == second.bound


@pytest.mark.parametrize("name", ["LayerGraphs/gnmt_training", "OperatorGraphs/bert_l-3_inference"])
def test_one_per_cent_on_published_workloads(benchmarks: Path, name: str) -> None:
    workload = load(benchmarks / "placement" / "throughput" / f"{name}.json")
    result = solve(workload, method="column-generation", limits=Limits(gap=0.01, nodes=60))
    assert result.gap is not None
    assert result.gap <= 0.01
    assert result.plan is not None
    check_bound(workload, result.plan)
