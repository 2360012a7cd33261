"""`auto` for latency never ends behind what it could have started from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute_latency import least_latency
from cases import random_case

from stagecut import Latency, Limits, load, solve
from stagecut.instances import Cluster
from stagecut.solvers.latency import auto


def test_auto_is_no_worse_than_the_split_for_throughput() -> None:
    """A training graph that memory spreads over accelerators: greedy finds nothing there."""
    workload = load("gpt2-xl-training")
    assert workload.cluster is not None
    kinds = tuple(k if k.host else replace(k, memory_bytes=20 * 2.0**30)
                  for k in workload.cluster.kinds)  # fmt: skip
    cluster = Cluster(kinds, workload.cluster.links)
    problem = Latency(calls=2)
    start = solve(workload, cluster, problem, method="max-load")
    assert start.objective is not None
    gap = 1 - 0.999 * start.bound / start.objective  # auto stops when its plan is as good
    result = solve(workload, cluster, problem, limits=Limits(gap=gap, seconds=60))
    assert result.objective is not None
    assert result.objective <= start.objective * (1 + 1e-9)


def test_local_search_follows_a_label_dp_that_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "DP_SHARE", 0.0)
    monkeypatch.setattr(auto, "MOST_CHOICES", 0)
    searched = 0
    for seed in range(15):
        workload, cluster = random_case(seed, max_kinds=2)
        best = least_latency(workload, cluster, Latency())
        limits = Limits(seconds=600)
        result = solve(workload, cluster, Latency(), limits=limits, workers=1)
        assert result.bound <= best * (1 + 1e-9), seed
        assert result.objective is None or result.objective >= best * (1 - 1e-9), seed
        searched += "local search" in result.phases
    assert searched > 1


def test_graphs_too_large_for_the_label_dp_have_plans_and_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The path-interval bound holds, and one order cut into calls gives most optima."""
    monkeypatch.setattr(auto, "MOST_UNITS", 0)
    monkeypatch.setattr(auto, "MOST_CHOICES", 0)
    found = planned = 0
    for seed in range(12):
        workload, cluster = random_case(seed, max_kinds=2)
        best = least_latency(workload, cluster, Latency())
        result = solve(workload, cluster, Latency(), limits=Limits(nodes=3), workers=1)
        assert result.bound <= best * (1 + 1e-9), seed
        if np.isfinite(best):
            planned += 1
            assert result.plan is not None, seed
            found += result.plan.objective == pytest.approx(best)
        assert any("too many for the label DP" in note for note in result.notes) or result.gap == 0
    assert found > 0.7 * planned
