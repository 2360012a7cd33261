"""All cuts by a DP over ideals: a bound for every mapping, and what it closes on many devices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from mapping_joint_cases import blocks, drawn_joint, least_of_all_cuts, network

import stagecut
from stagecut import Limits, solve, verify
from stagecut.api.common import devices_of
from stagecut.formulations.mapping.all_cuts import partition_units, run_states
from stagecut.formulations.mapping.memory import costs_of_cut
from stagecut.formulations.task import pose
from stagecut.instances import DeviceMapping, topology
from stagecut.runtime.verify.bounds.mapping import no_mapping_below
from stagecut.solvers.mapping.joint import best_cut, least_stage_prices, priced_ideals
from stagecut.solvers.mapping.layouts import runs_in_blocks
from stagecut.solvers.mapping.partition import balanced_partition

ENDLESS = SimpleNamespace(should_stop=lambda: False)


@pytest.mark.parametrize("mode", ["p2p", "allr", "both"])
@pytest.mark.parametrize(("collective", "unlike"), [("ring", 0), ("cheapest", 0), ("ring", 1)])
def test_no_mapping_of_any_cut_is_below_the_bound(mode: str, collective: str, unlike: int) -> None:
    near = 0
    for seed in range(6):
        workload, problem = drawn_joint(seed, mode, collective, unlike=bool(unlike))
        cluster = devices_of(problem.topology)
        task = pose(workload, cluster, problem)
        ideals = priced_ideals(task, ENDLESS)
        assert ideals is not None
        at_least = least_stage_prices(task, ideals, partition_units(workload)[1])
        assert at_least is not None
        value, cut = best_cut(task, ideals, *at_least, 1e9, ENDLESS)
        assert cut is not None
        assert sorted(itertools.chain(*cut.runs)) == list(range(problem.stages))
        assert sorted(set(cut.stage.tolist())) == list(range(problem.stages))
        optimum = least_of_all_cuts(workload, 5, problem)
        assert 1e3 * value <= optimum * (1 + 1e-9), seed
        # the check apart from the search proves as much, and never more than is so
        assert no_mapping_below(workload, cluster, problem, 1e3 * value * (1 - 1e-9)), seed
        assert not no_mapping_below(workload, cluster, problem, optimum * (1 + 1e-6)), seed
        near += 1e3 * value >= 0.98 * optimum
    assert near >= 2


@pytest.mark.parametrize("seed", range(3))
def test_all_messages_between_stages_in_two_blocks_cross(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload = network(rng, 4, backward=False)
    heavy = {"weight_bytes": np.full(4, 1e9)}  # no ring is across blocks
    workload = replace(workload, output_bytes=np.full(4, 1e8), extra=heavy)
    problem = DeviceMapping(blocks([3, 3], rng), 2, 3, "both", collective="ring")
    cluster = devices_of(problem.topology)
    task = pose(workload, cluster, problem)
    ideals = priced_ideals(task, ENDLESS)
    at_least = least_stage_prices(task, ideals, partition_units(workload)[1])
    value, _ = best_cut(task, ideals, *at_least, 1e9, ENDLESS)
    optimum = least_of_all_cuts(workload, 4, problem)
    assert optimum * (1 - 5e-3) <= 1e3 * value <= optimum * (1 + 1e-9)
    assert no_mapping_below(workload, cluster, problem, optimum * (1 - 5e-3))
    assert not no_mapping_below(workload, cluster, problem, optimum * (1 + 1e-6))


def test_runs_of_stages_fit_into_a_block() -> None:
    table = run_states(np.array([2]), 5, alone=False)[:, 0]
    joined = table[0, 0, 0]  # a stage with its ring in the block goes on inside
    again = table[joined, 1, 0]
    assert table[again, 1, 0] == -1  # three stages of one block, which holds two
    assert table[again, 1, 1] == -1
    loose = table[table[table[0, 1, 0], 1, 0], 1, 0]  # rings across: their blocks may differ
    assert table[loose, 1, 0] == loose
    assert table[loose, 0, 1] == -1
    assert run_states(np.array([5]), 5, alone=False).shape == (1, 1, 2, 3)


@pytest.mark.parametrize(
    ("network", "place", "slow"),
    [
        ("gpt2-xl-training", "torus2d:8x8", 1.0),
        pytest.param("gpt2-xl-training", "islands:8x8", 1.0, marks=pytest.mark.slow),
        ("resnet50-operators-training", "torus2d:8x8", 2.0),  # it does not begin on the fast half
    ],
)
def test_sixty_four_devices_are_closed_for_all_cuts(network: str, place: str, slow: float) -> None:
    devices = replace(topology(place), slowdown=np.repeat([1.0, slow], 32))
    problem = DeviceMapping(devices, 8, 8, "both", microbatches=4, collective="ring")
    workload = stagecut.load(network)
    result = solve(workload, problem=problem, method="joint", limits=Limits(nodes=4))
    assert result.plan is not None
    verify(workload, result.plan)
    assert result.bound_origin == "all cuts at least prices"
    assert result.plan.gap < 2e-3


def test_runs_of_stages_are_put_into_blocks() -> None:
    devices = replace(topology("islands:2x6"), slowdown=np.repeat([2.0, 1.0], 6))
    problem = DeviceMapping(devices, 4, 3, "both", collective="ring")
    workload = stagecut.load("gpt2-xl-training")
    task = pose(workload, devices_of(devices), problem)
    costs = costs_of_cut(task, balanced_partition(workload, 4, 0.0))
    slots = runs_in_blocks(costs, devices.island, [[2, 3], [0, 1]])
    assert slots[2:].tolist() == [[6, 8, 10], [7, 9, 11]]  # the faster ones, by replica
    assert sorted(slots[:2].ravel().tolist()) == [0, 1, 2, 3, 4, 5]
    across = runs_in_blocks(costs, devices.island, [[0, 1, 2, 3]])
    inside = (devices.island[across] == devices.island[across[0]]).all(axis=0)
    assert inside.sum() == 2  # the third replica takes what is left of both islands
    assert sorted(across.ravel().tolist()) == list(range(12))
