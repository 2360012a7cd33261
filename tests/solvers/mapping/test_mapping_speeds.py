"""Devices of unlike speed in mappings: against brute force, in the simulator and in files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_mapping import least_stage_time, place_for, stages_of
from mapping_joint_cases import blocks, least_of_all_cuts, network

import stagecut
from stagecut import InputError, Limits, Result, VerificationError, Workload, solve, verify
from stagecut.api.common import devices_of
from stagecut.instances import DeviceMapping, Topology, stage_costs, topology
from stagecut.instances.topologies import load_topology, save_topology, topology_from_networkx
from stagecut.runtime.simulate.plan_stages import stages_of as stages_of_plan
from stagecut.runtime.verify.bounds.mapping import no_mapping_below, stage_time_bound
from stagecut.solvers.mapping import joint
from stagecut.solvers.mapping.joint import best_cut

SHAPES = [(2, 1), (2, 2), (3, 1), (1, 3), (2, 3), (4, 1), (3, 2)]


def unlike(place: Topology, rng: np.random.Generator) -> Topology:
    return replace(place, slowdown=rng.choice([0.5, 1.0, 1.7, 3.0], place.size))


def drawn(seed: int, most: int) -> tuple[np.random.Generator, DeviceMapping]:
    rng = np.random.default_rng([seed, 5])
    stages, replicas = SHAPES[seed % len(SHAPES)]
    return rng, DeviceMapping(
        unlike(place_for(rng, stages * replicas, most), rng),
        stages,
        replicas,
        str(rng.choice(["p2p", "allr", "both"])),  # type: ignore[arg-type]
        microbatches=1 + seed % 3,
        collective="ring" if seed % 3 else "cheapest",
        gradients=seed % 4 > 0,
        overlap=seed % 5 == 0,
    )


@pytest.mark.parametrize("first", range(0, 56, 14))
def test_given_stages_are_mapped_exactly(first: int) -> None:
    for seed in range(first, first + 14):
        rng, problem = drawn(seed, 7)
        workload = stages_of(rng, problem.stages)
        costs = stage_costs(workload, np.arange(problem.stages), problem.stages)
        optimum = 1e3 * least_stage_time(costs, problem)
        methods = ["auto", *(["milp"] if problem.collective == "ring" and seed < 14 else [])]
        for method in methods:
            result = solve(workload, problem=problem, method=method, limits=Limits(nodes=8))
            _is_optimal(workload, result, optimum, f"{seed} {method}")
        cut = result.plan.solution if result.plan is not None else None
        cluster = devices_of(problem.topology)
        if optimum > 0:
            assert not no_mapping_below(workload, cluster, problem, optimum * (1 + 1e-6), cut), seed  # type: ignore[arg-type]


def _is_optimal(workload: Workload, result: Result, optimum: float, case: str) -> None:
    assert result.plan is not None, case
    verify(workload, result.plan)
    assert result.objective == pytest.approx(optimum, rel=1e-5), case
    assert optimum * (1 - 1e-4) <= result.bound <= optimum * (1 + 1e-9), case


@pytest.mark.parametrize("seed", range(14))
def test_cut_and_mapped_together(seed: int) -> None:
    rng, problem = drawn(seed, 5)
    if problem.stages * problem.replicas > 4:
        problem = replace(problem, replicas=1)
    problem = replace(problem, collective="ring")
    workload = network(rng, 4, backward=seed % 2 == 1)
    optimum = least_of_all_cuts(workload, 4, problem)
    result = solve(workload, problem=problem, method="joint")
    _is_optimal(workload, result, optimum, str(seed))
    cluster = devices_of(problem.topology)
    assert stage_time_bound(workload, cluster, problem) <= optimum * (1 + 1e-9)
    assert not no_mapping_below(workload, cluster, problem, optimum * (1 + 1e-6))


def test_slow_devices_take_smaller_stages() -> None:
    workload = stagecut.load("gpt2-xl-training")
    place = topology("torus2d:4x4")
    half = np.where(np.arange(16) < 8, 1.0, 2.0)
    problem = DeviceMapping(replace(place, slowdown=half), 4, 4, microbatches=4, collective="ring")
    result = solve(workload, problem=problem, limits=Limits(nodes=4))
    alike = solve(workload, problem=replace(problem, topology=place), limits=Limits(nodes=4))
    assert result.plan is not None
    assert alike.objective is not None
    report = verify(workload, result.plan)
    slowest = half[result.plan.solution.slots].max(axis=1)  # type: ignore[union-attr]
    assert sorted(slowest.tolist()) == [1.0, 1.0, 2.0, 2.0]
    # evenly cut it would be twice as long; 4 / 3 of the work are on each fast stage
    assert report.objective < 1.45 * alike.objective
    joint = solve(workload, problem=problem, method="joint", limits=Limits(nodes=4)).plan
    assert joint is not None
    assert joint.objective <= report.objective
    assert joint.gap < 1e-3
    assert stagecut.check_bound(workload, joint).value == joint.bound


def test_the_simulator_waits_for_the_slowest_replica() -> None:
    rng = np.random.default_rng(1)
    workload = stages_of(rng, 2, free=False)
    problem = DeviceMapping(replace(blocks([2, 2], rng), slowdown=[1.0, 2.0, 2.0, 1.0]), 2, 2)
    plan = solve(workload, problem=problem).plan
    assert plan is not None
    graph = stages_of_plan(workload, plan)
    worst = problem.topology.slowdown[plan.solution.slots].max(axis=1)  # type: ignore[union-attr]
    assert graph.compute.sum(axis=1).tolist() == pytest.approx(
        (worst * workload.times["accelerator"]).tolist()
    )


def test_a_plan_whose_cluster_has_other_speeds_is_refused() -> None:
    place = replace(topology("ring:4"), slowdown=[1.0, 1.0, 2.0, 2.0])
    workload = stages_of(np.random.default_rng(3), 4, free=False)
    plan = solve(workload, problem=DeviceMapping(place, 4, 1)).plan
    assert plan is not None
    verify(workload, plan)
    forged = replace(plan, cluster=devices_of(topology("ring:4")))
    with pytest.raises(VerificationError, match="has slowdown 1 in the cluster, and 2 in ring:4"):
        verify(workload, forged)
    with pytest.raises(InputError, match="leave the cluster out"):
        solve(workload, forged.cluster, problem=plan.problem)


def test_stages_that_compute_nothing_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = network(np.random.default_rng(7), 4, backward=False)
    workload = replace(workload, times={"accelerator": np.zeros(4)}, extra={})
    problem = DeviceMapping(topology("ring:3"), 3, 1, mode="p2p")
    cutoffs = []

    def counted(*given: Any) -> tuple[float, joint.CutInRuns | None]:
        cutoffs.append(given[4])
        return best_cut(*given)

    monkeypatch.setattr(joint, "best_cut", counted)
    result = solve(workload, problem=problem, method="joint")
    _is_optimal(workload, result, least_of_all_cuts(workload, 4, problem), "no compute")
    assert 0 < len(cutoffs) <= 3
    assert min(cutoffs) > 0


def test_speeds_are_kept_in_files_and_graphs(tmp_path: Path) -> None:
    place = replace(topology("ring:3"), slowdown=[1.0, 1.0, 2.5])
    save_topology(place, tmp_path / "t.json")
    for back in (load_topology(tmp_path / "t.json"), topology_from_networkx(place.to_networkx())):
        assert back.slowdown.tolist() == [1.0, 1.0, 2.5]
    assert place.fingerprint != topology("ring:3").fingerprint
    held = replace(topology("ring:3"), memory_bytes=[1.0, 1.0, 2.5])
    assert place.fingerprint != held.fingerprint
    kinds = devices_of(place).kinds
    assert [(kind.count, kind.slowdown) for kind in kinds] == [(2, 1.0), (1, 2.5)]
    for wrong in ([1.0], [1.0, 0.0, 1.0], [1.0, math.inf, 1.0], [1.0, -1.0, math.nan]):
        with pytest.raises(InputError, match="ring:3: slowdown"):
            replace(place, slowdown=wrong)
