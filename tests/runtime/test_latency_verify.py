"""The latency verifier against brute force, and against plans that break one rule."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from brute_latency import least_latency
from cases import random_case

import stagecut
from stagecut import Latency, Throughput, VerificationError, Workload, accelerators_and_cpus
from stagecut.instances import CallPlacement, Placement
from stagecut.instances.formats.files import load_plan, save
from stagecut.runtime import evaluate


@pytest.mark.parametrize("seed", range(40))
def test_the_verifier_and_brute_force_agree_on_every_division(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=4, max_accelerators=2, max_kinds=2)
    problem = Latency(calls=1 + seed % 2)
    hosts = [d for d, one in enumerate(cluster.devices) if cluster.kinds[one.kind].host]
    slots = [(d, -1) for d in hosts] + [
        (d, c) for d in range(cluster.size) if d not in hosts for c in range(problem.calls)
    ]
    best = math.inf
    for chosen in itertools.product(slots, repeat=workload.n):
        device, call = np.array(chosen).T
        report = evaluate(workload, cluster, problem, CallPlacement(device, call))
        if not report.violations:
            best = min(best, report.objective)
    assert best == pytest.approx(least_latency(workload, cluster, problem), rel=1e-12)


def chain() -> Workload:
    return Workload(
        name="chain",
        ids=("a", "b", "c"),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.array([1.0, 2.0, math.inf]), "cpu": np.array([10.0, 20.0, 30.0])},
        memory_bytes=np.array([4.0, 4.0, 4.0]),
        transfer=np.array([0.5, 0.25, 7.0]),
        colours=np.array([0, 0, -1]),
    )


def test_a_request_is_executed_call_by_call() -> None:
    """a alone 0 to 1 and 0.5 out; b waits, 0.5 in, 2, 0.25 out; c on a CPU for 30."""
    report = evaluate(
        chain(),
        accelerators_and_cpus(1, 2),
        Latency(2),
        CallPlacement(np.array([0, 0, 2]), [0, 3, -1]),
    )
    assert not report.violations
    assert report.objective == pytest.approx(34.25)
    shown = [(c.device_name, c.number, c.nodes, c.start, c.finish) for c in report.calls]
    assert shown == [
        ("accelerator", 1, ("a",), 0.0, 1.5),
        ("accelerator", 2, ("b",), 1.5, 4.25),
        ("cpu", 0, ("c",), 4.25, 34.25),
    ]
    assert report.devices[0].load == pytest.approx(4.25)


@pytest.mark.parametrize(
    ("device", "call", "calls", "message"),
    [
        ([0, 0, 0], [0, 0, 0], 1, "node c is on accelerator 0, which does not support it"),
        ([0, 1, 2], [0, 0, -1], 1, "colour 0 is spread over accelerator 0, accelerator 1"),
        ([0, 2, 3], [0, -1, -1], 1, "colour 0 is spread over accelerator 0, cpu"),
        ([0, 0, 2], [0, 1, -1], 1, "accelerator 0 runs 2 calls; at most 1 may be run"),
        ([0, 0, 2], [0, 0, 0], 1, "node c on cpu 0 has call 0"),
        ([0, 0, 2], [-1, 0, -1], 1, "node a on accelerator 0 has call -1"),
        ([0, 0, 2], [1, 0, -1], 2, "wait for each other"),
        ([0, 0, 2], [0, 0, -1], 1, "accelerator 0 holds 8 B, 1 B more than its 7 B"),
    ],
)
def test_a_broken_rule_is_named(device: list[int], call: list[int], calls: int, message: str):
    cluster = accelerators_and_cpus(2, 2, memory_bytes=7 if "holds" in message else math.inf)
    report = evaluate(
        chain(), cluster, Latency(calls), CallPlacement(np.array(device), np.array(call))
    )
    assert any(message in violation for violation in report.violations)


def test_the_pool_of_cpus_is_one_place() -> None:
    report = evaluate(
        chain(),
        accelerators_and_cpus(0, 2),
        Latency(),
        CallPlacement(np.array([0, 1, 0]), [-1] * 3),
    )
    assert not report.violations
    assert report.objective == 60.0


def test_a_solution_of_another_problem_is_refused() -> None:
    with pytest.raises(VerificationError, match="a Placement is no solution of latency"):
        evaluate(chain(), accelerators_and_cpus(1), Latency(), Placement(np.zeros(3)))
    with pytest.raises(VerificationError, match="a CallPlacement is no solution of throughput"):
        evaluate(
            chain(), accelerators_and_cpus(1), Throughput(), CallPlacement(np.zeros(3), np.zeros(3))
        )


def test_a_plan_file_keeps_the_calls(tmp_path: Path) -> None:
    workload = chain()
    plan = stagecut.solve(workload, accelerators_and_cpus(1, 2), Latency(2), method="greedy").plan
    assert plan is not None
    save(plan, tmp_path / "plan.json", workload)
    again = load_plan(tmp_path / "plan.json", workload)
    assert isinstance(again.solution, CallPlacement)
    assert again.problem == plan.problem
    assert again.solution.device.tolist() == plan.solution.device.tolist()
    assert isinstance(plan.solution, CallPlacement)
    assert again.solution.call.tolist() == plan.solution.call.tolist()
