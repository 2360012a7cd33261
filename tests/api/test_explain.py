"""Explanations: what limits, what transfers cost, what would help, what a move costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cases import random_case
from pipelines import random_plan
from training_cases import random_training_case

import stagecut
from stagecut import (
    InputError,
    Latency,
    Limits,
    PipelineJob,
    PlacementRules,
    Plan,
    Throughput,
    Workload,
    accelerators_and_cpus,
    evaluate,
    explain,
    solve,
)
from stagecut.api.explanation import Explanation
from stagecut.api.remedies import most_bytes
from stagecut.instances import PipelinePlacement, Placement, is_iteration
from stagecut.instances.common.units import FROM_PYTORCH


def chain(times: list[float], memory: float = 1.0, transfer: float = 0.1) -> Workload:
    n = len(times)
    return Workload(
        name="chain",
        ids=tuple("abcdefgh"[:n]),
        edges=np.array([(v, v + 1) for v in range(n - 1)]),
        times={"accelerator": np.array(times), "cpu": np.array(times) * 10},
        memory_bytes=np.full(n, memory),
        transfer=np.full(n, transfer),
        time_unit="ms",
    )


def planned(workload: Workload, devices: int, problem, memory: float = math.inf) -> Plan:
    plan = solve(workload, accelerators_and_cpus(devices, memory_bytes=memory), problem).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("seed", range(40))
def test_without_overlap_what_crosses_pays_for_all_transfers(seed: int) -> None:
    found = random_plan(seed)
    if found is None:
        return
    workload, plan = found
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    if report.violations:
        broken = explain(workload, plan, seconds=0)
        assert all(f"It breaks a rule: {rule}." in broken.reasons for rule in report.violations)
        return
    said = explain(workload, plan, seconds=0, most=workload.n)
    assert math.isclose(
        sum(crossing.paid for crossing in said.crossings),
        sum(device.transfer for device in report.devices),
        rel_tol=1e-9,
        abs_tol=1e-12,
    )
    most = max(device.load for device in report.devices)
    assert next(d for d in report.devices if d.name == said.limiting).load == most
    for crossing in said.crossings:
        assert crossing.source != crossing.targets[0]
        assert 0 <= crossing.saved <= report.objective


@pytest.mark.parametrize("seed", range(30))
def test_moves_are_what_the_verifier_says(seed: int) -> None:
    found = random_plan(seed)
    if found is None:
        return
    workload, plan = found
    node = workload.ids[seed % workload.n]
    v = workload.index[node]
    said = explain(workload, plan, seconds=0, node=node).node
    assert said is not None
    assert said.where == plan.device_names[plan.placement[v]]
    colour = workload.colours[v]
    together = [v] if colour < 0 else np.flatnonzero(workload.colours == colour)
    for move in said.moves:
        device = plan.placement.copy()
        device[together] = plan.device_names.index(move.to)
        report = evaluate(workload, plan.cluster, plan.problem, Placement(device))
        if not report.violations:
            assert (move.objective, move.further) == (report.objective, 0)
        elif not move.further:
            assert move.broken in report.violations


def test_a_move_in_a_chain_takes_along_what_lies_behind() -> None:
    workload = chain([1.0, 1.0, 1.0, 1.0])
    plan = planned(workload, 2, Throughput("contiguous"))
    said = explain(workload, plan, seconds=0, node="a").node
    assert said is not None
    (move,) = said.moves
    assert move.further == 1  # with b, so that all four are on one device
    assert move.objective == 4.0


@pytest.mark.parametrize("problem", [Throughput("contiguous"), PipelineJob(4, "1f1b"), Latency()])
def test_what_would_help_is_what_solving_anew_gives(problem) -> None:
    workload = chain([3.0, 1.0, 2.0, 2.0, 1.0])
    plan = planned(workload, 2, problem, memory=3.0)
    said = explain(workload, plan, seconds=600)
    by_change = {remedy.change: remedy for remedy in said.remedies}
    assert set(by_change) == {
        "one more accelerator",
        "25 % more memory (4 B)",
        "no limit on memory",
        "links 2 times as fast",
        *(() if isinstance(problem, Latency) else ("split noncontiguous",)),
    }
    for change, cluster, changed in (
        ("one more accelerator", accelerators_and_cpus(3, memory_bytes=3.0), workload),
        ("no limit on memory", accelerators_and_cpus(2), workload),
        (
            "links 2 times as fast",
            plan.cluster,
            replace(workload, transfer=np.full(5, 0.05)),
        ),
    ):
        best = solve(changed, cluster, problem).objective
        remedy = by_change[change]
        assert best is not None
        assert remedy.objective is not None
        assert remedy.objective == pytest.approx(best, rel=0.011)  # the default gap, and patience
        assert remedy.bound <= best * (1 + 1e-9)
        assert f"{change}" in str(said)


@pytest.mark.parametrize("seed", range(20))
def test_no_device_ever_holds_more_than_is_said(seed: int) -> None:
    found = random_plan(seed)
    if found is None:
        return
    workload, plan = found
    devices, stage = np.unique(plan.placement, return_inverse=True)
    stages = PipelinePlacement(stage, tuple(devices))
    for problem, solution in (
        (Throughput(), plan.solution),
        *((PipelineJob(3, s, split="noncontiguous"), stages) for s in ("1f1b", "gpipe", "zb-h2")),
    ):
        report = evaluate(workload, plan.cluster, problem, solution)
        most = most_bytes(workload, problem) * (1 + 1e-9)
        assert all(device.memory_bytes <= most for device in report.devices), problem


@pytest.mark.parametrize("problem", [Throughput("contiguous"), PipelineJob(4, "1f1b"), Latency()])
def test_more_memory_is_tried_only_where_it_can_run_out(problem) -> None:
    workload = replace(chain([3.0, 1.0, 2.0]), extra={"activation_bytes": np.full(3, 0.5)})
    most = 7.5 if is_iteration(problem) else 3.0
    for memory, tried in ((most, False), (most - 0.5, True)):
        said = explain(workload, planned(workload, 2, problem, memory), seconds=0.01)
        assert ("no limit on memory" in {r.change for r in said.remedies}) == tried


def test_cpus_that_a_request_waits_for_are_named_as_in_the_loads() -> None:
    """The simulator shows cores of its own, which no table of devices has."""
    workload = chain([3.0, 1.0, 2.0])
    cluster = accelerators_and_cpus(1, 2, memory_bytes=1.0)
    plan = solve(workload, cluster, Latency()).plan
    assert plan is not None
    said = explain(workload, plan, seconds=0)
    assert said.limiting in {load.name for load in said.loads}
    assert "core" not in str(said)


def test_a_plan_that_can_be_better_is_searched_again() -> None:
    workload = chain([1.0, 1.0, 1.0, 1.0])
    worse = planned(workload, 2, Throughput("contiguous"))
    solution = Placement([0, 1, 1, 1])
    report = evaluate(workload, worse.cluster, worse.problem, solution)
    worse = replace(worse, solution=solution, objective=report.objective)
    first = explain(workload, worse, seconds=60).remedies[0]
    assert first.change.startswith("nothing")
    assert first.objective == 2.1


def test_tied_weights_and_colours() -> None:
    workload = stagecut.instances.tied_as(stagecut.load("bert-large-training"), "colour")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(2, 0)
    plan = solve(workload, cluster, PipelineJob(4), limits=Limits(gap=0.01)).plan
    said = explain(workload, plan, seconds=30)
    tied = next(r for r in said.remedies if r.change.startswith("tied weights in copies"))
    assert tied.objective is not None
    assert tied.objective < 0.8 * said.objective  # one device does nearly all the work
    assert "one part that cannot be cut" in str(said)
    coloured = replace(
        chain([1.0, 1.0, 1.0, 1.0]), colours=np.array([0, -1, -1, 0]), colour_labels=("red",)
    )
    said = explain(coloured, planned(coloured, 2, Throughput("contiguous")), seconds=60)
    freed = next(r for r in said.remedies if r.change == "colour red not kept together")
    assert freed.objective == 2.1
    assert "(colour red)" in str(said)
    traced = replace(coloured, provenance={"generator": FROM_PYTORCH})
    said = explain(traced, planned(traced, 2, Throughput("contiguous")), seconds=60)
    assert not [r for r in said.remedies if "colour" in r.change]  # it could not run so


def test_what_a_rule_costs() -> None:
    workload = chain([1.0, 1.0, 1.0, 1.0])
    rules = PlacementRules(pins=(("a", 0),), together=(("a", "d"),), max_stages=2)
    plan = planned(workload, 2, Throughput("noncontiguous", placement_rules=rules))
    said = explain(workload, plan, seconds=60)
    by_change = {remedy.change: remedy.objective for remedy in said.remedies}
    assert by_change["without together a d"] == 2.1  # a and b, c and d
    assert by_change["without pin a=0"] == plan.objective
    assert by_change["more than 2 stages"] == plan.objective


def test_other_schedules_and_options_are_tried() -> None:
    workload = stagecut.load("bert-large-training")
    assert workload.cluster is not None
    cluster = workload.cluster.with_counts(2, 0)
    plan = solve(workload, cluster, PipelineJob(4), limits=Limits(gap=0.05)).plan
    changes = {r.change for r in explain(workload, plan, seconds=0.01).remedies}
    assert {"schedule interleaved", "schedule zb-h1", "schedule zb-h2"} <= changes
    assert not {"schedule 1f1b", "schedule gpipe"} & changes


def test_infeasible_says_what_would_do() -> None:
    workload = chain([1.0, 1.0, 1.0, 1.0], memory=10.0)
    cluster = accelerators_and_cpus(2, memory_bytes=12.0)
    said = explain(workload, cluster=cluster, problem=Throughput("contiguous"), seconds=60)
    assert said.plan is None
    assert said.reasons[0].startswith("Infeasible: 4 nodes can run only on 2 × accelerator")
    memory, devices = said.remedies
    assert memory.change == "20 B of memory on each device"
    assert devices.change == "4 × accelerator"
    assert devices.objective == pytest.approx(1.2)
    assert "What would make a plan possible" in str(said)


def test_training_plans() -> None:
    explained = 0
    for seed in range(8):
        workload, cluster, problem = random_training_case(seed)
        plan = solve(workload, cluster, problem).plan
        if plan is None:
            continue
        explained += 1
        said = explain(workload, plan, seconds=5, node=workload.ids[0])
        assert said.limiting.startswith("stage")
        assert any(r.change.startswith("one more") for r in said.remedies)
        assert all(r.objective is None or r.objective >= r.bound for r in said.remedies)
    assert explained > 1


def test_it_refuses_in_one_line() -> None:
    workload = chain([1.0, 1.0])
    plan = planned(workload, 2, Throughput())
    with pytest.raises(InputError, match='node: chain has no "z"; it has a, b'):
        explain(workload, plan, seconds=0, node="z")
    with pytest.raises(InputError, match="seconds: -1"):
        explain(workload, plan, seconds=-1)
    mapping = stagecut.DeviceMapping(stagecut.topology("ring:2"), stages=2, replicas=1)
    with pytest.raises(InputError, match="stagecut solve shows"):
        explain(workload, problem=mapping)


def test_it_shows_itself_as_text_everywhere() -> None:
    workload = chain([1.0, 1.0, 1.0])
    result = solve(workload, accelerators_and_cpus(2), Throughput())
    said = explain(workload, result, seconds=0)
    assert isinstance(said, Explanation)
    assert repr(said) == str(said)
    assert said._repr_html_().startswith("<pre>")
    assert said.to_dict()["limiting"] == said.limiting


@pytest.mark.parametrize("seed", range(25))
def test_random_cases_are_explained_whatever_the_problem(seed: int) -> None:
    workload, cluster = random_case(seed, max_kinds=2)
    for problem in (Throughput(), Latency(calls=2), Throughput("contiguous", overlap=True)):
        plan = solve(workload, cluster, problem, limits=Limits(nodes=5), method="greedy").plan
        if plan is not None:
            said = explain(workload, plan, seconds=0, node=workload.ids[0])
            assert said.limiting
            assert str(said)
