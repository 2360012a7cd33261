"""Multilevel planning: coarse units, plans that the verifier accepts, bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Limits, Throughput, Workload, accelerators_and_cpus, load, solve, verify
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.hypergraph import hypergraph
from stagecut.formulations.throughput.ideals import topological_orders
from stagecut.solvers.throughput import auto
from stagecut.solvers.throughput.multilevel import coarsen

ENDLESS = Limits(gap=0.0)


@pytest.mark.parametrize("split", ["contiguous", "noncontiguous", "per-device"])
def test_plans_and_bounds_agree_with_brute_force(split: str) -> None:
    for seed in range(60):
        pipeline = "gpipe" if seed % 5 == 0 else "pipedream"
        problem = Throughput(split, pipeline=pipeline, overlap=seed % 7 == 0)
        workload, cluster = random_case(seed, max_nodes=7)
        best = best_max_load(workload, cluster, problem)
        result = solve(workload, cluster, problem, method="multilevel", limits=ENDLESS)
        assert result.bound <= best * (1 + 1e-9), f"seed {seed}"
        if result.plan is not None:
            assert verify(workload, result.plan).objective >= best * (1 - 1e-9)
        if result.status == "infeasible":
            assert np.isinf(best), f"seed {seed}"


def test_a_contiguous_plan_of_few_ideals_is_proved_optimal() -> None:
    workload = load("gpt2-xl-training")
    cluster = accelerators_and_cpus(4)
    problem = Throughput("contiguous")
    exact = solve(workload, cluster, problem, method="dp", limits=ENDLESS)
    several = solve(workload, cluster, problem, method="multilevel", limits=ENDLESS)
    assert exact.plan is not None
    assert several.plan is not None
    assert several.status == "optimal"
    assert several.plan.objective == pytest.approx(exact.plan.objective, rel=1e-9)


@pytest.mark.parametrize("relayed", [False, True])
def test_auto_takes_it_beyond_a_number_of_nodes(
    relayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "LARGE", 50)
    workload = load("resnet50-training")
    problem = Throughput("contiguous", relayed=relayed)
    result = solve(workload, accelerators_and_cpus(4), problem, limits=Limits(nodes=1))
    assert result.plan is not None
    assert result.plan.method == "multilevel"
    verify(workload, result.plan)


def test_ten_thousand_operators() -> None:
    workload = load("bert-large-operators-training@deeper=15")
    assert 10_000 < workload.n < 11_000
    result = solve(workload, problem=Throughput("contiguous"), limits=Limits(gap=0.01))
    assert result.plan is not None
    assert verify(workload, result.plan).objective <= result.bound / 0.99


def test_coarse_units_are_intervals_of_a_topological_order() -> None:
    workload: Workload = load("unet-operators-training")
    graph = hypergraph(pose(workload, accelerators_and_cpus(4), Throughput("noncontiguous")))
    order = topological_orders(graph)[0]
    weight = graph.weight.sum(axis=(0, 1))
    crosses = coarsen.crossing(graph, weight, order)
    assert crosses[0] == pytest.approx(0.0)
    assert crosses[-1] == pytest.approx(0.0, abs=1e-9)
    for p in range(1, graph.size):
        before = set(order[:p].tolist())
        split = [not before.isdisjoint(net) and not before.issuperset(net) for net in graph.pins]
        assert crosses[p] == pytest.approx(weight[split].sum())
    work = graph.compute.sum(axis=(0, 1))[order]
    boundaries = coarsen.even(work, crosses, 8)
    assert boundaries[0] == 0
    assert boundaries[-1] == graph.size
    assert (np.diff(boundaries) > 0).all()
    units = coarsen.labels(order, boundaries)
    rank = np.argsort(order)
    assert (np.diff(units[order]) >= 0).all()
    assert units[order[0]] == 0
    assert all(units[a] <= units[b] for a, b in graph.edges.tolist() if rank[a] < rank[b])


def test_units_near_the_end_of_a_stage_are_left_as_they_are() -> None:
    stage = np.repeat([0, 1], [100, 50])
    alone = np.zeros(150, np.bool_)
    alone[30] = True
    boundaries = set(coarsen.around(stage, alone, 12).tolist())
    assert {0, 1, 30, 31, 99, 100, 101, 149, 150} <= boundaries
    assert len(boundaries) < 50
