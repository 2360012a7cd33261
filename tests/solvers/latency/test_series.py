"""Latency by regions between separators: against brute force, and on graphs too large for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_latency import least_latency
from cases import random_case

from stagecut import Cluster, Latency, Limits, Workload, accelerators_and_cpus, solve
from stagecut.formulations.latency.graph import latency_graph
from stagecut.formulations.task import pose
from stagecut.instances import Solution
from stagecut.runtime import evaluate
from stagecut.solvers.core.search import Search
from stagecut.solvers.latency.series import regions as components
from stagecut.solvers.latency.series import series as options
from stagecut.solvers.latency.series.regions import series_of
from stagecut.solvers.latency.series.series import solve_by_series


def blocks(seed: int, nodes: int, branches: int = 3, length: int = 2) -> tuple[Workload, Cluster]:
    """Return blocks of parallel branches, one behind the other, some with long edges."""
    rng = np.random.default_rng(seed)
    edges: set[tuple[int, int]] = set()
    end, count = 0, 1
    while count < nodes:
        last = []
        for _ in range(int(rng.integers(1, branches + 1))):
            at = end
            for _ in range(int(rng.integers(1, length + 1))):
                if count < nodes - 1:
                    edges.add((at, count))
                    at, count = count, count + 1
            last.append(at)
        edges |= {(v, count) for v in last}
        for source in (end, 0):
            if rng.random() < 0.25:
                edges.add((source, count))
        end, count = count, count + 1
    compute = rng.integers(0, 6, count).astype(float)
    cpu = compute * rng.integers(1, 8, count)
    (compute if rng.random() < 0.5 else cpu)[rng.random(count) < 0.05] = math.inf
    memory = rng.integers(1, 9, count).astype(float)
    workload = Workload(
        name="blocks",
        ids=tuple(range(count)),
        edges=np.array(sorted(edges)),
        times={"accelerator": compute, "cpu": cpu},
        memory_bytes=memory,
        transfer=rng.integers(0, 4, count).astype(float),
    )
    share = float(memory.sum() * rng.uniform(0.2, 0.6))
    return workload, accelerators_and_cpus(int(rng.integers(1, 4)), 1, memory_bytes=share)


def by_series(
    workload: Workload, cluster: Cluster, calls: int, known: float = math.inf
) -> Search[Solution]:
    """Return a search after bound and plan by regions, and nothing else.

    Parameters
    ----------
    known
        The objective of the plan that is known before.
    """
    problem = Latency(calls)

    def judge(plan: Solution) -> float:
        report = evaluate(workload, cluster, problem, plan)
        return math.inf if report.violations else report.objective

    task = pose(workload, cluster, problem)
    search: Search[Solution] = Search(Limits(), judge)
    search.objective = known
    solve_by_series(task, search, latency_graph(task, whole_colours=calls == 1))
    return search


@pytest.fixture(params=["all divisions", "by components", "coarse components", "path and order"])
def divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How regions are divided: as small ones are, and as only large ones would be."""
    way = str(request.param)
    if way != "all divisions":
        monkeypatch.setattr(options, "MOST_UNITS", 1)
    if way == "coarse components":
        monkeypatch.setattr(options, "cells_of", lambda series: 2 + len(series.regions) % 3)
        monkeypatch.setattr(components, "LIMITS", 2)
    if way == "path and order":
        monkeypatch.setattr(options, "by_components", lambda *_: None)
    return way


@pytest.mark.parametrize("calls", [1, 2])
def test_no_bound_passes_brute_force_and_no_plan_beats_it(divided: str, calls: int) -> None:
    tight = 0
    for seed in range(60):
        if seed % 2:
            workload, cluster = blocks(seed, 5 + seed % (5 if calls == 1 else 2))
        else:
            workload, cluster = random_case(
                seed, max_nodes=8 - calls, max_accelerators=4 - calls, max_kinds=1 + seed % 4 // 2
            )
        best = least_latency(workload, cluster, Latency(calls))
        search = by_series(workload, cluster, calls)
        assert not search.notes  # no bound was withdrawn or refused
        assert search.bound <= best * (1 + 1e-9) + 1e-12
        assert search.objective >= best * (1 - 1e-9)
        assert search.infeasible_because is None or math.isinf(best)
        tight += math.isfinite(best) and search.bound >= best * (1 - 1e-6)
    assert tight >= 10, divided


