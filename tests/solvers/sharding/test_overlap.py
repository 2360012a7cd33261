"""Gradients in buckets beside the backward pass: by hand, by brute force, and over time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from brute_sharding import random_program
from forgery import is_refused

from stagecut import (
    DeviceMesh,
    InputError,
    Limits,
    Link,
    Plan,
    Sharding,
    VerificationError,
    Workload,
    accelerators_and_cpus,
    evaluate,
    load_plan,
    save,
    solve,
)
from stagecut.formulations.sharding.costs import ShardingCosts, sharding_costs
from stagecut.formulations.task import pose
from stagecut.instances import (
    Operator,
    Signature,
    Tensor,
    TensorProgram,
    TensorSharding,
    program_workload,
)
from stagecut.instances.formats.plan_json import FITTING
from stagecut.instances.model.sharding import gradient_buckets
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.runtime.verify.sharding import ShardingReport

LIMITS = Limits(seconds=120, nodes=5000)
MOST_PLANS = 1500


def priced(workload: Workload, problem: Sharding) -> ShardingCosts:
    return sharding_costs(pose(workload, accelerators_and_cpus(problem.mesh.size), problem))


def overlapped(seed: int) -> tuple[Workload, Sharding] | None:
    """A random program with gradients in buckets; None if it has none or too many shardings."""
    rng = np.random.default_rng([seed, 4])
    workload = random_program(rng)
    shape = ((2,), (2, 2), (3,))[seed % 3]
    links = tuple(Link(2 * float(rng.random()), float(rng.integers(5, 80))) for _ in shape)
    size = float(rng.integers(10, 400))
    problem = Sharding(DeviceMesh(shape, links), overlap=True, bucket_bytes=size)
    costs = priced(workload, problem)
    plans = math.prod(len(one.cost) for one in costs.choices)
    return (workload, problem) if costs.ends is not None and plans <= MOST_PLANS else None


def shardings(costs: ShardingCosts) -> list[TensorSharding]:
    chosen = itertools.product(*(range(len(one.cost)) for one in costs.choices))
    return [TensorSharding(costs.signature(np.array(one))) for one in chosen]


@cache  # not for all workers of xdist, when they collect the tests
def cases() -> list[tuple[int, tuple[Workload, Sharding]]]:
    return [(seed, case) for seed in range(500) if (case := overlapped(seed)) is not None]


def three_steps() -> Workload:
    """Two weights; forward 4 s, backward 6 s and 10 s, with gradients of 1,024 bytes each."""
    tensors = [Tensor(name, (16, 16)) for name in ("x", "w1", "w2", "y", "g2", "g1")]
    source = [Operator("x", (), (0,), (Signature.of("->S0", 16), Signature.of("->B")), "input")]  # type: ignore[arg-type]
    copied = (Signature.of("->B"),)
    weights = [
        Operator(name, (), (t,), copied, "parameter", gradient=g)  # type: ignore[arg-type]
        for name, t, g in (("w1", 1, 5), ("w2", 2, 4))
    ]
    ways = (Signature.of("S0,B,B->S0", 16), Signature.of("B,B,B->B"))
    forward = Operator("forward", (0, 1, 2), (3,), ways, compute=8.0)
    back = (Signature.of("S0->P", 16), Signature.of("B->B"))
    backward = [
        Operator(name, (3,), (t,), back, compute=time, backward=True)
        for name, t, time in (("back2", 4, 12.0), ("back1", 5, 20.0))
    ]
    program = TensorProgram(tuple(tensors), (*source, *weights, forward, *backward))
    return program_workload(program, "three steps", time_unit="s")


@pytest.mark.parametrize(("bucket", "ends"), [(1.0, 29.0), (2048.0, 37.0)])
def test_by_hand(bucket: float, ends: float) -> None:
    """All-reduces of 2 · 0.5 s + 1024/128 s; one bucket pays 0.5 s twice, but begins at the end.

    Computing ends at 4 + 6 + 10 = 20 s; in two buckets the first is done by 19 s.
    """
    workload = three_steps()
    problem = Sharding(DeviceMesh((2,), (Link(0.5, 128.0),)), overlap=True, bucket_bytes=bucket)
    cluster = accelerators_and_cpus(2)
    split = TensorSharding([[0], [0], [0], [0], [0], [0]])
    assert evaluate(workload, cluster, problem, split).objective == pytest.approx(ends)
    plain = evaluate(workload, cluster, replace(problem, overlap=False), split).objective
    assert plain == pytest.approx(20 + 2 * 9)


def test_the_costs_are_those_of_the_verifier() -> None:
    compared = 0
    for _, (workload, problem) in cases():
        costs, cluster = priced(workload, problem), accelerators_and_cpus(problem.mesh.size)
        for sharding in shardings(costs)[::7]:
            chosen = costs.chosen(sharding.signature)
            assert chosen is not None
            found = evaluate(workload, cluster, problem, sharding).objective
            assert costs.objective(chosen) == pytest.approx(found, rel=1e-9)
            plain = evaluate(workload, cluster, replace(problem, overlap=False), sharding)
            assert found <= plain.objective * (1 + 1e-12)
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("chunk", range(4))
def test_methods_against_brute_force(chunk: int) -> None:
    tried = cases()[chunk::4]
    assert len(tried) >= 4
    for seed, (workload, problem) in tried:
        cluster = accelerators_and_cpus(problem.mesh.size)
        plans = shardings(priced(workload, problem))
        least = min(evaluate(workload, cluster, problem, plan).objective for plan in plans)
        for method in ("auto", "elimination", "messages", "milp", "milp-compact", "data-parallel"):
            result = solve(workload, problem=problem, method=method, limits=LIMITS, workers=1)
            assert result.plan is not None, (seed, method)
            assert result.bound <= least * (1 + 1e-9), (seed, method)
            assert result.objective >= least * (1 - 1e-9), (seed, method)
            if method in ("auto", "milp", "milp-compact"):
                assert result.objective == pytest.approx(least, rel=1e-6, abs=1e-9), (seed, method)
            else:
                assert check_bound(workload, result.plan).target <= least * (1 + 1e-12)
                above = 1.005 * least + 1e-9
                claimed = {**result.plan.certificate, "target": above}
                assert is_refused(workload, replace(result.plan, bound=above, certificate=claimed))


def test_bounds_within_a_memory_are_those_of_mixtures() -> None:
    least_cost_that_fits = 0
    for seed, (workload, problem) in cases()[::4]:
        cluster = accelerators_and_cpus(problem.mesh.size)
        found = []
        for plan in shardings(priced(workload, problem)):
            report = evaluate(workload, cluster, problem, plan)
            assert isinstance(report, ShardingReport)
            found.append((report.memory_bytes, report.objective))
        room = sorted(found)[len(found) // 3][0]
        least = min(objective for held, objective in found if held <= room)
        limited = replace(problem, memory_bytes=room)
        result = solve(workload, problem=limited, limits=LIMITS, workers=1)
        assert result.plan is not None, seed
        assert result.bound <= least * (1 + 1e-9), seed
        assert result.objective == pytest.approx(least, rel=1e-6, abs=1e-9), seed
        if result.bound_origin == FITTING:
            least_cost_that_fits += 1
            check_bound(workload, result.plan)
    assert least_cost_that_fits


def proved() -> tuple[Workload, Plan]:
    """A plan whose bound is that of a mixture."""
    for _, (workload, problem) in cases():
        plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
        if plan is not None and plan.certificate.get("mixture") and plan.objective > 0:
            return workload, plan
    raise AssertionError


def test_no_mixture_proves_too_much(tmp_path: Path) -> None:
    workload, plan = proved()
    save(plan, tmp_path / "plan.json", workload)
    read = load_plan(tmp_path / "plan.json", workload)
    assert check_bound(workload, read).target == pytest.approx(plan.bound)
    weights = plan.certificate["mixture"]
    assert isinstance(weights, list)
    target = 1.01 * plan.objective
    for mixture in (
        weights,
        [2.0 * w for w in weights],
        [*weights, 0.0],
        [-1.0, *weights[1:], 2.0],
    ):
        certificate = {**plan.certificate, "target": target, "mixture": mixture}
        forged = replace(plan, bound=target, certificate=certificate)
        with pytest.raises((InputError, VerificationError)):
            check_bound(workload, forged)


def test_buckets_are_filled_in_the_order_of_the_backward_pass() -> None:
    program = three_steps().program
    assert program is not None
    mesh = DeviceMesh((2,), (Link(0.5, 128.0),))
    for size, wanted in ((1.0, [[4], [5]]), (1024.0, [[4], [5]]), (1025.0, [[4, 5]])):
        problem = Sharding(mesh, overlap=True, bucket_bytes=size)
        assert gradient_buckets(program, problem) == wanted
    assert not gradient_buckets(program, Sharding(mesh))


def test_what_cannot_overlap_is_refused() -> None:
    mesh = DeviceMesh((2,), (Link(0.5, 128.0),))
    with pytest.raises(InputError, match="overlap: it shortens the objective time"):
        Sharding(mesh, "distpar", overlap=True)
    with pytest.raises(InputError, match="bucket_bytes: 0; it must be from 1"):
        Sharding(mesh, overlap=True, bucket_bytes=0)
    with pytest.raises(InputError, match="overlap: 1; it must be true or false"):
        Sharding(mesh, overlap=1)  # type: ignore[arg-type]
