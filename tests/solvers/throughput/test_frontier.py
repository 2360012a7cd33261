"""The frontier against plain enumeration: best sets, states, splits of pairs, segments."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from brute import best_max_load
from cases import random_case

from stagecut import Limits, Throughput
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.hypergraph import Hypergraph, hypergraph
from stagecut.formulations.throughput.set_partitioning import load_of
from stagecut.instances import Solution
from stagecut.instances.common.kernel import NotCompiled
from stagecut.runtime import evaluate
from stagecut.solvers import Search
from stagecut.solvers.throughput import neighbourhood
from stagecut.solvers.throughput.column_generation.best_set import (
    LabelScratch,
    SetQuery,
    best_set,
    best_set_by_value,
    whole,
)
from stagecut.solvers.throughput.column_generation.frontier import (
    frontier,
    orders,
)
from stagecut.solvers.throughput.column_generation.pricing_problem import (
    PricingProblem,
    pricing_problem,
)
from stagecut.solvers.throughput.dp import contracted_dp
from stagecut.solvers.throughput.neighbourhood import Neighbourhood


def posed(seed: int) -> tuple[Task, Hypergraph, PricingProblem]:
    workload, cluster = random_case(seed, max_nodes=9, max_kinds=2)
    task = pose(workload, cluster, Throughput())
    graph = hypergraph(task)
    return task, graph, pricing_problem(task, graph)


def by_enumeration(
    graph: Hypergraph,
    kind: int,
    price: np.ndarray,
    limit: float,
    transfer_price: float,
    overlap: bool,
) -> float:
    best = 0.0
    for taken in itertools.product((False, True), repeat=graph.size):
        members = frozenset(np.flatnonzero(taken).tolist())
        compute = sum(float(graph.compute[kind, :, v].sum()) for v in members)
        load = load_of(graph, kind, members, overlap=False)
        value = sum(price[v] for v in members) - transfer_price * (
            load - compute if load < np.inf else 0
        )
        if (compute if overlap else load) <= limit:
            best = max(best, value)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_best_set_is_that_of_enumeration(seed: int) -> None:
    _, graph, pricing = posed(seed)
    rng = np.random.default_rng(seed)
    overlap = seed % 3 == 0
    transfer_price = float(rng.random()) if overlap else 0.0
    price = rng.normal(size=graph.size) + 0.3
    for kind, states in enumerate(pricing.states):
        load = graph.compute.sum(axis=1)[kind]
        limit = float(rng.random() * load[np.isfinite(load)].sum())

        def true_load(kind: int, load: np.ndarray, members: np.ndarray) -> float:
            transfer = 0.0 if overlap else pricing.transfer_of(kind, members)
            return float(load[members].sum()) + transfer

        best = by_enumeration(graph, kind, price, limit, transfer_price, overlap)
        for floor in (0.0, best / 2, best * (1 + 1e-9), best + 1):
            found = best_set(
                states,
                SetQuery(price, load, limit, floor, np.inf, transfer_price if overlap else None),
                partial(true_load, kind, load),
                LabelScratch(),
                should_stop=lambda: False,
            )
            assert found is not None
            assert found.bound >= max(best, floor) - 1e-9
            if found.members is None:
                assert best <= floor + 1e-9
            elif found.load <= limit:
                assert found.bound == pytest.approx(best, rel=0.02)
                assert true_load(kind, load, found.members) <= limit
            for (_, before), (below, _) in itertools.pairwise([(0.0, floor), *found.steps]):
                if below == 0:
                    continue
                just = by_enumeration(
                    graph, kind, price, below * (1 - 1e-9), transfer_price, overlap
                )
                assert just <= max(before, floor) + 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_the_best_set_by_value_are_those_of_enumeration(seed: int) -> None:
    _, graph, pricing = posed(seed)
    rng = np.random.default_rng(seed)
    price = whole(rng.random(graph.size), pricing.orders[0], 50)
    assert price.sum() * 50 == pytest.approx(round(price.sum() * 50))
    for kind, states in enumerate(pricing.states):
        load = graph.compute.sum(axis=1)[kind]
        limit = float(rng.random() * load[np.isfinite(load)].sum())
        best = by_enumeration(graph, kind, price, limit, 0.0, overlap=False)
        for floor in (0.0, best / 2, max(0.0, best - 0.01), best):
            found = best_set_by_value(
                states, price, load, limit, parts=50, floor=floor, should_stop=bool
            )
            assert found is not None
            assert found.bound == pytest.approx(max(best, floor))
            if best <= floor:
                assert found.members is None
                continue
            assert found.members is not None
            members = frozenset(np.flatnonzero(found.members).tolist())
            assert load_of(graph, kind, members, overlap=False) == pytest.approx(found.load)
            assert found.load <= limit
            assert float(price[found.members].sum()) == pytest.approx(best)
            for below, value in found.steps:
                just = by_enumeration(graph, kind, price, below * (1 + 1e-9), 0.0, overlap=False)
                assert just == pytest.approx(value)


def test_orders_do_not_change_what_is_best() -> None:
    _, graph, pricing = posed(7)
    price = np.random.default_rng(1).random(graph.size)
    load, weight = graph.compute.sum(axis=1)[0], pricing.weight[0]
    values = []
    for order in orders(graph)[:5]:
        states = frontier(graph, weight, [order])
        found = best_set(
            states,
            SetQuery(price, load, 1.5),
            partial(pricing.load_of, 0),
            pricing.scratch,
            should_stop=bool,
        )
        assert found is not None
        values.append(found.bound)
    assert values == pytest.approx([values[0]] * len(values))


def test_narrow_limits_still_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few states allowed, nets are given up, and the bound stays one."""
    monkeypatch.setattr("stagecut.solvers.throughput.column_generation.frontier.WIDTH", 2)
    monkeypatch.setattr("stagecut.solvers.throughput.column_generation.frontier.RELAXED_WIDTH", 2)
    loosened = 0
    for seed in range(40):
        _, graph, pricing = posed(seed)
        price = np.random.default_rng(seed).random(graph.size)
        for kind, states in enumerate(pricing.states):
            load = graph.compute.sum(axis=1)[kind]
            limit = 0.5 * float(load[np.isfinite(load)].sum())
            best = by_enumeration(graph, kind, price, limit, 0.0, False)
            found = best_set(
                states,
                SetQuery(price, load, limit),
                partial(pricing.load_of, kind),
                pricing.scratch,
                should_stop=lambda: False,
            )
            assert found is not None
            assert found.bound >= best - 1e-9
            loosened += not states.exact
    assert loosened > 5


