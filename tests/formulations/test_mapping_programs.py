"""Programs of rings and messages at a threshold against brute force, at most nine devices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_mapping import least_stage_time, place_for, stages_of

from stagecut import Limits, Workload, solve
from stagecut.formulations.mapping.bound import Verdict, stage_lower_bounds
from stagecut.formulations.mapping.costs import (
    MappingCosts,
    find_blocks,
    mapping_costs,
    stage_times,
)
from stagecut.instances import DeviceMapping, ReplicaPlacement, stage_costs, topology
from stagecut.instances.common.arrays import Ints
from stagecut.solvers.core.search import Search
from stagecut.solvers.mapping import auto, bottleneck_stages
from stagecut.solvers.mapping.bottleneck_stages import (
    CombinedRelaxation,
    all_splits,
    branch_on_splits,
    refuted_threshold,
)
from stagecut.solvers.mapping.layouts import matched
from stagecut.solvers.mapping.parameters import PROGRAMS

SHAPES = [(1, 3), (1, 4), (1, 5), (1, 6), (2, 3), (2, 4), (3, 3), (3, 2), (2, 2), (4, 2), (4, 1)]


def small_case(seed: int, mode: str) -> tuple[Workload, DeviceMapping, MappingCosts, float]:
    """A random case, its costs, and its optimum in seconds."""
    rng = np.random.default_rng(seed)
    stages, replicas = SHAPES[seed % len(SHAPES)]
    problem = DeviceMapping(
        place_for(rng, stages * replicas, 9),
        stages,
        replicas,
        mode,  # type: ignore[arg-type]
        microbatches=int(rng.integers(1, 4)),
        gradients=bool(rng.integers(2)),
        collective="cheapest" if seed % 3 == 0 and mode != "p2p" else "ring",
        overlap=seed % 4 == 0,
    )
    workload = stages_of(rng, stages)
    costs = stage_costs(workload, np.arange(stages), stages)
    return workload, problem, mapping_costs(costs, problem), least_stage_time(costs, problem)


def blocks_for(seed: int, costs: MappingCosts) -> Ints:
    """Found blocks, or any others: programs may not depend on what a block is."""
    if seed % 2:
        return find_blocks(costs)
    labels = np.random.default_rng(seed).integers(3, size=costs.size)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def clock() -> Search[object]:
    return Search(Limits(), lambda _: math.inf)


@pytest.mark.parametrize(
    ("first", "mode"),
    [
        (0, "both"),
        pytest.param(33, "both", marks=pytest.mark.slow),
        pytest.param(66, "both", marks=pytest.mark.slow),
        (0, "p2p"),
        (33, "allr"),
    ],
)
def test_messages_and_rings_against_brute_force(
    first: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuted = read = lower_refuted = 0
    for seed in range(first, first + 33):
        _, problem, costs, optimum = small_case(seed, mode)
        block, lower_bounds = blocks_for(seed, costs), stage_lower_bounds(costs)
        rings_only = problem.collective == "ring"
        every = set(range(costs.stages))
        for most, wanted in ((0.6, set[int]()), (0.6, every), (1e9, every)):
            relaxation = CombinedRelaxation(clock(), costs, lower_bounds, block, wanted)
            monkeypatch.setattr(bottleneck_stages, "PROGRAMS", replace(PROGRAMS, pairs=most))
            at, found = optimum * (1 + 1e-8), []
            verdict, devices = branch_on_splits(relaxation, all_splits(costs.stages), at, 60.0)
            assert verdict is Verdict.FEASIBLE, seed
            found.append((devices, at))
            # leaves of other thresholds branch no mapping away
            leaves = all_splits(costs.stages)
            for share in (0.8, 0.95, 1 - 1e-6, 0.9, 1 + 1e-8, 1.1, 1 - 1e-6, 1 + 1e-8):
                threshold = share * optimum
                verdict, devices = branch_on_splits(relaxation, leaves, threshold, 60.0)
                found.append((devices, threshold))
                assert share < 1 or verdict is Verdict.FEASIBLE, seed
                assert refuted_threshold(leaves) < at, seed
                lower_refuted += verdict is Verdict.INFEASIBLE and share == 0.9
            below = optimum * (1 - 1e-6)
            if most < 1e9 or below < max(costs.lower_bound, costs.base.max()):
                continue
            counted = costs.boundary.any() or costs.ring.any()
            if counted and (mode == "p2p" or (rings_only and costs.replicas > 2)):
                assert refuted_threshold(leaves) == below, seed
                verdict, _ = branch_on_splits(relaxation, all_splits(costs.stages), below, 60.0)
                assert verdict is Verdict.INFEASIBLE, seed
                refuted += 1
                read += sum(optimal_solution(costs, optimum, *each) for each in found)
    assert min(refuted, read, lower_refuted) > 2


def test_boundaries_of_stages_above_a_threshold_join_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = stages_of(np.random.default_rng(6), 4, free=False)
    problem = DeviceMapping(topology("random_blk_1:24@seed=3"), 4, 6, collective="ring")
    asked: list[tuple[float, set[int]]] = []

    def branch(
        relaxation: CombinedRelaxation[object], _leaves: object, threshold: float, _seconds: float
    ) -> tuple[Verdict, dict[int, Ints]]:
        asked.append((threshold, set(relaxation.wanted)))
        return Verdict.FEASIBLE, {0: np.arange(6)}

    monkeypatch.setattr(bottleneck_stages, "branch_on_splits", branch)
    monkeypatch.setattr(bottleneck_stages, "_offer_in_order", lambda *_: [1])
    monkeypatch.setattr(bottleneck_stages, "_repair_at_margins", lambda *_: False)
    solve(workload, problem=problem, limits=Limits(nodes=2), workers=1)
    (first, none), (again, added), (lower, _), *_ = asked
    assert (none, added) == (set(), {1})
    assert again == first > lower


def optimal_solution(
    costs: MappingCosts, optimum: float, devices: dict[int, Ints], threshold: float
) -> bool:
    """Whether the devices are those of all stages in an optimal mapping; if so, check its time."""
    if len(devices) < costs.stages or threshold > optimum * (1 + 1e-7):
        return False
    slots = np.array([devices[s] for s in range(costs.stages)])
    assert len(np.unique(slots)) == slots.size
    time = stage_times(costs, slots, matched(costs, slots)).max()
    assert max(time, costs.lower_bound) <= threshold * (1 + 1e-7)
    return True


@pytest.mark.parametrize("mode", ["p2p", "allr"])
def test_searches_by_programs_against_brute_force(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "MAX_EXACT_DEVICES", 0)  # no search over sets of devices
    for seed in range(200, 216):
        workload, problem, _, optimum = small_case(seed, mode)
        result = solve(workload, problem=problem, limits=Limits(nodes=20))
        assert result.bound <= 1e3 * optimum * (1 + 1e-9), seed
        assert result.objective is not None
        assert result.objective >= 1e3 * optimum * (1 - 1e-9), seed
        if problem.collective == "ring":
            assert result.objective == pytest.approx(1e3 * optimum, rel=2e-6), seed
            assert result.status == "optimal", seed


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("random_blk_1", "p2p"), ("random_blk_2", "p2p"), ("uniform_dist", "p2p"),
        ("random_blk_1", "allr"), ("random_blk_2", "allr"),
        pytest.param("uniform_dist", "allr", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_random_topologies_are_proven(kind: str, mode: str) -> None:
    workload = stages_of(np.random.default_rng(6), 4, free=False)
    problem = DeviceMapping(
        topology(f"{kind}:64@seed=3"),
        4,
        16,
        mode,  # type: ignore[arg-type]
        gradients=False,
        collective="ring",
    )
    result = solve(workload, problem=problem)
    assert result.status == "optimal"
    assert result.plan is not None
    solution = result.plan.solution
    assert isinstance(solution, ReplicaPlacement)
    times = stage_times(
        mapping_costs(stage_costs(workload, solution.stage, 4), problem),
        solution.slots,
        solution.sends_to,
    )
    assert 1e3 * times.max() == pytest.approx(result.objective, rel=1e-9)
