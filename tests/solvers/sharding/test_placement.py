"""Parts of a program on groups of devices: by hand, by brute force, over time, and forged."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from brute_sharding import random_program, random_towers
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
from stagecut.instances.model.sharding import operator_groups, phases
from stagecut.runtime.export.shardings import dtensor_json
from stagecut.runtime.pictures.marks import sharded_marks
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.runtime.verify.sharding import ShardingReport

LIMITS = Limits(seconds=120, nodes=5000)
MOST_PLANS, MOST_SEEDS = 520, 120


def priced(workload: Workload, problem: Sharding) -> ShardingCosts:
    return sharding_costs(pose(workload, accelerators_and_cpus(problem.mesh.size), problem))


def placed(seed: int) -> tuple[Workload, Sharding] | None:
    """A random program with some parameters on groups; None if it has too many shardings."""
    rng = np.random.default_rng([seed, 9])
    shape = ((2,), (2, 2), (3,), (2, 2))[seed % 4]
    workload = random_program(rng) if seed % 5 == 0 else random_towers(rng, 5 // len(shape) ** 2)
    assert workload.program is not None
    links = tuple(Link(2 * float(rng.random()), float(rng.integers(5, 80))) for _ in shape)
    placement = tuple(
        (str(operator.name), int(rng.integers(shape[0])))
        for operator in workload.program.operators
        if operator.role == "parameter" and rng.random() < 0.8
    )
    if not placement:
        return None
    late = {"overlap": True, "bucket_bytes": float(rng.integers(10, 400))} if seed % 3 else {}
    problem = Sharding(DeviceMesh(shape, links), placement=placement, **late)  # type: ignore[arg-type]
    plans = math.prod(len(one.cost) for one in priced(workload, problem).choices)
    return (workload, problem) if 2 <= plans <= MOST_PLANS else None


@cache  # not for all workers of xdist, when they collect the tests
def cases() -> list[tuple[int, tuple[Workload, Sharding]]]:
    return [(seed, case) for seed in range(MOST_SEEDS) if (case := placed(seed)) is not None]


def shardings(costs: ShardingCosts) -> list[TensorSharding]:
    chosen = itertools.product(*(range(len(one.cost)) for one in costs.choices))
    return [TensorSharding(costs.signature(np.array(one))) for one in chosen]


def two_towers() -> tuple[Workload, Sharding]:
    """Two weights; forward 8 s each, a loss of 2 s, backward 12 s each; tensors of 1,024 bytes."""
    tensors = [
        Tensor(name, (16, 16)) for name in ("x", "wa", "wb", "one", "a", "b", "l", "ga", "gb")
    ]
    ways = (Signature.of("->S0", 16), Signature.of("->B"))
    copied = (Signature.of("->B"),)
    one, two = (Signature.of("B->B"),), (Signature.of("B,B->B"),)
    operators = (
        Operator("x", (), (0,), ways, "input"),  # type: ignore[arg-type]
        Operator("a.weight", (), (1,), copied, "parameter", gradient=7),  # type: ignore[arg-type]
        Operator("b.weight", (), (2,), copied, "parameter", gradient=8),  # type: ignore[arg-type]
        Operator("ones", (), (3,), copied),
        Operator("make a", (0, 1), (4,), two, compute=8.0),
        Operator("make b", (3, 2), (5,), two, compute=8.0),
        Operator("loss", (4, 5), (6,), two, compute=2.0),
        Operator("back a", (6,), (7,), one, compute=12.0, backward=True),
        Operator("back b", (6,), (8,), one, compute=12.0, backward=True),
    )
    workload = program_workload(TensorProgram(tuple(tensors), operators), "towers", time_unit="s")
    mesh = DeviceMesh((2,), (Link(0.0, 1024.0),))
    return workload, Sharding(mesh, placement=(("a", 0), ("b", 1)))


def test_by_hand() -> None:
    """The input is gathered in 0.5 s, a and b are broadcast in 1 s each; groups are in parallel."""
    workload, problem = two_towers()
    plan = solve(workload, problem=problem).plan
    assert plan is not None
    assert plan.objective == pytest.approx(0.5 + 8 + 2 + 2 + 12)
    whole = solve(workload, problem=replace(problem, placement=())).objective
    assert whole == pytest.approx(0.5 + 16 + 2 + 24)
    report = evaluate(workload, plan.cluster, problem, plan.solution)
    assert isinstance(report, ShardingReport)
    line = report.timeline
    starts = {event.name: (event.group, event.start) for event in line.events}
    assert starts["make a"] == (0, 0.5)
    assert starts["make b"] == (1, 0.5)
    assert starts["back b"] == (1, 12.5)
    marks = sharded_marks(line)
    lanes = {bar.whole: marks.lanes[bar.lane] for bar in marks.bars}
    assert lanes["make a"] == "group 0 compute"
    assert lanes["back b"] == "group 1 compute"
    assert report.lying[2] == ("I1",)
    # a weight with its gradient and two states; the backward pass reads what the loss makes
    assert report.memory_bytes == 5 * 1024


def test_layers_that_wait_for_each_other() -> None:
    """Between two groups a tensor is broadcast, in 1 s, not scattered, in half of that."""
    tensors = tuple(Tensor(name, (16, 16)) for name in ("x", "wa", "wb", "a", "b", "ga", "gb"))
    copied = (Signature.of("->B"),)
    one, two = (Signature.of("B->B"),), (Signature.of("B,B->B"),)
    operators = (
        Operator("x", (), (0,), copied, "input"),  # type: ignore[arg-type]
        Operator("a.weight", (), (1,), copied, "parameter", gradient=5),  # type: ignore[arg-type]
        Operator("b.weight", (), (2,), copied, "parameter", gradient=6),  # type: ignore[arg-type]
        Operator("make a", (0, 1), (3,), two, compute=8.0),
        Operator("make b", (3, 2), (4,), two, compute=8.0),
        Operator("back b", (4,), (6,), one, compute=12.0, backward=True),
        Operator("back a", (6,), (5,), one, compute=12.0, backward=True),
    )
    workload = program_workload(TensorProgram(tensors, operators), "layers", time_unit="s")
    problem = replace(two_towers()[1], placement=(("a", 0), ("b", 1)))
    plan = solve(workload, problem=problem).plan
    assert plan is not None
    assert plan.objective == pytest.approx(8 + 1 + 8 + 12 + 1 + 12)
    assert priced(workload, problem).objective(np.zeros(7, np.int64)) == plan.objective


def test_operators_follow_their_parameters() -> None:
    workload, problem = two_towers()
    program = workload.program
    assert program is not None
    groups = operator_groups(program, problem.placement)
    assert groups == (None, 0, 1, 1, 0, 1, None, 0, 1)
    assert phases(program, groups) == [None, None, None, 0, 0, 0, None, 1, 1]
    only = operator_groups(program, (("a.weight", 1),))
    assert only == (None, 1, None, None, 1, None, None, 1, None)
    both = (("a", 0), ("a.weight", 1))  # the inner module counts, in either order
    assert operator_groups(program, both) == operator_groups(program, both[::-1]) == only


def test_the_costs_are_those_of_the_verifier() -> None:
    several = buckets = 0
    for _, (workload, problem) in cases():
        costs, cluster = priced(workload, problem), accelerators_and_cpus(problem.mesh.size)
        assert costs.ends is not None
        several += len(costs.ends.operators) > len(costs.ends.phases)
        for sharding in shardings(costs)[::7]:
            chosen = costs.chosen(sharding.signature)
            assert chosen is not None
            found = evaluate(workload, cluster, problem, sharding).objective
            assert costs.objective(chosen) == pytest.approx(found, rel=1e-9)
        late = costs.ends.tensors[costs.ends.weights == 0].any()
        buckets += int(late and len(problem.mesh.shape) == 2)
    assert several > 10  # in which groups work beside each other
    assert buckets > 5  # and convert gradients beside that


@pytest.mark.parametrize(
    "chunk", [pytest.param(k, marks=() if k == 0 else pytest.mark.slow) for k in range(8)]
)
def test_methods_against_brute_force(chunk: int) -> None:
    tried = cases()[chunk::8]
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


def proved() -> tuple[Workload, Plan]:
    workload, problem = two_towers()
    plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
    assert plan is not None
    return workload, plan


def test_no_mixture_proves_too_much(tmp_path: Path) -> None:
    workload, plan = proved()
    save(plan, tmp_path / "plan.json", workload)
    read = load_plan(tmp_path / "plan.json", workload)
    assert read.problem == plan.problem
    assert check_bound(workload, read).target == pytest.approx(plan.bound)
    weights = plan.certificate["mixture"]
    assert isinstance(weights, list)
    assert len(weights) == 5  # of all devices, and of two groups in two phases
    target = 1.01 * plan.objective
    for mixture in (
        weights,
        [2.0 * w for w in weights],
        [1.0, 1.0, 1.0, 0.0, 0.0],
        [*weights, 0.0],
        [1.0, -1.0, 2.0, 0.5, 0.5],
        [],
    ):
        certificate = {**plan.certificate, "target": target, "mixture": mixture}
        forged = replace(plan, bound=target, certificate=certificate)
        with pytest.raises((VerificationError, InputError)):
            check_bound(workload, forged)


def test_a_bucket_counts_for_the_ends_of_its_own_group() -> None:
    """Each group divides its backward pass, and adds up its gradient beside the other group."""
    workload, problem = two_towers()
    program = workload.program
    assert program is not None
    ways = (Signature.of("B->B"), Signature.of("S0->P", 16))
    back = tuple(replace(one, signatures=ways) for one in program.operators[-2:])
    split = TensorProgram(program.tensors, (*program.operators[:-2], *back))
    workload = program_workload(split, "towers", time_unit="s")
    mesh = DeviceMesh((2, 2), (Link(0.0, 1024.0),) * 2)
    fixed = (("back b", "I1xS0->I1xP"),)  # else it would add up nothing where that is not counted
    problem = replace(problem, mesh=mesh, overlap=True, fixed=fixed)
    plan = solve(workload, problem=problem, method="elimination", limits=LIMITS).plan
    assert plan is not None
    # all devices; the first phase; of the second, computing and bucket of each group
    weights = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]

    def claimed(plan: Plan, bound: float) -> Plan:
        certificate = {**plan.certificate, "mixture": weights, "target": bound}
        return replace(plan, bound=bound, certificate=certificate)

    check_bound(workload, claimed(plan, 0.999 * plan.objective))
    with pytest.raises(VerificationError, match="is proved, and not"):
        check_bound(workload, claimed(plan, 1.001 * plan.objective))


def test_what_cannot_be_placed_is_refused() -> None:
    workload, problem = two_towers()
    mesh = problem.mesh
    with pytest.raises(InputError, match="placement: a: group 2; the first axis of the mesh 2 has"):
        Sharding(mesh, placement=(("a", 2),))
    with pytest.raises(InputError, match="placement: it is of the objective time"):
        Sharding(mesh, "distpar", placement=(("a", 1),))
    with pytest.raises(InputError, match="placement: groups hold unlike amounts"):
        Sharding(mesh, memory_bytes=1e9, placement=(("a", 1),))
    with pytest.raises(InputError, match="placement: no parameter is in a module c"):
        solve(workload, problem=Sharding(mesh, placement=(("c", 1),)))
    with pytest.raises(InputError, match="placement: a is named twice"):
        Sharding(mesh, placement=(("a", 1), ("a", 0)))
    _, plan = proved()
    with pytest.raises(InputError, match="dtensor: it has no groups of devices"):
        dtensor_json(workload, plan)


def test_what_is_on_a_group_is_not_divided_by_the_first_axis() -> None:
    workload, problem = two_towers()
    program = workload.program
    assert program is not None
    ways = (Signature.of("S0->S0", 16), Signature.of("B->B"))
    back = replace(program.operators[-1], signatures=ways)
    split = TensorProgram(program.tensors, (*program.operators[:-1], back))
    divided = TensorSharding([[0]] * len(split.operators))
    report = evaluate(
        program_workload(split, "towers", time_unit="s"), accelerators_and_cpus(2), problem, divided
    )
    assert report.violations == (
        "operator back b is placed on group 1, and divided by the first axis",
    )
