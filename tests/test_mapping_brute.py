"""Mapping against brute force: random stages on random topologies of at most nine devices."""

from __future__ import annotations

import numpy as np
import pytest

from brute_mapping import least_stage_time, place_for, stages_of
from stagecut import Limits, solve, verify
from stagecut.instances import Mapping, stage_costs

SHAPES = [(1, 2), (1, 5), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2)]
SHAPES += [(1, 3), (1, 6), (5, 1), (7, 1), (9, 1), (1, 4)]


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize("first", range(0, 75, 25))
def test_rings_are_solved_exactly(mode: str, first: int) -> None:
    for seed in range(first, first + 25):
        rng = np.random.default_rng(seed)
        stages, replicas = SHAPES[seed % len(SHAPES)]
        problem = Mapping(
            place_for(rng, stages * replicas, 9),
            stages,
            replicas,
            mode,  # type: ignore[arg-type]
            microbatches=int(rng.integers(1, 4)),
            gradients=bool(rng.integers(2)),
            collective="ring",
        )
        workload = stages_of(rng, stages)
        optimum = 1e3 * least_stage_time(stage_costs(workload, np.arange(stages), stages), problem)
        quick = solve(workload, problem=problem, method="layouts")
        assert quick.bound <= optimum * (1 + 1e-9), seed
        result = solve(workload, problem=problem)
        assert result.status == "optimal", seed
        assert result.bound <= optimum * (1 + 1e-9), seed
        assert result.objective == pytest.approx(optimum, rel=2e-6), seed
        assert result.plan is not None
        verify(workload, result.plan)


@pytest.mark.parametrize("mode", ["allr", "both"])
@pytest.mark.parametrize("first", range(0, 50, 25))
def test_the_bound_holds_for_every_collective(mode: str, first: int) -> None:
    for seed in range(first, first + 25):
        rng = np.random.default_rng(1000 + seed)
        stages, replicas = SHAPES[seed % len(SHAPES)]
        place = place_for(rng, stages * replicas, 9)
        problem = Mapping(place, stages, replicas, mode)  # type: ignore[arg-type]
        workload = stages_of(rng, stages)
        optimum = 1e3 * least_stage_time(stage_costs(workload, np.arange(stages), stages), problem)
        result = solve(workload, problem=problem, limits=Limits(nodes=2))
        assert result.bound <= optimum * (1 + 1e-9), seed
        assert result.objective is not None
        assert result.objective >= optimum * (1 - 1e-9), seed
