"""Numbers far from 1: what counts is how they compare with each other, not how large they are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute import best_max_load
from brute_latency import least_latency
from cases import random_case
from training_cases import best_objective, random_training_case

from stagecut import Latency, PipelineJob, Throughput, Workload, solve
from stagecut.instances import Problem
from stagecut.solvers import Result

#: What a certificate may be off by, relatively.
TOLERANCE = 2e-6


def _scaled(workload: Workload, time: float, transfer: float) -> Workload:
    assert workload.transfer is not None
    return replace(
        workload,
        times={kind: values * time for kind, values in workload.times.items()},
        transfer=workload.transfer * transfer,
    )


def _training_scaled(
    workload: Workload, problem: PipelineJob, time: float
) -> tuple[Workload, PipelineJob]:
    layers = workload.layers
    assert layers is not None
    assert layers.bandwidth is not None
    slower = replace(layers, time=layers.time * time, bandwidth=layers.bandwidth / time)
    if problem.server_bandwidth is not None:
        problem = replace(problem, server_bandwidth=problem.server_bandwidth / time)
    return replace(workload, layers=slower), problem


def _holds(result: Result, best: float) -> None:
    """What a result says is true of a problem whose optimum is `best`."""
    assert result.bound <= best * (1 + TOLERANCE)
    if result.status == "infeasible":
        assert math.isinf(best)
    if result.plan is not None:
        assert result.plan.objective >= best * (1 - 1e-9)
    if result.status == "optimal":
        assert result.plan is not None
        assert result.plan.objective <= best * (1 + TOLERANCE)


def _same(one: Result, other: Result, scale: float) -> None:
    assert one.status == other.status
    if one.plan is not None:
        assert other.plan is not None
        assert other.plan.objective == pytest.approx(one.plan.objective * scale, rel=TOLERANCE)
        slack = TOLERANCE * other.plan.objective
        assert other.bound == pytest.approx(one.bound * scale, rel=TOLERANCE, abs=slack)


def _throughput(rng: np.random.Generator) -> Throughput:
    return Throughput(
        split=("contiguous", "noncontiguous", "per-device")[int(rng.integers(3))],
        cpu_split="free" if rng.random() < 0.5 else "contiguous",
        overlap=bool(rng.random() < 0.5),
        pipeline="gpipe" if rng.random() < 0.3 else "pipedream",
    )


@pytest.mark.parametrize("exponent", [-15, -9, 12])
@pytest.mark.parametrize(
    ("kind", "method"),
    [("throughput", m) for m in ("auto", "dp", "greedy", "local-search", "milp")]
    + [("latency", m) for m in ("dp", "greedy", "max-load", "milp")]
    + [("stream", m) for m in ("dp", "milp", "equal-stages")],
)
def test_all_times_scale_together(kind: str, method: str, exponent: int) -> None:
    scale = 10.0**exponent
    for seed in range(4):
        rng = np.random.default_rng(seed)
        problem: Problem
        if kind == "stream":
            workload, cluster, training = random_training_case(seed, max_nodes=4, max_devices=3)
            large, problem = _training_scaled(workload, training, scale)
            _same(
                solve(workload, cluster, training, method=method),
                solve(large, cluster, problem, method=method),
                scale,
            )
            continue
        workload, cluster = random_case(seed, max_nodes=6, max_kinds=2)
        problem = Latency(int(rng.integers(1, 3))) if kind == "latency" else _throughput(rng)
        _same(
            solve(workload, cluster, problem, method=method),
            solve(_scaled(workload, scale, scale), cluster, problem, method=method),
            scale,
        )


@pytest.mark.parametrize("seed", range(60))
def test_scales_mixed_in_one_workload_for_throughput(seed: int) -> None:
    """The DP adds and subtracts transfers; large ones must not drown what is left."""
    rng = np.random.default_rng([seed, 7])
    workload, cluster = random_case(seed, max_nodes=7, max_cores=2, max_kinds=2)
    assert workload.transfer is not None
    workload = replace(
        workload,
        times={k: x * 10.0 ** rng.choice([-12, -6], workload.n) for k, x in workload.times.items()},
        transfer=workload.transfer * 10.0 ** rng.choice([-12, -6, 0, 6], workload.n),
    )
    problem = _throughput(rng)
    best = best_max_load(workload, cluster, problem)
    for method in ("dp", "linear-dp", "greedy", "pipedream"):
        _holds(solve(workload, cluster, problem, method=method), best)


@pytest.mark.parametrize("seed", range(12))
def test_scales_mixed_in_one_workload_for_latency(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    workload, cluster = random_case(seed, max_nodes=5, max_accelerators=2)
    workload = _scaled(workload, 1.0, 10.0 ** float(rng.integers(-12, 13)))
    problem = Latency(int(rng.integers(1, 3)))
    best = least_latency(workload, cluster, problem)
    for method in ("dp", "linear", "max-load"):
        _holds(solve(workload, cluster, problem, method=method), best)


@pytest.mark.parametrize("seed", range(40))
def test_scales_mixed_in_one_workload_for_training(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    workload, cluster, problem = random_training_case(seed, max_nodes=4, max_devices=3)
    layers = workload.layers
    assert layers is not None
    spread = 10.0 ** rng.integers(-9, 10, layers.size)
    workload = replace(workload, layers=replace(layers, time=layers.time * spread))
    best = best_objective(workload, cluster, problem)
    for method in ("dp", "piper", "equal-stages"):
        result = solve(workload, cluster, problem, method=method)
        _holds(result, best)
        if method == "dp" and math.isfinite(best):
            assert result.objective == pytest.approx(best, rel=TOLERANCE)


def test_a_seen_case_of_drowned_loads() -> None:
    """Transfers of 1 beside loads of 1e-12: the linearised DP claimed loads that were not."""
    for seed in (3, 20, 156):
        rng = np.random.default_rng([seed, 7])
        workload, cluster = random_case(
            seed, max_nodes=9, max_accelerators=3, max_cores=2, max_kinds=2
        )
        assert workload.transfer is not None
        time = 10.0 ** rng.choice([-12, -6], workload.n)
        transfer = 10.0 ** rng.choice([-12, -6, 0, 6], workload.n)
        workload = replace(
            workload,
            times={k: x * time for k, x in workload.times.items()},
            transfer=workload.transfer * transfer,
        )
        problem = Throughput(split="contiguous", cpu_split="free" if seed % 2 else "contiguous")
        for method in ("dp", "linear-dp"):
            assert solve(workload, cluster, problem, method=method).plan is not None
