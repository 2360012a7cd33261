"""Multilevel planning: coarse units, plans that the verifier accepts, bounds that hold."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Limits, Throughput, Workload, accelerators_and_cpus, load, solve, verify
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.hypergraph import hypergraph, pipeline_units
from stagecut.formulations.throughput.ideals import topological_orders
from stagecut.solvers.core.search import Stoppable
from stagecut.solvers.throughput import auto
from stagecut.solvers.throughput.column_generation.narrow_orders import groups, narrow_order
from stagecut.solvers.throughput.multilevel import coarsen, least_load
from stagecut.solvers.throughput.multilevel.far_nets import far_pins

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


@pytest.mark.parametrize("seed", range(30))
def test_the_least_load_of_a_share_is_that_of_all_sets(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=8)
    task = pose(workload, cluster, Throughput("noncontiguous"))
    graph = hypergraph(task)
    limit = 2.0 * float(graph.compute[np.isfinite(graph.compute)].sum()) + 1.0
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), task.costs.count, 0).argmax())
    if not task.costs.count[kind]:
        return
    work = least_load.work_of(graph, kind)
    outside = np.random.default_rng(seed).random(len(graph.pins)) < 0.3 * (seed % 2)
    share = least_load.least_share(task, graph, kind, limit, work)
    order = narrow_order(graph)
    found = least_load.share_of(task, graph, order, kind, limit, work, weight[kind], outside)
    if found is None:
        assert share <= 0
        return
    least = limit
    for code in range(1, 1 << graph.size):
        members = {v for v in range(graph.size) if code >> v & 1}
        paid = [
            not members.isdisjoint(net) and (bool(outside[e]) or not members.issuperset(net))
            for e, net in enumerate(graph.pins)
        ]
        if work[list(members)].sum() >= share:
            least = min(least, work[list(members)].sum() + weight[kind][paid].sum())
    bound = least_load.least_of(found, 512, Endless())
    assert bound is not None
    assert min(bound, limit) <= least * (1 + 1e-9)
    assert bound >= share * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_no_stage_holds_pins_that_are_far_from_each_other(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=8)
    task = pose(workload, cluster, Throughput("contiguous"))
    graph = hypergraph(task, pipeline_units(task))
    work = np.random.default_rng(seed).uniform(0.0, 1.0, graph.size)
    limit = 0.4 * float(work.sum())
    far = far_pins(graph, work, limit)
    after: nx.DiGraph[int] = nx.DiGraph()
    after.add_nodes_from(range(graph.size))
    after.add_edges_from(graph.edges.tolist())
    later = {v: nx.descendants(after, v) for v in after}
    for code in range(1, 1 << graph.size):
        members = {v for v in range(graph.size) if code >> v & 1}
        if work[list(members)].sum() > limit:
            continue
        left = set().union(*(later[v] for v in members)) - members
        if any(later[v] & members for v in left):
            continue
        assert not any(members.issuperset(pair) for pair in far.tolist())


class Endless(Stoppable):
    """What never has to stop."""

    def should_stop(self) -> bool:
        return False

    @property
    def seconds_left(self) -> float:
        return np.inf


def test_transfers_to_a_hub_count() -> None:
    """All decoder layers of T5 send gradients to one encoder."""
    workload = load("t5-large-training")
    cluster = accelerators_and_cpus(4, cpus=0)
    problem = Throughput("noncontiguous")
    result = solve(workload, cluster, problem, method="multilevel", limits=Limits(nodes=1))
    assert result.bound_origin == "least load of a share of the work"


@pytest.mark.parametrize("name", ["stable-diffusion-unet-operators-training", "t5-large-operators"])
def test_narrow_orders_open_few_groups(name: str) -> None:
    graph = hypergraph(pose(load(name), accelerators_and_cpus(4), Throughput("noncontiguous")))
    order = narrow_order(graph)
    assert sorted(order.tolist()) == list(range(graph.size))
    nets: list[list[int]] = [[] for _ in range(graph.size)]
    for e, net in enumerate(graph.pins):
        for v in net:
            nets[v].append(e)
    few = groups(graph.pins, nets, order.tolist())
    placed: set[int] = set()
    for i, v in enumerate(order.tolist()):
        placed.add(v)
        kinds = [placed.intersection(net) for net in graph.pins if not placed.issuperset(net)]
        alone = {next(iter(some)) for some in kinds if len(some) == 1}
        assert few[i] == len(alone) + sum(len(some) > 1 for some in kinds)
    assert few.max() <= 20
