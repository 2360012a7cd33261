"""Programs of rings and messages at a threshold against brute force, at most nine devices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_mapping import least_stage_time, place_for, stages_of

from stagecut import Limits
from stagecut.formulations.mapping import MappingCosts, mapping_costs, stage_times
from stagecut.formulations.mapping_blocks import find_blocks
from stagecut.formulations.mapping_bound import floors
from stagecut.instances import Mapping, stage_costs
from stagecut.solvers.mapping_layouts import matched
from stagecut.solvers.mapping_message_test import MessageTest
from stagecut.solvers.mapping_ring_test import RingTest
from stagecut.solvers.search import Search

SHAPES = [(1, 3), (1, 4), (1, 5), (1, 6), (2, 3), (2, 4), (3, 3), (3, 2), (2, 2), (4, 2), (4, 1)]


def small_case(seed: int, mode: str) -> tuple[MappingCosts, float, Mapping]:
    """Costs of a random case, and its optimum in seconds."""
    rng = np.random.default_rng(seed)
    stages, replicas = SHAPES[seed % len(SHAPES)]
    problem = Mapping(
        place_for(rng, stages * replicas, 9),
        stages,
        replicas,
        mode,  # type: ignore[arg-type]
        microbatches=int(rng.integers(1, 4)),
        gradients=bool(rng.integers(2)),
        collective="cheapest" if seed % 3 == 0 and mode != "p2p" else "ring",
        overlap=seed % 4 == 0,
    )
    costs = stage_costs(stages_of(rng, stages), np.arange(stages), stages)
    return mapping_costs(costs, problem), least_stage_time(costs, problem), problem


def blocks_for(seed: int, costs: MappingCosts) -> np.ndarray:
    """Found blocks, or any others: programs may not depend on what a block is."""
    if seed % 2:
        return find_blocks(costs)
    labels = np.random.default_rng(seed).integers(3, size=costs.size)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def clock() -> Search[object]:
    return Search(Limits(), lambda _: math.inf)


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_programs_against_brute_force(mode: str, first: int) -> None:
    for seed in range(first, first + 50):
        costs, optimum, problem = small_case(seed, mode)
        block, least = blocks_for(seed, costs), floors(costs)
        below = optimum * (1 - 1e-7)
        for most in (math.inf, 0.6):
            rings = RingTest(clock(), block, most)
            messages = MessageTest(clock(), block, most, 10.0)
            at = optimum * (1 + 1e-9)
            assert rings(costs, least, at) is not None, seed
            assert messages(costs, least, at) is not None, seed
            for s, order in rings.orders.items():
                assert len(np.unique(order)) == costs.replicas, seed
                longest = costs.ring_costs(s)[order, np.roll(order, -1)].max()
                assert costs.base[s] + longest <= at * (1 + 1e-9), seed
            if most < math.inf or below < max(costs.floor, costs.base.max()):
                continue
            if mode == "allr" and problem.collective == "ring" and costs.replicas > 2:
                assert rings(costs, least, below) is None, seed
            if mode == "p2p":
                assert messages(costs, least, below) is None, seed
                if len(messages.members) == costs.stages:
                    slots = np.array([messages.members[s] for s in range(costs.stages)])
                    assert len(np.unique(slots)) == slots.size, seed
                    time = stage_times(costs, slots, matched(costs, slots)).max()
                    assert max(time, costs.floor) == pytest.approx(optimum, rel=1e-9), seed