@pytest.mark.parametrize("seed", range(40))
def test_segments_and_the_walk_from_them_keep_all_rules(seed: int) -> None:
    task, graph, pricing = posed(seed)
    best = best_max_load(task.workload, task.cluster, task.problem)

    def judge(solution: Solution) -> float:
        report = evaluate(task.workload, task.cluster, task.problem, solution)
        assert report.violations == ()
        return report.objective

    search: Search[Solution] = Search(Limits(seed=seed), judge)
    contracted_dp(task, search, np.argsort(pricing.orders[0])[graph.unit_of], any_order=True)
    if search.best is None:
        return
    assert search.objective >= best * (1 - 1e-9)
    where = graph.restrict(search.best.device)
    walk = Neighbourhood(task, graph, pricing.orders[0], where, np.random.default_rng(seed))
    walk.walk(search, 200)
    assert walk.best == pytest.approx(search.objective, rel=1e-9)
    assert search.objective >= best * (1 - 1e-9)


def test_a_walk_that_must_not_compile_ends_where_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    task, graph, pricing = next(case for case in map(posed, range(100)) if case[0].cluster.size > 1)
    start = np.zeros(graph.size, np.int64)
    search: Search[Solution] = Search(Limits(), lambda _solution: 1.0)
    order, rng = pricing.orders[0], np.random.default_rng(1)
    walk = Neighbourhood(task, graph, order, start, rng)

    def put_off(*_arguments: object, **_options: object) -> None:
        walk.where[:] = -1
        raise NotCompiled

    with monkeypatch.context() as patch:
        patch.setattr(neighbourhood, "resplit", put_off)
        walk.walk(search, 100, compiling=False)
    assert walk.needs_compiling
    assert walk.where.tolist() == start.tolist()
    walk.walk(search, 100)
    assert not walk.needs_compiling
