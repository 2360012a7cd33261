"""Memory of mapped stages: against brute force, refused where broken, and said where missing."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_mapping import least_stage_time, place_for

import stagecut
from stagecut import InputError, Limits, Workload, solve, verify
from stagecut.api.common import devices_of
from stagecut.cli import run_command
from stagecut.instances import DeviceMapping, ReplicaPlacement, Topology, stage_costs, topology
from stagecut.instances.topologies import (
    load_topology,
    save_topology,
    topology_from_networkx,
)
from stagecut.runtime import evaluate

#: Stages, replicas and nodes.
SHAPES = [(2, 1, 4), (2, 2, 5), (3, 1, 6), (1, 3, 3), (3, 2, 5), (4, 1, 6)]


def graph_of(rng: np.random.Generator, nodes: int) -> Workload:
    """Nodes of very unlike memory, with random edges."""
    edges = [(u, v) for v in range(nodes) for u in range(v) if rng.random() < 0.5]
    return Workload(
        name="graph",
        ids=tuple(range(nodes)),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        times={"accelerator": rng.lognormal(0.0, 0.7, nodes)},
        memory_bytes=rng.integers(1, 30, nodes).astype(float),
        transfer=None,
        output_bytes=rng.lognormal(16.0, 1.0, nodes),
        time_unit="ms",
        extra={"weight_bytes": rng.lognormal(17.0, 1.0, nodes)},
    )


def drawn(seed: int) -> tuple[Workload, DeviceMapping]:
    """A random graph, and devices some of which have too little memory for some of its cuts."""
    rng = np.random.default_rng(seed)
    stages, replicas, nodes = SHAPES[seed % len(SHAPES)]
    workload = graph_of(rng, nodes)
    place = place_for(rng, stages * replicas, 8)
    even = workload.memory_bytes.sum() / stages
    sizes = rng.choice(np.round(even * np.array([0.9, 1.3, 1.8])), place.size)
    place = replace(place, memory_bytes=sizes)
    mode = str(rng.choice(["p2p", "allr", "both"]))
    return workload, DeviceMapping(place, stages, replicas, mode, collective="ring")  # type: ignore[arg-type]


def fits_of(workload: Workload, problem: DeviceMapping, stage: np.ndarray) -> np.ndarray:
    held = np.bincount(stage, weights=workload.memory_bytes, minlength=problem.stages)
    return held[:, None] <= problem.topology.memory_bytes[None, :]


def cuts(workload: Workload, stages: int) -> list[np.ndarray]:
    """All cuts into stages, none empty, that follow the edges."""
    edges = workload.edges.tolist()
    return [
        np.array(each)
        for each in itertools.product(range(stages), repeat=workload.n)
        if len(set(each)) == stages and all(each[u] <= each[v] for u, v in edges)
    ]


def least(workload: Workload, problem: DeviceMapping, stage: np.ndarray) -> float:
    """The least stage time of a cut on devices that have its memory, in ms."""
    costs = stage_costs(workload, stage, problem.stages)
    return 1e3 * least_stage_time(costs, problem, fits_of(workload, problem, stage))


@pytest.mark.parametrize("first", range(0, 48, 12))
def test_small_cases_are_brute_force(first: int) -> None:
    missing = 0
    for seed in range(first, first + 12):
        workload, problem = drawn(seed)
        found = {tuple(s): least(workload, problem, s) for s in cuts(workload, problem.stages)}
        result = solve(workload, problem=problem, limits=Limits(nodes=1000))
        if math.isinf(min(found.values())):
            assert result.status == "infeasible", seed
            assert "missing" in result.reason or "more each" in result.reason
            missing += 1
            continue
        assert result.plan is not None, seed
        assert result.status == "optimal", seed
        verify(workload, result.plan)
        own = found[tuple(result.plan.solution.stage.tolist())]
        assert result.objective == pytest.approx(own, rel=2e-6), seed
        assert result.bound <= own * (1 + 1e-9), seed
    assert 0 < missing < 12


def test_the_joint_program_knows_memory() -> None:
    for seed in (0, 2, 3):
        workload, problem = drawn(seed)
        best = min(least(workload, problem, s) for s in cuts(workload, problem.stages))
        result = solve(workload, problem=problem, method="joint")
        if math.isinf(best):
            assert result.status == "infeasible", seed
        else:
            assert result.status == "optimal", seed
            assert result.objective == pytest.approx(best, rel=2e-6), seed


def test_a_mapping_that_breaks_memory_is_refused() -> None:
    workload = graph_of(np.random.default_rng(0), 4)
    place = replace(topology("ring:2"), memory_bytes=[1000.0, workload.memory_bytes[2:].sum() - 1])
    problem = DeviceMapping(place, 2)
    straight = ReplicaPlacement([0, 0, 1, 1], [[0], [1]], [[0]])
    (broken,) = evaluate(workload, devices_of(place), problem, straight).violations
    assert "1 B more than its" in broken
    turned = ReplicaPlacement([0, 0, 1, 1], [[1], [0]], [[0]])
    held = workload.memory_bytes[:2].sum() <= place.memory_bytes[1]
    assert (evaluate(workload, devices_of(place), problem, turned).violations == ()) == held


def large(place: Topology, stages: int, replicas: int) -> tuple[Workload, DeviceMapping]:
    workload = stagecut.load("semantic-fpn-operators-training")
    share = np.where(np.arange(place.size) % 4 == 0, 0.35, 0.12)
    place = replace(place, memory_bytes=share * workload.memory_bytes.sum())
    return workload, DeviceMapping(place, stages, replicas, "both", collective="ring")


def test_unlike_devices_of_a_torus_hold_what_they_can() -> None:
    workload, problem = large(topology("torus2d:8x8"), 8, 8)
    result = solve(workload, problem=problem, limits=Limits(nodes=4))
    assert result.plan is not None
    verify(workload, result.plan)
    fits = fits_of(workload, problem, result.plan.solution.stage)
    assert not fits.all()  # so that it matters which device a stage is on


def test_memory_is_kept_in_files_and_graphs(tmp_path: Path) -> None:
    place = replace(topology("ring:3"), memory_bytes=[1e9, math.inf, 2e9])
    save_topology(place, tmp_path / "t.json")
    for back in (load_topology(tmp_path / "t.json"), topology_from_networkx(place.to_networkx())):
        assert back.memory_bytes.tolist() == [1e9, math.inf, 2e9]
    assert place.fingerprint != topology("ring:3").fingerprint
    save_topology(topology("ring:3"), tmp_path / "plain.json")
    assert "memory_bytes" not in json.loads((tmp_path / "plain.json").read_text())
    assert [kind.count for kind in devices_of(place).kinds] == [1, 1, 1]
    with pytest.raises(InputError, match="give one per device"):
        replace(place, memory_bytes=[1.0])
    with pytest.raises(InputError, match="memory_bytes of device 1 is -1"):
        replace(place, memory_bytes=[1.0, -1.0, 1.0])


def test_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["solve", "semantic-fpn-operators-training", "--problem", "mapping"]
    words += ["--cluster", "ring:4", "--set", "stages=4", "--time-limit", "10"]
    assert run_command([*words, "--memory", "200MiB"]) == 3
    assert "are missing on each" in capsys.readouterr().err
