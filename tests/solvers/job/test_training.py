"""Training plans: the DP, the integer program and brute force agree, and keep the rules."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from sweep import case_of
from training_cases import best_objective, random_training_case

from stagecut import (
    InputError,
    Limits,
    PipelineJob,
    VerificationError,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.instances import LayerRule, Stage, StagePlacement, in_stages
from stagecut.runtime import evaluate

GIB = 2.0**30


def _agrees(result: object, best: float) -> None:
    if math.isinf(best):
        assert result.status == "infeasible"  # type: ignore[attr-defined]
        assert result.reason  # type: ignore[attr-defined]
        return
    assert result.status == "optimal"  # type: ignore[attr-defined]
    assert result.objective == pytest.approx(best, rel=2e-7)  # type: ignore[attr-defined]


@cache
def best_of(seed: int) -> float:
    return best_objective(*random_training_case(seed))


@pytest.mark.parametrize("seed", range(100))
def test_dp_is_brute_force(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed)
    result = solve(workload, cluster, problem, method="dp")
    _agrees(result, best_of(seed))
    if result.plan is not None:
        verify(workload, result.plan)


@pytest.mark.parametrize("seed", range(40))
def test_milp_is_brute_force_on_devices_that_differ(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed, max_nodes=4, max_devices=3, kinds=2)
    result = solve(workload, cluster, problem, method="milp")
    _agrees(result, best_objective(workload, cluster, problem))


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_milp_is_dp(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed, max_nodes=4, max_devices=4)
    by_dp = solve(workload, cluster, problem, method="dp")
    by_milp = solve(workload, cluster, problem, method="milp:start=none")
    assert by_milp.status == by_dp.status
    if by_dp.objective is not None:
        assert by_milp.objective == pytest.approx(by_dp.objective, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2300))
def test_milp_is_dp_on_many(seed: int) -> None:
    test_milp_is_dp(seed)


@pytest.mark.parametrize("seed", range(30))
def test_baselines_keep_the_rules_and_are_no_better(seed: int) -> None:
    workload, cluster, problem = random_training_case(seed)
    free = replace(problem, server_devices=None, server_bandwidth=None)
    best = best_of(seed) if free == problem else best_objective(workload, cluster, free)
    for method in ("piper", "equal-stages", "data-parallel"):
        result = solve(workload, cluster, free, method=method)
        if result.plan is not None:
            verify(workload, result.plan)
            assert result.plan.objective >= best * (1 - 1e-12)


PUBLISHED = [  # memory in GiB, devices, switches, what the authors' program gives
    (8, 8, {}, 0.165856),
    (8, 32, {}, 0.0415155),
    (8, 64, {}, 0.0202006),
    (8, 128, {}, 0.0101209),
    (8, 512, {}, 0.00256113),
    (2, 64, {}, 0.0320301),
    (2, 512, {}, 0.00366753),
    (80, 512, {}, 0.00227252),
    (8, 64, {"degrees": (1,)}, 0.0202006),
    (8, 64, {"replicas": (1,)}, 0.0739063),
    (8, 64, {"recomputation": "off"}, 0.0279883),
]


@pytest.mark.parametrize("method", ["dp", "piper"])
@pytest.mark.parametrize(("memory", "devices", "switches", "value"), PUBLISHED)
def test_the_published_programs_values_are_met(
    benchmarks: Path, memory: int, devices: int, switches: dict[str, object], value: float,
    method: str,
) -> None:  # fmt: skip
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = accelerators_and_cpus(devices, 0, memory * GIB)
    problem = PipelineJob(bandwidth=25 * GIB, **switches)  # type: ignore[arg-type]
    result = solve(workload, cluster, problem, method=method)
    assert result.plan is not None
    assert result.plan.objective == pytest.approx(value, rel=3e-6)
    assert method == "piper" or result.status == "optimal"
    verify(workload, result.plan)


def test_equal_stages_are_the_published_ones(benchmarks: Path) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    problem = PipelineJob(bandwidth=25 * GIB)
    result = solve(workload, accelerators_and_cpus(64, 0, 8 * GIB), problem, method="equal-stages")
    assert result.objective == pytest.approx(0.0257245, rel=3e-6)


def test_gnmt_of_18_thousand_ideals_is_proved(benchmarks: Path) -> None:
    workload = load(benchmarks / "piper" / "gnmt.json")
    result = solve(workload, accelerators_and_cpus(3, 0, 80e9), method="auto")
    assert result.status == "optimal"
    assert result.objective == pytest.approx(173.534765, rel=1e-6)


@pytest.mark.parametrize("name", ["vgg16", "alexnet", "gnmt"])
def test_no_worse_than_pipedreams_optimizer(benchmarks: Path, name: str) -> None:
    workload = load(benchmarks / "pipedream" / f"{name}.txt")
    cluster = accelerators_and_cpus(4, 0, 64 * GIB)
    problem = PipelineJob(bandwidth=1.25e9, in_flight="pipedream")
    plans = [
        solve(workload, cluster, problem, method=method, limits=Limits(gap=0.05))
        for method in ("dp", "pipedream", "data-parallel")
    ]
    ours, theirs, replicas = (plan.objective for plan in plans)
    assert ours is not None
    assert theirs is not None
    assert replicas is not None
    assert ours <= theirs * (1 + 1e-9)
    assert ours <= replicas * (1 + 1e-9)


def test_what_is_missing_is_said_in_bytes(benchmarks: Path) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = accelerators_and_cpus(64, 0, 1e8)
    result = solve(workload, cluster, PipelineJob(bandwidth=25 * GIB))
    assert result.status == "infeasible"
    need, unit = result.reason.split(" needs ")[1].split(",")[0].split()
    assert unit == "GiB"
    enough = accelerators_and_cpus(64, 0, (float(need) + 0.005) * GIB)  # it is rounded
    assert solve(workload, enough, PipelineJob(bandwidth=25 * GIB)).plan is not None
    short = accelerators_and_cpus(64, 0, (float(need) - 0.005) * GIB)
    assert solve(workload, short, PipelineJob(bandwidth=25 * GIB)).status == "infeasible"


def test_what_is_missing_is_that_of_a_plan_which_keeps_the_rules() -> None:
    case = case_of("training", 1228)  # four replicas would need less, but are forbidden
    result = solve(case.workload, case.cluster, case.problem, method="dp")
    assert result.status == "infeasible"
    need = float(result.reason.split(" needs ")[1].split(",")[0].split()[0])
    enough = accelerators_and_cpus(4, 0, need + 1)
    assert solve(case.workload, enough, case.problem, method="dp").plan is not None


def test_memory_terms_add_up(benchmarks: Path) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = accelerators_and_cpus(32, 0, 16 * GIB)
    problem = PipelineJob(bandwidth=25 * GIB, optimizer="adam", in_flight="2bw")
    plan = solve(workload, cluster, problem).plan
    assert plan is not None
    for stage in evaluate(workload, cluster, problem, plan.solution).stages:
        assert stage.optimizer_bytes == 2 * stage.weight_bytes
        assert stage.version_bytes == stage.weight_bytes
        assert stage.memory_bytes == pytest.approx(sum(stage.terms.values()))
        assert stage.binding in stage.terms


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s[:-1], "in no stage"),
        (lambda s: s[::-1], "earlier stage"),
        (lambda s: (s[1], s[0], *s[2:]), "earlier stage"),
        (lambda s: (*s, s[0]), "and in stage"),
        (lambda s: (replace(s[0], replicas=7), *s[1:]), "do not divide"),
        (lambda s: (replace(s[0], replicas=1920), *s[1:]), "devices of kind"),
        (lambda s: (replace(s[0], degree=2), *s[1:]), "tensor degree"),
        (lambda s: (replace(s[0], configuration=s[1].configuration[:1] * len(s[0].nodes)), *s[1:]),
         "belongs to another node"),
        (lambda s: (Stage(tuple(v for x in s for v in x.nodes),
                          tuple(c for x in s for c in x.configuration), 1, 1),), "more than its"),
    ],
)  # fmt: skip
def test_the_verifier_finds_what_is_wrong(benchmarks: Path, change: object, words: str) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    cluster = accelerators_and_cpus(8, 0, 8 * GIB)
    problem = PipelineJob(bandwidth=25 * GIB, degrees=(1,))
    plan = solve(workload, cluster, problem).plan
    assert plan is not None
    assert isinstance(plan.solution, StagePlacement)
    stages = change(plan.solution.stages)  # type: ignore[operator]
    device = in_stages(plan.solution.stages, cluster).device
    report = evaluate(workload, cluster, problem, StagePlacement(stages, device))
    assert any(words in violation for violation in report.violations)
    with pytest.raises(VerificationError):
        verify(workload, replace(plan, solution=StagePlacement(stages, device)))


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (lambda: PipelineJob(bandwidth=-1), "bandwidth"),
        (lambda: PipelineJob(degrees=()), "degrees"),
        (lambda: PipelineJob(replicas=(0,)), "replicas"),
        (lambda: PipelineJob(recomputation="maybe"), "recomputation"),  # type: ignore[arg-type]
        (lambda: PipelineJob(server_devices=4), "server"),
        (lambda: PipelineJob(rules=(LayerRule(99, degrees=(1,)),)), "99"),
        (lambda: PipelineJob(rules=(LayerRule(3, degrees=(3,)),)), "node 3"),
        (lambda: PipelineJob(replicas=(7,)), "divides"),
        (lambda: PipelineJob(uncut=((3, 99),)), "99"),
    ],
)
def test_wrong_problems_are_named(benchmarks: Path, problem: object, words: str) -> None:
    workload = load(benchmarks / "piper" / "bert32a100.json")
    with pytest.raises(InputError, match=words):
        solve(workload, accelerators_and_cpus(8), problem())  # type: ignore[operator]


def test_every_rule_of_a_layer_holds() -> None:
    """The first of two rules of a layer is no less one; of no layer there is none."""
    workload, cluster, problem = random_training_case(0)
    plan = solve(workload, cluster, problem, method="dp").plan
    assert plan is not None
    assert isinstance(plan.solution, StagePlacement)
    (first, *_) = plan.solution.stages
    node = workload.ids[first.nodes[0]]
    rules = LayerRule(node, replicas=(first.replicas + 1,)), LayerRule(node)
    report = evaluate(workload, cluster, replace(problem, rules=rules), plan.solution)
    assert any("replicas are not allowed" in line for line in report.violations)
    changed = replace(plan, problem=replace(problem, rules=(LayerRule(-1),)))
    with pytest.raises(InputError, match=r"rules: .* has no node -1"):
        verify(workload, changed)
