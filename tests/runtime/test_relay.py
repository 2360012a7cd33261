"""Relayed data: planned, judged and simulated alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import random_case
from pipelines import plan_of, random_plan

import stagecut
from stagecut import InputError, Throughput, Workload
from stagecut.instances import Placement, accelerators_and_cpus
from stagecut.instances.model.contiguity import pipeline_edges
from stagecut.runtime import evaluate, verify
from stagecut.runtime.simulate.pieces import cut_relayed
from stagecut.runtime.simulate.simulator import simulate

RELAYED = Throughput(split="contiguous", relayed=True)


def _skip(transfer: float) -> Workload:
    """Three nodes in a row, and the first feeds the third too."""
    return Workload(
        name="skip",
        ids=(0, 1, 2),
        edges=np.array([(0, 1), (0, 2), (1, 2)]),
        times={"accelerator": np.array([3.0, 2.0, 3.0])},
        memory_bytes=np.ones(3),
        transfer=np.array([transfer, 0.5, 0.0]),
        output_bytes=np.array([100.0, 10.0, 1.0]),
        time_unit="s",
    )


def test_a_skip_is_paid_by_the_stage_between() -> None:
    workload, cluster = _skip(1.0), accelerators_and_cpus(3)
    solution = Placement(np.arange(3), (0, 1, 2))
    report = evaluate(workload, cluster, RELAYED, solution)
    assert [d.transfer for d in report.devices] == [1.0, 1.0 + 1.0 + 0.5, 1.0 + 0.5]
    direct = evaluate(workload, cluster, Throughput(split="contiguous"), solution)
    assert [d.transfer for d in direct.devices] == [1.0, 1.5, 1.5]
    plan = plan_of(workload, cluster, np.arange(3))
    stages = cut_relayed(workload, plan)
    assert stages.edges.tolist() == [[0, 2], [2, 4]]
    assert stages.payload_bytes.tolist() == [100.0, 110.0]


def test_it_changes_the_best_plan() -> None:
    workload, cluster = _skip(2.0), accelerators_and_cpus(3)
    direct = stagecut.solve(workload, cluster, Throughput(split="contiguous"))
    relayed = stagecut.solve(workload, cluster, RELAYED)
    assert direct.status == relayed.status == "optimal"
    assert (direct.objective, relayed.objective) == (5.5, 6.5)


@pytest.mark.parametrize(
    "order", [(), (0, 1), (0, 1, 1), (0, 1, 2, 3), (1, 0, 2)], ids=lambda o: str(o)
)
def test_a_wrong_order_breaks_a_rule(order: tuple[int, ...]) -> None:
    workload, cluster = _skip(1.0), accelerators_and_cpus(4)
    report = evaluate(workload, cluster, RELAYED, Placement(np.arange(3), order))
    assert report.violations


@pytest.mark.parametrize("seed", range(120))
def test_relayed_plans_run_at_their_max_load(seed: int) -> None:
    workload, cluster = random_case(seed, max_nodes=8, max_kinds=2)
    plan = stagecut.solve(workload, cluster, RELAYED, method="dp").plan
    if plan is None:
        return
    for u, v in workload.edges.tolist():
        if workload.backward[u] and not workload.backward[v]:
            return
    try:
        run = simulate(workload, plan, "pipedream")
    except InputError as error:  # a random backward graph need not mirror the forward one
        assert "relayed" in str(error)  # noqa: PT017
        assert workload.backward.any()
        return
    assert run.time_per_sample == pytest.approx(plan.objective, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "name",
    ["bert_l-3_inference", "bert_l-3_training", "resnet50_training", "gnmt_inference"],
)
def test_published_relayed_plans(benchmarks: Path, name: str) -> None:
    for path in sorted((benchmarks / "placement" / "throughput").glob(f"*/{name}.json")):
        workload = stagecut.load(path)
        limits = stagecut.Limits(seconds=60)
        result = stagecut.solve(workload, None, RELAYED, method="linear-dp", limits=limits)
        direct = stagecut.solve(
            workload, None, Throughput(split="contiguous"), method="linear-dp", limits=limits
        )
        assert result.plan is not None
        assert direct.objective is not None
        verify(workload, result.plan)
        run = simulate(workload, result.plan, "pipedream")
        assert run.time_per_sample == pytest.approx(result.plan.objective, rel=1e-9)
        assert result.plan.objective >= direct.objective * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_other_plans_can_be_relayed_in_the_simulator(seed: int) -> None:
    """Every value crosses what lies between its maker and its users, piece by piece."""
    found = random_plan(seed, max_nodes=12, max_accelerators=3)
    if found is None or found[0].backward.any():
        return
    workload, plan = found
    direct = simulate(workload, plan, "inference", relayed=False)
    run = simulate(workload, plan, "inference", relayed=True)
    assert run.time_per_sample >= direct.time_per_sample * (1 - 1e-9)
    stages = run.stages
    assert stages.edges.tolist() == [[2 * s, 2 * s + 2] for s in range(stages.count - 1)]
    place = {v: s for s, (nodes, _) in enumerate(stages.nodes) for v in nodes}
    for u, v in pipeline_edges(workload):
        assert place[u] <= place[v]


def test_plans_are_saved_with_their_order(tmp_path: Path) -> None:
    workload, cluster = _skip(1.0), accelerators_and_cpus(3)
    plan = stagecut.solve(workload, cluster, RELAYED).plan
    assert plan is not None
    assert isinstance(plan.solution, Placement)
    stagecut.save(plan, tmp_path / "plan.json", workload)
    again = stagecut.load_plan(tmp_path / "plan.json", workload)
    assert isinstance(again.solution, Placement)
    assert again.solution.order == plan.solution.order
    assert again.problem == RELAYED
    verify(workload, again)


def test_what_cannot_relay_says_so() -> None:
    workload, cluster = _skip(1.0), accelerators_and_cpus(3)
    with pytest.raises(InputError, match="random cannot price relayed data"):
        stagecut.solve(workload, cluster, RELAYED, method="random")
    with pytest.raises(InputError, match=r"relayed: .* must be contiguous"):
        Throughput(relayed=True)
    with pytest.raises(InputError, match=r"relayed: .* must be contiguous"):
        replace(RELAYED, cpu_split="free")
    latency = stagecut.solve(workload, cluster, stagecut.Latency(), method="greedy").plan
    assert latency is not None
    with pytest.raises(InputError, match="only placements are relayed"):
        simulate(workload, latency, relayed=True)
