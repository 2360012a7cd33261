"""Message passing: its bounds are never above the optimum, and prove it on meshes of two axes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from brute_sharding import cases, least_cost, random_problem, random_program
from sharded_models import Language

from stagecut import (
    DeviceMesh,
    Limits,
    Link,
    Sharding,
    Workload,
    accelerators_and_cpus,
    evaluate,
    solve,
    tensor_program,
    verify,
)
from stagecut.formulations.sharding.costs import ShardingCosts, sharding_costs
from stagecut.formulations.sharding.memory import priced, with_views, without_costs, without_views
from stagecut.formulations.sharding.relaxation import (
    Potentials,
    flatten,
    leave_out,
    no_potentials,
    proved_bound,
)
from stagecut.formulations.task import pose
from stagecut.instances import TensorSharding
from stagecut.solvers.sharding import auto, messages
from stagecut.solvers.sharding.elimination import cheapest_of_few
from stagecut.solvers.sharding.message_kernel import sweep
from stagecut.solvers.sharding.priced_memory import blend

LIMITS = Limits(seconds=120, nodes=5000)
FAST, SLOW = Link(1e-6, 450e9), Link(2e-6, 50e9)


def posed(workload: Workload, problem: Sharding) -> ShardingCosts:
    """Return the arrays of a problem."""
    return sharding_costs(pose(workload, accelerators_and_cpus(problem.mesh.size), problem))


def passed(costs: ShardingCosts, passes: int) -> tuple[Potentials, float]:
    """Return potentials after some passes, and the bound that the last one said."""
    flat = flatten(costs)
    at = no_potentials(flat)
    room = np.zeros(1000), np.zeros(1000)
    known = -math.inf
    for k in range(passes):
        after = sweep(flat, at, k % 2 == 0, known, *room)
        assert after >= known - 1e-9 * abs(after), "the bound never falls"
        known = after
    return at, known


@pytest.mark.parametrize("chunk", range(4))
def test_it_finds_and_proves_the_optimum(chunk: int) -> None:
    for workload, problem, optimum in cases(65 * chunk, 65, stream=77):
        result = solve(workload, problem=problem, method="messages", limits=LIMITS)
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), result.notes
        assert result.status == "optimal"
        assert result.bound <= optimum * (1 + 1e-9) + 1e-9
        assert result.plan is not None
        verify(workload, result.plan)


def test_potentials_never_prove_too_much() -> None:
    for workload, problem, optimum in cases(500, 40, stream=77):
        costs = posed(workload, problem)
        flat = flatten(costs)
        for passes in (1, 2, 5, 12):
            at, known = passed(costs, passes)
            assert proved_bound(flat, at) == pytest.approx(known, rel=1e-9, abs=1e-9)
            assert known <= optimum * (1 + 1e-9) + 1e-9
            assert (at.used <= flat.conversion + 1e-9 * (1 + flat.conversion)).all()
            best = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
            assert best is not None
            chosen = costs.chosen(best.solution.signature)  # type: ignore[union-attr]
            assert chosen is not None
            least = at.least[flat.first[:-1] + chosen]
            assert (least <= optimum * (1 + 1e-9) + 1e-9).all(), "(8) holds for the best plan"


def test_what_is_left_out_raises_the_bound_and_keeps_the_best_plan() -> None:
    for workload, problem, optimum in cases(600, 30, stream=77):
        costs = posed(workload, problem)
        flat = flatten(costs)
        at = no_potentials(flat)
        room = np.zeros(1000), np.zeros(1000)
        known = -math.inf
        for k in range(6):
            known = sweep(flat, at, k % 2 == 0, known, *room)
        leave_out(flat, at, at.least <= optimum * (1 + 1e-9) + 1e-9)
        before = proved_bound(flat, at)
        for k in range(6):
            known = sweep(flat, at, k % 2 == 0, known, *room)
        assert before - 1e-9 <= known <= optimum * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("chunk", range(2))
def test_memory_that_binds(chunk: int) -> None:
    met = 0
    for k, (workload, problem, _) in enumerate(cases(1000 + 40 * chunk, 40, stream=77)):
        free = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        assert free is not None
        report = evaluate(workload, free.cluster, problem, free.solution)
        held = (0.6 + 0.1 * (k % 4)) * report.memory_bytes  # type: ignore[attr-defined]
        tight = replace(problem, memory_bytes=held)
        optimum = least_cost(workload, tight)
        assert optimum is not None
        result = solve(workload, problem=tight, limits=LIMITS)
        if math.isinf(optimum):
            assert result.status == "infeasible", result.notes
            continue
        met += 1
        assert result.objective == pytest.approx(optimum, rel=1e-6, abs=1e-9), result.notes
        assert result.bound <= optimum * (1 + 1e-9) + 1e-9
    assert met > 10


class Endless:
    """A search that never has to stop."""

    seconds_left = math.inf

    def should_stop(self) -> bool:
        return False


def test_bytes_are_counted_as_defined() -> None:
    viewed = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 77])
        workload, problem = random_program(rng, 7, views=0.7), random_problem(rng)
        costs = posed(workload, problem)
        counted = priced(without_costs(costs), 1.0)
        for _ in range(5):
            chosen = np.array([rng.integers(len(c.cost)) for c in costs.choices])
            cluster = accelerators_and_cpus(problem.mesh.size)
            plan = TensorSharding(costs.signature(chosen))
            report = evaluate(workload, cluster, problem, plan)
            held = report.memory_bytes  # type: ignore[attr-defined]
            known = with_views(costs, chosen)
            assert (without_views(costs, known) == chosen).all()
            assert counted.objective(known) == pytest.approx(held)
            twice = [len(c.cost) for c in counted.choices]
            either = [
                np.unique([k, k + len(c.cost)] if len(c.cost) < count else [k])
                for k, c, count in zip(chosen, costs.choices, twice, strict=True)
            ]
            few = cheapest_of_few(counted.only(either), Endless(), 10**7)
            assert few is not None
            assert counted.only(either).objective(few) == pytest.approx(held)
            viewed += max(map(len, either)) == 2
            room = replace(problem, memory_bytes=held)
            for price in (1e-3 / max(held, 1.0), 100 / max(held, 1.0)):
                asked = priced(posed(workload, room), price)
                _, bound = passed(asked, 6)
                bound -= price * held
                assert bound <= costs.objective(chosen) * (1 + 1e-9) + 1e-9
    assert viewed > 50


def test_parts_of_two_plans_fit() -> None:
    mixed = 0
    for workload, problem, _ in cases(3000, 40, stream=77):
        costs = posed(workload, problem)
        rng = np.random.default_rng(9)
        one, other = (
            np.array([rng.integers(len(c.cost)) for c in costs.choices]) for _ in range(2)
        )
        cluster = accelerators_and_cpus(problem.mesh.size)

        def held(chosen: object, given: tuple[ShardingCosts, Workload, Sharding]) -> float:
            costs, workload, problem = given
            plan = TensorSharding(costs.signature(chosen))  # type: ignore[arg-type]
            report = evaluate(workload, cluster, problem, plan)  # noqa: B023
            return float(report.memory_bytes)  # type: ignore[attr-defined]

        given = costs, workload, problem
        large, small = sorted((one, other), key=lambda x: -held(x, given))
        room = (held(large, given) + held(small, given)) / 2
        found = blend(costs, large, small, room)
        if found is not None:
            mixed += 1
            assert held(found, given) <= room * (1 + 1e-9)
            assert ((found == large) | (found == small)).all()
    assert mixed > 20


@pytest.mark.parametrize("shape", [(2, 2), (2, 4)])
def test_a_traced_transformer_on_two_axes(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = torch.zeros(8, 12, dtype=torch.int64)
    workload = tensor_program(Language(2), (words, words), estimate="h100")
    problem = Sharding(DeviceMesh(shape, (SLOW, FAST)))
    result = solve(workload, problem=problem, limits=Limits(seconds=120, gap=1e-6), workers=1)
    assert result.method == "messages"
    assert result.status == "optimal", (result.gap, result.notes)
    assert result.plan is not None
    verify(workload, result.plan)
    for rule in ("data-parallel", "fully-sharded", "megatron", "replicate"):
        other = solve(workload, problem=problem, method=rule).objective
        assert other is not None
        assert result.objective is not None
        assert result.objective <= other * (1 + 1e-9)
    monkeypatch.setattr(auto, "FEW_PAIRS", 10**9)
    line = Sharding(DeviceMesh((4,), (FAST,)))
    eliminated = solve(workload, problem=line, limits=Limits(seconds=120), workers=1)
    assert eliminated.method == "elimination"
    passing = solve(workload, problem=line, method="messages", limits=Limits(seconds=120, gap=1e-9))
    assert passing.objective == pytest.approx(eliminated.objective, rel=1e-9)
    assert passing.bound == pytest.approx(eliminated.bound, rel=1e-6)


def test_tables_that_are_too_large_leave_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_PAIRS", 0)
    for workload, problem, optimum in cases(4000, 10, stream=77):
        result = solve(workload, problem=problem, method="messages", limits=LIMITS)
        assert result.objective is not None
        assert result.bound <= optimum * (1 + 1e-9) + 1e-9
        assert result.objective >= optimum * (1 - 1e-9) - 1e-9
