"""Training plans in the simulator: time per microbatch, memory, all-reduces as defined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_cases import random_training_case

import stagecut
from stagecut import PipelineJob, Plan, Workload
from stagecut.instances import StagePlacement, layers_of
from stagecut.runtime import evaluate
from stagecut.runtime.simulate.plan_stages import forward_time, stages_of, usual_schedule
from stagecut.runtime.simulate.simulator import simulate

LIMITS = stagecut.Limits(seconds=60)


def _asynchronous(problem: PipelineJob) -> str:
    return "pipedream" if problem.in_flight == "pipedream" else "2bw"


def _max_time(workload: Workload, plan: Plan) -> float:
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    return max(stage.time for stage in report.stages)


@pytest.mark.parametrize("seed", range(28))
def test_random_plans_run_at_their_time_per_sample(seed: int) -> None:
    schedule = ("1f1b", "gpipe", "2bw", "pipedream")[seed % 4]
    workload, cluster, problem = random_training_case(seed, max_devices=9)
    problem = replace(problem, in_flight=schedule, rules=())
    plan = stagecut.solve(workload, cluster, problem, limits=LIMITS).plan
    if plan is None:
        return
    run = simulate(workload, plan, _asynchronous(problem), 24)
    assert run.time_per_sample == pytest.approx(plan.objective, rel=1e-9, abs=1e-12)
    usual = simulate(workload, plan)
    assert usual.schedule.name == schedule
    if schedule in ("1f1b", "gpipe"):  # as many microbatches in flight as the problem counts
        assert usual.over_memory == []


@pytest.mark.parametrize(
    ("name", "devices", "schedule"),
    [
        ("bert32a100", 8, "1f1b"),
        ("gnmt", 16, "pipedream"),
        pytest.param("bert32a100", 64, "1f1b", marks=pytest.mark.slow),
        pytest.param("bert32a100", 64, "pipedream", marks=pytest.mark.slow),
        pytest.param("bert32a100", 8, "pipedream", marks=pytest.mark.slow),
        pytest.param("gnmt", 16, "1f1b", marks=pytest.mark.slow),
    ],
)
def test_piper_plans_run_at_their_time_per_sample(
    benchmarks: Path, name: str, devices: int, schedule
) -> None:
    workload = stagecut.load(benchmarks / "piper" / f"{name}.json")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(accelerators=devices, memory_bytes=8 * 2**30)
    problem = PipelineJob(in_flight=schedule)
    for method in ("dp", "equal-stages"):
        plan = stagecut.solve(workload, cluster, problem, method=method, limits=LIMITS).plan
        if plan is None:
            continue
        run = simulate(workload, plan, _asynchronous(problem), 8)
        assert run.time_per_sample == pytest.approx(plan.objective, rel=1e-9)
        if schedule == "1f1b":
            run = simulate(workload, plan, "1f1b")
            assert run.schedule.microbatches == layers_of(workload).microbatches
            assert run.over_memory == []
            # Without the all-reduces, which come once at the end of the batch, and the fill.
            report = evaluate(workload, cluster, problem, plan.solution)
            batch = run.schedule.microbatches
            most = max(stage.time - stage.synchronise for stage in report.stages)
            assert run.makespan > batch * most


@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_pipedream_graphs_say_how_long_a_forward_takes(benchmarks: Path, name: str) -> None:
    workload = stagecut.load(benchmarks / "pipedream" / f"{name}.txt")
    problem = PipelineJob(bandwidth=1e9, in_flight="pipedream")
    cluster = stagecut.accelerators_and_cpus(4, memory_bytes=16 * 2**30)
    plan = stagecut.solve(workload, cluster, problem, limits=LIMITS).plan
    assert plan is not None
    assert isinstance(plan.solution, StagePlacement)
    stages = stages_of(workload, plan)
    for s, stage in enumerate(plan.solution.stages):
        nodes = list(stage.nodes)
        assert stages.compute[s].tolist() == pytest.approx(
            [
                workload.extra["forward_time"][nodes].sum(),
                workload.extra["backward_time"][nodes].sum(),
            ]
        )
    assert simulate(workload, plan).time_per_sample == pytest.approx(plan.objective, rel=1e-9)


def test_recomputation_makes_the_backward_longer(benchmarks: Path) -> None:
    workload = stagecut.load(benchmarks / "piper" / "bert32a100.json")
    layers = layers_of(workload)
    for c in np.flatnonzero(layers.recomputes).tolist():
        node = int(layers.node[c])
        same = (layers.node == node) & (layers.degree == layers.degree[c]) & ~layers.recomputes
        plain = int(np.flatnonzero(same)[0])
        forward = forward_time(workload, layers, node, c)
        assert forward == forward_time(workload, layers, node, plain)
        assert forward == pytest.approx(layers.time[plain] / 3)


def test_a_replica_of_tensor_degree_two_is_one_device(benchmarks: Path) -> None:
    workload = stagecut.load(benchmarks / "piper" / "bert32a100.json")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(accelerators=8)
    problem = PipelineJob(degrees=(2,), replicas=(2,))
    plan = stagecut.solve(workload, cluster, problem, limits=LIMITS).plan
    assert plan is not None
    assert usual_schedule(plan) == "1f1b"
    stages = stages_of(workload, plan)
    assert stages.devices[0] == "accelerator 0–1"
    assert [len(ring) for ring in stages.replicas] == [2] * stages.count
    run = simulate(workload, plan, "2bw", 16)
    assert run.time_per_sample == pytest.approx(_max_time(workload, plan), rel=1e-9)
    assert {"REDUCE_GRAD"} <= set(run.actions_to_pandas()["kind"])
