"""Budgets of transfer time, and what they leave out, against plain enumeration."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
from cases import random_case

from stagecut import Throughput
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.hypergraph import Hypergraph, hypergraph
from stagecut.formulations.throughput.set_partitioning import load_of
from stagecut.instances import Placement
from stagecut.runtime import evaluate
from stagecut.solvers.throughput.column_generation.best_set import SetQuery, best_set
from stagecut.solvers.throughput.column_generation.pricing_problem import (
    most_transfer,
    pricing_problem,
)

PROBLEMS = (
    Throughput(),
    Throughput(split="contiguous"),
    Throughput(pipeline="gpipe"),
    Throughput(overlap=True),
)


def posed(seed: int) -> tuple[Task[Throughput], Hypergraph]:
    workload, cluster = random_case(seed, max_nodes=7, max_accelerators=3, max_cores=1)
    task = pose(workload, cluster, PROBLEMS[seed % len(PROBLEMS)])
    return task, hypergraph(task)


def objective(task: Task[Throughput], graph: Hypergraph, where: object) -> float:
    """Of a split, by the verifier, without regard to contiguity."""
    free = Throughput(pipeline=task.problem.pipeline, overlap=task.problem.overlap)
    placement = Placement(graph.expand(np.array(where)))
    report = evaluate(task.workload, task.cluster, free, placement)
    return np.inf if report.violations else report.objective


def test_no_plan_within_the_limit_has_more_transfers() -> None:
    paying = 0
    for seed in range(60):
        task, graph = posed(seed)
        devices = task.cluster.size
        values = {
            where: objective(task, graph, where)
            for where in itertools.product(range(devices), repeat=graph.size)
        }
        best = min(values.values())
        for limit in (best, best * 1.05, best * 1.2):
            most = most_transfer(task, graph, limit)
            for where, value in values.items():
                if value > limit or np.isinf(value):
                    continue
                for device, kind in enumerate(task.costs.kind_of.tolist()):
                    held = frozenset(v for v, d in enumerate(where) if d == device)
                    compute = graph.compute[kind].sum(axis=0)[sorted(held)].sum()
                    paid = load_of(graph, kind, held, overlap=False) - compute
                    assert task.problem.overlap or paid <= most[kind] * (1 + 1e-9) + 1e-12
                    paying += paid > 0
    assert paying > 100


def test_only_sets_of_too_many_transfers_are_left_out() -> None:
    fewer = 0
    for seed in range(60):
        task, graph = posed(seed)
        least = float(graph.compute.sum(axis=1)[task.costs.count > 0].min(axis=0).sum())
        limit = 1.1 * least / task.cluster.size
        if not np.isfinite(limit):
            continue
        whole, some = pricing_problem(task, graph), pricing_problem(task, graph, limit)
        price = np.random.default_rng(seed).random(graph.size)
        most = most_transfer(task, graph, limit)
        for kind, states in enumerate(some.states):
            fewer += len(states.forward[1]) < len(whole.states[kind].forward[1])
            best = anyhow = 0.0
            for taken in itertools.product((False, True), repeat=graph.size):
                members = np.array(taken)
                if whole.load_of(kind, members) <= limit:
                    value = float(price[members].sum())
                    anyhow = max(anyhow, value)
                    if whole.transfer_of(kind, members) <= most[kind]:
                        best = max(best, value)
            found = best_set(
                states,
                SetQuery(
                    price,
                    some.load[kind],
                    limit,
                    transfer_price=0.0 if some.transfer_priced[kind] else None,
                ),
                partial(some.load_of, kind),
                some.scratch,
                should_stop=bool,
            )
            assert found is not None
            assert found.bound >= best - 1e-9
            if found.load <= limit:
                assert found.bound <= anyhow / 0.9 + 1e-9
    assert fewer > 0