def test_blocks_without_long_edges_are_almost_closed() -> None:
    """The label DP agrees, and both bounds lie below its plan."""
    workload, cluster = blocks(3, 60, 2, 3)
    search = by_series(workload, cluster, 1)
    exact = solve(workload, cluster, Latency(1), method="dp", workers=1)
    assert exact.status == "optimal"
    assert exact.objective is not None
    assert search.bound <= exact.objective * (1 + 1e-9)
    assert search.objective >= exact.objective * (1 - 1e-9)


def test_units_that_span_much_are_left_out() -> None:
    """What leads from the first unit of a chain to the last leaves its separators what they are."""
    nodes = 300
    edges = [(v, v + 1) for v in range(nodes - 1)] + [(0, nodes), (nodes, nodes - 1)]
    workload = Workload(
        name="chain with a detour",
        ids=tuple(range(nodes + 1)),
        edges=np.array(edges),
        times={"accelerator": np.ones(nodes + 1), "cpu": np.full(nodes + 1, 9.0)},
        memory_bytes=np.ones(nodes + 1),
        transfer=np.full(nodes + 1, 0.5),
    )
    cluster = accelerators_and_cpus(3, 1, memory_bytes=90.0)
    task = pose(workload, cluster, Latency(1))
    graph = latency_graph(task, whole_colours=True)
    series = series_of(task, graph)
    assert [graph.members[u] for u in series.left_out] == [(nodes,)]
    assert len(series.separators) == nodes
    search = by_series(workload, cluster, 1)
    assert search.gap < 0.01
    exact = solve(workload, cluster, Latency(1), method="dp", workers=1)
    assert search.bound <= exact.bound * (1 + 1e-9) or exact.status != "optimal"


def test_a_large_graph_is_planned_within_a_percent() -> None:
    workload, cluster = blocks(11, 2000, 4, 6)
    result = solve(workload, cluster, Latency(1), limits=Limits(gap=0.01), workers=1)
    assert result.gap is not None
    assert result.gap <= 0.01
    assert result.bound_origin == "series of regions"


def test_no_place_for_a_call_is_infeasible() -> None:
    workload, _ = blocks(5, 20)
    cluster = accelerators_and_cpus(2, 0, memory_bytes=1.0)
    assert by_series(workload, cluster, 1).infeasible_because is not None


@pytest.mark.parametrize("kind", ["accelerator", "cpu"])
def test_a_time_that_no_plan_pays_is_as_good_as_never(kind: str) -> None:
    """Calls over many regions cost differences of sums, whose rounding was taken for times."""
    compared = 0
    for seed in range(24):
        workload, cluster = blocks(seed, 12)
        rng = np.random.default_rng([seed, 6])
        at, big = int(rng.integers(workload.n)), float(10.0 ** rng.integers(12, 18))
        found = []
        for slow in (np.inf, big):
            time = np.where(np.arange(workload.n) == at, slow, workload.times[kind])
            one = replace(workload, times={**workload.times, kind: time})
            if not found:  # what is never run
                best = solve(one, cluster, Latency(1), method="dp").objective
            if best is None:
                break
            found.append(by_series(one, cluster, 1, 3 * best).bound)
        else:
            compared += 1
            assert found[0] <= best * (1 + 1e-9)
            assert found[1] <= best * (1 + 1e-9), (seed, big)
            assert found[1] == pytest.approx(found[0], rel=1e-6), (seed, big)
    assert compared > 5
