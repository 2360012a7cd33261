"""Certificates of shardings' bounds: they hold, and no others prove more."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from brute_sharding import cases, least_cost, random_problem, random_program
from damage import ODD
from forgery import is_refused
from sharded_models import Language

from stagecut import (
    DeviceMesh,
    InputError,
    Limits,
    Link,
    Plan,
    Sharding,
    VerificationError,
    Workload,
    check_bound,
    evaluate,
    load_plan,
    save,
    solve,
    tensor_program,
)
from stagecut.formulations.sharding.costs import sharding_costs
from stagecut.formulations.sharding.memory import priced
from stagecut.formulations.task import pose
from stagecut.instances import UncheckedError
from stagecut.instances.formats.plan_json import (
    ELIMINATED,
    FITTING,
    PASSED,
    PRICED,
    ShardingCertificate,
)
from stagecut.runtime.verify.bounds.sharding import Factor, least_sum, proved_by
from stagecut.solvers.sharding.elimination import cheapest_of_few

LIMITS = Limits(seconds=120)


def proved(first: int, count: int) -> list[tuple[Workload, Plan, float]]:
    """Plans by elimination and by message passing, with the optimum by trying everything."""
    found = []
    for workload, problem, optimum in cases(first, count, stream=81):
        for method, origin in (("elimination", ELIMINATED), ("messages", PASSED)):
            plan = solve(workload, problem=problem, method=method, limits=LIMITS).plan
            assert plan is not None
            if plan.certificate["origin"] == origin:  # and not that of the cheapest signatures
                found.append((workload, plan, optimum))
    return found


def forged(plan: Plan, optimum: float, rng: random.Random) -> Plan:
    """Return the plan with a target above the optimum, and a price or a mixture of no meaning."""
    above = optimum * (1 + rng.choice([1e-7, 1e-4, 0.005, 0.5, 10.0]))
    other = rng.choice([{}, {"price": rng.choice([1e-9, 1.0, -1.0])}, {"mixture": [1.0]}])
    certificate = {**plan.certificate, "target": above, **other}
    return replace(plan, bound=above, certificate=certificate)


@pytest.mark.parametrize("chunk", range(2))
def test_certificates_hold_and_no_others_prove_more(chunk: int) -> None:
    met = proved(40 * chunk, 40)
    assert len(met) > 20
    for k, (workload, plan, optimum) in enumerate(met):
        assert check_bound(workload, plan).target <= optimum * (1 + 1e-12)
        for trial in range(4):
            rng = random.Random(f"{chunk} {k} {trial}")
            if optimum > 0:
                assert is_refused(workload, forged(plan, optimum, rng))


@pytest.fixture(scope="module")
def language() -> tuple[Workload, Plan]:
    """A plan of a traced model on a mesh of two axes, found by message passing."""
    torch.manual_seed(0)
    words = torch.zeros(8, 16, dtype=torch.int64)
    workload = tensor_program(Language(), (words, words), estimate="h100")
    problem = Sharding(DeviceMesh((2, 2), (Link(2e-6, 50e9), Link(1e-6, 450e9))))
    plan = solve(workload, problem=problem, method="messages", limits=LIMITS).plan
    assert plan is not None
    assert plan.certificate["origin"] == PASSED
    return workload, plan


def test_of_a_traced_model_after_a_file(language: tuple[Workload, Plan], tmp_path: Path) -> None:
    workload, plan = language
    save(plan, tmp_path / "plan.json", workload)
    read = load_plan(tmp_path / "plan.json", workload)
    assert json.dumps(dict(read.certificate)) == json.dumps(dict(plan.certificate))
    assert check_bound(workload, read).target >= plan.bound
    above = plan.objective * (1 + 1e-6)
    more = replace(plan, bound=above, certificate={**plan.certificate, "target": above})
    with pytest.raises(VerificationError, match="is proved, and not"):
        check_bound(workload, more)
    with pytest.raises(VerificationError, match="is below"):
        check_bound(workload, replace(plan, bound=above))


@pytest.fixture(scope="module")
def small() -> tuple[Workload, Plan]:
    """A plan of a few operators."""
    return proved(0, 40)[0][:2]


@pytest.mark.parametrize("key", ["target", "price", "mixture"])
@pytest.mark.parametrize("wrong", ODD, ids=repr)
def test_a_damaged_certificate_is_refused(
    key: str, wrong: object, small: tuple[Workload, Plan]
) -> None:
    workload, plan = small
    above = plan.objective * (1 + 1e-6)
    certificate = {**plan.certificate, "target": above, key: wrong}
    assert is_refused(workload, replace(plan, bound=above, certificate=certificate))


class Endless:
    """A search that never has to stop."""

    seconds_left = math.inf

    def should_stop(self) -> bool:
        return False


@pytest.mark.parametrize("chunk", range(2))
def test_a_price_of_memory_never_proves_too_much(chunk: int) -> None:
    met = 0
    for seed in range(20 * chunk, 20 * chunk + 20):
        rng = np.random.default_rng([seed, 99])
        workload, problem = random_program(rng, views=0.2 + 0.5 * (seed % 2)), random_problem(rng)
        plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert plan is not None
        held = evaluate(workload, plan.cluster, problem, plan.solution).memory_bytes  # type: ignore[attr-defined]
        tight = replace(problem, memory_bytes=float(rng.uniform(0.3, 1.0)) * held)
        optimum = least_cost(workload, tight)
        if optimum is None or held == 0:
            continue
        costs = sharding_costs(pose(workload, plan.cluster, tight))
        for part in (0.01, 0.3, 1.0, 5.0):
            price = part * max(plan.objective, 1e-3) / held
            anything = ShardingCertificate(PRICED, 1e12, price)
            proved = proved_by(workload, tight, anything)
            assert proved <= optimum * (1 + 1e-9) + 1e-9
            asked = priced(costs, price)  # counted by other code
            best = cheapest_of_few(asked, Endless(), 10**8)
            assert best is not None
            worth = price * tight.memory_bytes  # type: ignore[operator]
            assert proved == pytest.approx(asked.objective(best) - worth, abs=1e-8 * worth)
            met += 1
    assert met > 30


def test_what_fits_is_proved_and_no_more() -> None:
    met = 0
    for k, (workload, problem, _) in enumerate(cases(5000, 12, stream=77)):
        free = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert free is not None
        held = evaluate(workload, free.cluster, problem, free.solution).memory_bytes  # type: ignore[attr-defined]
        tight = replace(problem, memory_bytes=(0.6 + 0.1 * (k % 4)) * held)
        plan = solve(workload, problem=tight, limits=LIMITS, workers=1).plan
        if plan is None or plan.certificate["origin"] != FITTING:
            continue
        met += 1
        optimum = least_cost(workload, tight)
        assert optimum is not None
        assert plan.objective == pytest.approx(optimum, rel=1e-9)
        assert check_bound(workload, plan).target >= plan.objective * (1 - 1e-8)
        price = plan.certificate["price"]
        assert isinstance(price, float)
        for other in (0.0, 0.5 * price, 3.0 * price, 1.0):  # any price proves this, and none more
            for target in (plan.bound, optimum * (1 + 1e-7), 2 * optimum):
                asked = ShardingCertificate(FITTING, target, other)
                value = proved_by(workload, tight, asked)
                assert value <= optimum * (1 + 1e-9)
                assert value >= min(target, optimum * (1 - 1e-9))
    assert met > 2


def tight_language() -> tuple[Workload, Plan]:
    """A plan of a traced model in less memory than its optimum takes."""
    torch.manual_seed(0)
    words = torch.zeros(8, 12, dtype=torch.int64)
    workload = tensor_program(Language(), (words, words), estimate="h100")
    problem = Sharding(DeviceMesh((4,), (Link(1e-6, 450e9),)))
    free = solve(workload, problem=problem, method="messages", limits=LIMITS).plan
    assert free is not None
    report = evaluate(workload, free.cluster, problem, free.solution)
    tight = replace(problem, memory_bytes=0.9 * report.memory_bytes)  # type: ignore[attr-defined]
    limits = Limits(seconds=120, gap=0.05)
    plan = solve(workload, problem=tight, limits=limits, workers=1).plan
    assert plan is not None
    assert plan.certificate["origin"] == PRICED
    assert plan.bound > free.objective
    return workload, plan


def test_a_price_of_memory_after_a_file(tmp_path: Path) -> None:
    workload, plan = tight_language()
    save(plan, tmp_path / "plan.json", workload)
    read = load_plan(tmp_path / "plan.json", workload)
    assert check_bound(workload, read).target >= plan.bound
    price = plan.certificate["price"]
    assert isinstance(price, float)
    for factor in (0.0, 0.1, 10.0, 1e9, -1.0):
        other = {**plan.certificate, "price": factor * price}
        with pytest.raises((InputError, VerificationError), match="certificate: "):
            check_bound(workload, replace(plan, certificate=other))
    above = plan.objective * (1 + 1e-6)
    certificate = {**plan.certificate, "target": above}
    assert is_refused(workload, replace(plan, bound=above, certificate=certificate))


def test_a_bound_without_potentials_is_held_against_what_is_proved_without() -> None:
    for workload, problem, optimum in cases(300, 20, stream=81):
        plan = solve(workload, problem=problem, method="replicate", limits=LIMITS).plan
        assert plan is not None
        assert plan.certificate["origin"] == "cheapest signatures"
        check_bound(workload, plan)
        above = optimum * (1 + 1e-6) + 1e-6
        high = replace(plan, bound=above, certificate={"origin": "a guess"})
        with pytest.raises(UncheckedError, match="without a certificate that can be checked"):
            check_bound(workload, high)


@pytest.mark.parametrize("seed", range(20))
def test_elimination_finds_the_least_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, 6).tolist()
    factors = []
    for _ in range(9):
        scope = tuple(rng.permutation(6)[: rng.integers(1, 4)].tolist())
        factors.append(Factor(scope, rng.uniform(0.0, 1.0, [counts[v] for v in scope])))
    least = min(
        sum(float(f.table[tuple(values[v] for v in f.scope)]) for f in factors)
        for values in np.ndindex(*counts)
    )
    assert least_sum(counts, factors, 10**6) == pytest.approx(least, rel=1e-12)
    assert least_sum([3] * 6, [Factor((0, 1), np.zeros((3, 3)))], 5) is None
