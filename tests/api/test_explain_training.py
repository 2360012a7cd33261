"""Explanations of training plans, part by part, each held against the definition."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from training_cases import random_training_case

import stagecut
from stagecut import Plan, Workload, evaluate, explain, solve
from stagecut.instances import StagePlacement, layers_of
from stagecut.runtime.verify.job import microbatches_and_bandwidth


@cache
def plans(seeds: range, max_nodes: int = 5) -> list[tuple[Workload, Plan]]:
    """Random workloads with their best plans, where there are any."""
    found = []
    for seed in seeds:
        workload, cluster, problem = random_training_case(seed, max_nodes=max_nodes)
        plan = solve(workload, cluster, problem).plan
        if plan is not None:
            found.append((workload, plan))
    return found


def in_stages() -> list[tuple[Workload, Plan]]:
    """Those of several stages."""
    cases = plans(range(50), max_nodes=7)
    return [(w, p) for w, p in cases if len(set(stage_of(w, p))) > 1]


def stage_of(workload: Workload, plan: Plan) -> list[int]:
    assert isinstance(plan.solution, StagePlacement)
    of = {v: s for s, stage in enumerate(plan.solution.stages) for v in stage.nodes}
    return [of[v] for v in range(workload.n)]


def test_what_limits_is_the_slowest_stage_with_its_parts() -> None:
    for workload, plan in plans(range(12)):
        report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
        said = explain(workload, plan, seconds=0)
        slowest = max(stage.time for stage in report.stages)
        (number,) = (s.number for s in report.stages if f"stage {s.number}" == said.limiting)
        assert report.stages[number].time == slowest
        for load, stage in zip(said.loads, report.stages, strict=True):
            times = stage.compute, stage.transfer, stage.synchronise
            each = load.busy / stage.time if stage.time else 1.0
            assert (load.compute, load.transfer, load.synchronise) == pytest.approx(
                [each * time for time in times]
            )
            assert (load.memory_bytes, load.nodes) == (stage.memory_bytes, stage.nodes)
        assert any(reason.startswith(f"{said.limiting} limits") for reason in said.reasons)
        alone = len(report.stages[number].nodes) == 1
        assert alone == any("one layer alone" in reason for reason in said.reasons)


def test_what_a_transfer_costs_is_what_its_bytes_take_at_both_ends() -> None:
    crossed = 0
    for workload, plan in in_stages():
        assert isinstance(plan.solution, StagePlacement)
        said = explain(workload, plan, seconds=0, most=workload.n)
        where, layers = stage_of(workload, plan), layers_of(workload)
        _, bandwidth = microbatches_and_bandwidth(workload, plan.problem)
        report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
        busy = next((load.busy, s.time) for load, s in zip(said.loads, report.stages, strict=True))
        each = round(busy[0] / busy[1]) if busy[1] else 1
        expected: dict[object, float] = {}
        for e, (u, v) in enumerate(workload.edges.tolist()):
            if where[u] != where[v]:
                ends = (plan.solution.stages[where[w]].replicas for w in (u, v))
                moved = sum(2 * float(layers.edge_bytes[e]) / d / bandwidth for d in ends)
                expected[workload.ids[u]] = expected.get(workload.ids[u], 0.0) + each * moved
        assert {c.node: c.paid for c in said.crossings} == pytest.approx(expected)
        crossed += len(expected)
        for crossing in said.crossings:
            assert 0 <= crossing.saved <= report.objective
    assert crossed > 5


def test_a_move_costs_what_the_verifier_says_of_the_plan_with_it() -> None:
    moved = 0
    for workload, plan in in_stages():
        assert isinstance(plan.solution, StagePlacement)
        held = {
            v: c
            for s in plan.solution.stages
            for v, c in zip(s.nodes, s.configuration, strict=True)
        }
        for v, place in enumerate(stage_of(workload, plan)):
            said = explain(workload, plan, seconds=0, node=workload.ids[v]).node
            assert said is not None
            assert said.where == f"stage {place}"
            for move in said.moves:
                if move.further:
                    continue
                to = int(move.to.removeprefix("stage "))
                stages = []
                for s, stage in enumerate(plan.solution.stages):
                    nodes = sorted({*stage.nodes, v} if s == to else {*stage.nodes} - {v})
                    chosen = tuple(held[u] for u in nodes)
                    stages.append(replace(stage, nodes=tuple(nodes), configuration=chosen))
                solution = StagePlacement(tuple(stages), plan.solution.device)
                report = evaluate(workload, plan.cluster, plan.problem, solution)
                if report.violations:
                    assert (move.objective, move.broken) == (math.inf, report.violations[0])
                else:
                    assert (move.objective, move.broken) == (report.objective, "")
                    assert move.objective >= plan.objective * (1 - 1e-9)  # the plan is optimal
                moved += 1
    assert moved > 5


def test_what_would_help_is_what_solving_anew_gives() -> None:
    tried = set()
    for workload, plan in plans(range(6)):
        problem = plan.problem
        said = {r.change: r for r in explain(workload, plan, seconds=600).remedies}
        more = plan.cluster.with_counts(accelerators=plan.cluster.size + 1, cpus=0)
        _, bandwidth = microbatches_and_bandwidth(workload, problem)
        quicker = replace(layers_of(workload), bandwidth=2 * bandwidth)
        changes = {
            "links 2 times as fast": (replace(workload, layers=quicker), plan.cluster, problem),
            "any number of replicas": (workload, plan.cluster, replace(problem, replicas=None)),
            "any tensor degree": (workload, plan.cluster, replace(problem, degrees=None)),
        }
        one_more = next(change for change in said if change.startswith("one more"))
        changes[one_more] = workload, more, problem
        for change, case in changes.items():
            if change not in said:
                continue
            tried.add("one more" if change == one_more else change)
            best, remedy = solve(*case).objective, said[change]
            assert best is not None
            assert remedy.objective == pytest.approx(best, rel=0.011)
            assert remedy.bound <= best * (1 + 1e-9)
    assert {"one more", "links 2 times as fast"} <= tried


def test_infeasible_says_how_much_memory_would_do() -> None:
    workload, cluster, problem = random_training_case(3)
    kinds = tuple(replace(kind, memory_bytes=8.0) for kind in cluster.kinds)
    said = explain(workload, cluster=replace(cluster, kinds=kinds), problem=problem, seconds=60)
    assert said.plan is None
    assert said.reasons[0].startswith("Infeasible")
    memory = next(r for r in said.remedies if "memory" in r.change)
    assert memory.objective is not None
    assert "What would make a plan possible" in str(said)


def test_a_published_plan(benchmarks: Path) -> None:
    workload = stagecut.load(benchmarks / "piper" / "bert32a100.json")
    assert workload.cluster is not None
    plan = solve(workload, workload.cluster, stagecut.PipelineJob()).plan
    assert plan is not None
    said = explain(workload, plan, seconds=0, node=workload.ids[workload.n // 2])
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    assert said.objective == report.objective
    assert np.isclose(
        sum(load.compute for load in said.loads) / sum(s.compute for s in report.stages),
        said.loads[0].busy / report.stages[0].time,
    )
    assert said.limiting in str(said)
    assert said.node is not None
    assert said.node.where in str(said)
