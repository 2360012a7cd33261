"""Partition and mapping at once, against brute force over both."""

from __future__ import annotations

import numpy as np
import pytest
from brute_mapping import place_for
from mapping_joint_cases import least_of_all_cuts, network

from stagecut import InputError, Workload, accelerators_and_cpus, solve, verify
from stagecut.formulations.task import pose
from stagecut.instances import DeviceMapping, topology
from stagecut.solvers.core.under_rules import cheap_bounds

SHAPES = [(2, 1), (2, 2), (3, 1), (1, 3), (2, 2), (3, 1)]


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        pytest.param(shape, mode, marks=() if (shape + k) % 3 == 0 else pytest.mark.slow)
        for shape in range(len(SHAPES))
        for k, mode in enumerate(("both", "allr", "p2p"))
    ],
)
def test_equal_to_brute_force(mode: str, shape: int) -> None:
    rng = np.random.default_rng(shape)
    stages, replicas = SHAPES[shape]
    workload = network(rng, 4, backward=shape % 2 == 1)
    problem = DeviceMapping(
        place_for(rng, stages * replicas, 5),
        stages,
        replicas,
        mode,  # type: ignore[arg-type]
        microbatches=1 + shape % 3,
        collective="ring",
        overlap=shape >= 4,
    )
    optimum = least_of_all_cuts(workload, 4, problem)
    result = solve(workload, problem=problem, method="joint")
    assert result.objective == pytest.approx(optimum, rel=1e-5)
    assert result.bound <= optimum * (1 + 1e-9)
    assert result.bound >= optimum * (1 - 1e-4)
    assert "partition first" in result.notes[0]
    assert result.plan is not None
    verify(workload, result.plan)
    apart = solve(workload, problem=problem)
    assert apart.objective is not None
    assert result.objective is not None
    assert apart.objective >= result.objective * (1 - 1e-9)


def test_a_cut_that_only_the_mapping_can_choose() -> None:
    """Two fast links and a slow one: the large tensor must not cross the slow one."""
    workload = Workload(
        name="path",
        ids=tuple(range(6)),
        edges=np.array([(v, v + 1) for v in range(5)]),
        times={"accelerator": np.ones(6)},
        memory_bytes=np.zeros(6),
        transfer=None,
        output_bytes=np.array([1e6, 60e6, 1e6, 50e6, 1e6, 0.0]),
        time_unit="ms",
    )
    problem = DeviceMapping(topology("islands:2x2"), 3, 1, "p2p")
    apart = solve(workload, problem=problem)
    together = solve(workload, problem=problem, method="joint")
    assert together.objective is not None
    assert apart.objective is not None
    assert together.objective < 0.99 * apart.objective


def test_what_joint_does_not_know() -> None:
    rng = np.random.default_rng(0)
    workload = network(rng, 4, backward=False)
    place = topology("ring:4")
    links = DeviceMapping(place, 2, 2, objective="busiest-link")
    with pytest.raises(InputError, match="set collective to ring"):
        solve(workload, problem=DeviceMapping(place, 2, 2, "both"), method="joint")
    with pytest.raises(InputError, match="stage times alone"):
        solve(workload, problem=links, method="joint")


@pytest.mark.parametrize("seed", range(8))
def test_the_first_bounds_hold_for_all_partitions(seed: int) -> None:
    workload = network(np.random.default_rng(seed), 3, backward=seed % 2 == 0)
    cluster = accelerators_and_cpus(4)
    for stages in (1, 2, 3):
        problem = DeviceMapping(
            topology("mesh2d:2x2"), stages, 1, mode="p2p", microbatches=1 + seed % 3
        )
        bounds = {origin: v for v, origin in cheap_bounds(pose(workload, cluster, problem))}
        assert set(bounds) == {"heaviest unit", "total work over all stages"}
        assert 0 < max(bounds.values()) <= least_of_all_cuts(workload, 3, problem) * (1 + 1e-9)
