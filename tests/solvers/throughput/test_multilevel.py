"""Multilevel planning: coarse units, plans that the verifier accepts, bounds that hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from brute import best_max_load
from cases import beside_a_path, random_case

from stagecut import (
    Limits,
    Throughput,
    Workload,
    accelerators_and_cpus,
    check_bound,
    load,
    load_plan,
    solve,
    verify,
)
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.hypergraph import hypergraph, pipeline_units
from stagecut.formulations.throughput.ideals import topological_orders
from stagecut.instances.formats.files import save
from stagecut.instances.formats.plan_json import HUBS
from stagecut.solvers.throughput import auto
from stagecut.solvers.throughput.column_generation.orders import groups, narrow_order
from stagecut.solvers.throughput.dp import ideals_alone
from stagecut.solvers.throughput.multilevel import coarsen, critical_path, least_load
from stagecut.solvers.throughput.multilevel.critical_path import raise_by_critical_path
from stagecut.solvers.throughput.multilevel.least_load import (
    raise_by_least_load,
    value_share,
    work_share,
)

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
    boundaries = set(coarsen.around(stage, alone).tolist())
    assert {0, 1, 30, 31, 99, 100, 101, 149, 150} <= boundaries
    assert len(boundaries) < 50


@pytest.mark.parametrize("heavy", ["first", "last"])
def test_an_order_is_balanced_only_where_its_shares_lack_room(heavy: str) -> None:
    places = np.arange(641)
    work, crosses = np.ones(640), 1.0 * (places % 5 > 0) + (places % 80 > 0)
    memory = np.where(np.arange(640) < 160, 5.0, 1.0)  # per share of 80: 400, 400, 80, 80, …
    memory = memory[::-1].copy() if heavy == "last" else memory
    order = np.arange(640)
    assert coarsen.balanced(order, work, crosses, memory, 400.0, 8) is order
    balanced = coarsen.balanced(order, work, crosses, memory, 250.0, 8)
    assert sorted(balanced.tolist()) == order.tolist()
    assert memory[balanced].reshape(8, 80).sum(axis=1).max() <= 250
    share = balanced[:80]
    assert np.diff(np.sort(share)).max() > 1
    assert (np.diff(np.sort(share)) > 1).sum() == 1  # two intervals


@pytest.mark.parametrize("seed", range(30))
def test_the_least_load_of_a_share_is_that_of_all_sets(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=8)
    task = pose(workload, cluster, Throughput("noncontiguous"))
    graph = hypergraph(task)
    limit = 0.5 * float(graph.compute[np.isfinite(graph.compute)].sum()) + 1.0
    kind = int(task.costs.count.argmax())
    work = work_share(task, graph, kind, limit)[1]
    order = narrow_order(graph)
    value = least_load.in_steps(work[order], limit / 700)
    held = np.zeros(graph.size)
    held[order] = value * (limit / 700)
    assert (held <= work).all()
    asks = value_share(task, graph, kind, limit, held)
    if not 0 < asks < limit:
        return
    cover = least_load.CoverProblem(graph, order, kind, limit, work[order], value, asks, 700)
    found = least_load.least_cover_load(cover, 5000, Noted(limit))
    assert found is not None
    weight = graph.weight.sum(axis=1)[kind]
    best = np.inf
    for code in range(1, 1 << graph.size):
        members = {v for v in range(graph.size) if code >> v & 1}
        cut = [not members.isdisjoint(net) and not members.issuperset(net) for net in graph.pins]
        if held[list(members)].sum() >= asks * (1 - 1e-9):
            best = min(best, work[list(members)].sum() + weight[cut].sum())
    if best < limit * (1 - 1e-9):
        assert found == pytest.approx(best, rel=1e-9)
    else:
        assert found >= limit * (1 - 1e-6)


def test_the_least_load_of_a_share_is_no_more_than_the_optimum() -> None:
    problem, near = Throughput("noncontiguous"), 0
    for seed in range(150):
        workload, cluster = random_case(seed, max_nodes=7)
        best = best_max_load(workload, cluster, problem)
        if not 0 < best < np.inf:
            continue
        task = pose(workload, cluster, problem)
        graph = hypergraph(task)
        found = Noted(best * (1.02, 1.3, 2.0)[seed % 3])
        raise_by_least_load(task, graph, narrow_order(graph), found, found)
        assert found.bound <= best * (1 + 1e-9), f"seed {seed}"
        near += found.bound * 1.2 > best
    assert near > 40  # one a fifth too high would be noticed


def test_a_chain_is_bounded_by_the_transfers_of_its_middle() -> None:
    """A device at an end pays for one transfer, the others for two."""
    n = 64
    chain = Workload(
        name="chain",
        ids=tuple(range(n)),
        edges=np.column_stack([np.arange(n - 1), np.arange(1, n)]),
        times={"accelerator": np.ones(n)},
        memory_bytes=np.zeros(n),
        transfer=np.full(n, 0.2),
    )
    task = pose(chain, accelerators_and_cpus(8, cpus=0), Throughput("noncontiguous"))
    graph = hypergraph(task)
    found = Noted(8.4)  # an even share, and two transfers
    raise_by_least_load(task, graph, np.arange(n), found, found)
    assert 8.25 < found.bound <= 8.4


class Noted:
    """What a bound needs of a search."""

    def __init__(self, objective: float) -> None:
        self.objective, self.bound = objective, 0.0

    def should_stop(self) -> bool:
        return False

    def raise_bound(self, bound: float, origin: str) -> None:
        assert origin in (least_load.ORIGIN, critical_path.ORIGIN)
        self.bound = max(self.bound, bound)


def test_transfers_to_a_hub_count(tmp_path: Path) -> None:
    """All decoder layers of T5 send gradients to one encoder; the proof survives a file."""
    workload = load("t5-large-training")
    cluster = accelerators_and_cpus(4, cpus=0)
    problem = Throughput("noncontiguous")
    result = solve(workload, cluster, problem, method="multilevel", limits=Limits(nodes=1))
    assert result.bound_origin == HUBS
    assert result.plan is not None
    assert result.plan.gap < 0.02
    save(result.plan, tmp_path / "plan.json", workload)
    check_bound(workload, load_plan(tmp_path / "plan.json", workload))


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


def test_intervals_of_a_path_prove_no_more_than_brute_force() -> None:
    """From below, and from a plan that is far from the best."""
    problem, near = Throughput("contiguous"), 0
    for seed in range(150):
        workload, cluster = random_case(seed, max_nodes=7)
        best = best_max_load(workload, cluster, problem)
        task = pose(workload, cluster, problem)
        if not ideals_alone(task):
            continue
        known = Noted(1.5 * best + 1.0 if np.isfinite(best) else 1e9)
        raise_by_critical_path(task, hypergraph(task, pipeline_units(task)), known, known)
        assert known.bound <= best * (1 + 1e-9), f"seed {seed}"
        near += known.bound * 1.2 > best > 0
    assert near > 20  # one a fifth too high would be noticed


def test_intervals_of_a_path_need_not_have_what_lies_beside_it() -> None:
    workload, cluster = beside_a_path()
    task = pose(workload, cluster, Throughput("contiguous"))
    known = Noted(5.5)
    raise_by_critical_path(task, hypergraph(task, pipeline_units(task)), known, known)
    assert 3.0 < known.bound <= 3.5


def test_intervals_of_a_path_count_transfers() -> None:
    """In a chain of equal units every interval pays at both its ends."""
    workload = load("gpt2-xl-training")
    cluster = accelerators_and_cpus(4, cpus=0)
    problem = Throughput("contiguous")
    exact = solve(workload, cluster, problem, method="dp", limits=ENDLESS)
    assert exact.plan is not None
    task = pose(workload, cluster, problem)
    known = Noted(1.1 * exact.plan.objective)
    raise_by_critical_path(task, hypergraph(task, pipeline_units(task)), known, known)
    assert 0.97 * exact.plan.objective <= known.bound <= exact.plan.objective * (1 + 1e-9)
