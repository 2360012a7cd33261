"""The bounds that come first: never above brute force, never below what anyone can compute."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import highspy
import numpy as np
import pytest
from brute import best_max_load
from brute_latency import least_latency
from cases import THROUGHPUT_PROBLEMS, linked_case, random_case
from conformance import task

import stagecut
from stagecut import (
    Cluster,
    DeviceKind,
    Latency,
    Throughput,
    Workload,
    accelerators_and_cpus,
    solve,
)
from stagecut.formulations.task import pose
from stagecut.formulations.throughput.cheap_bounds import count_out
from stagecut.instances import Problem
from stagecut.solvers.core import search as search_module
from stagecut.solvers.core.search import Clock
from stagecut.solvers.core.under_rules import cheap_bounds


def bounds(workload: Workload, cluster: Cluster, problem: Problem) -> dict[str, float]:
    found: dict[str, float] = {}
    for bound, origin in cheap_bounds(pose(workload, cluster, problem)):
        found[origin] = max(bound, found.get(origin, -math.inf))
    return found


@pytest.mark.parametrize("chunk", range(8))
def test_no_bound_of_throughput_is_above_the_optimum(chunk: int) -> None:
    for seed in range(60 * chunk, 60 * (chunk + 1)):
        problem = THROUGHPUT_PROBLEMS[seed % len(THROUGHPUT_PROBLEMS)]
        case = linked_case if seed % 7 == 0 else random_case
        workload, cluster = case(seed, max_nodes=6, max_cores=2, max_kinds=1 + seed % 2)
        best = best_max_load(workload, cluster, problem)
        for origin, bound in bounds(workload, cluster, problem).items():
            assert bound <= best, f"seed {seed}: {problem}: {origin}"


@pytest.mark.parametrize("calls", [1, 2])
def test_no_bound_of_latency_is_above_the_optimum(calls: int) -> None:
    for seed in range(150):
        workload, cluster = random_case(seed, max_nodes=5, max_cores=1, max_kinds=1 + seed % 2)
        problem = Latency(calls=calls)
        best = least_latency(workload, cluster, problem)
        for origin, bound in bounds(workload, cluster, problem).items():
            assert bound <= best, f"seed {seed}: {origin}"


def chain(times: list[float], memory: list[float], cpu: list[float]) -> Workload:
    size = len(times)
    return Workload(
        name="chain",
        ids=tuple(range(size)),
        edges=np.array([(i, i + 1) for i in range(size - 1)], dtype=np.int64).reshape(-1, 2),
        times={"accelerator": np.array(times), "cpu": np.array(cpu)},
        memory_bytes=np.array(memory),
        transfer=np.zeros(size),
    )


def test_work_counts_what_small_memories_send_to_slow_cores() -> None:
    """Two accelerators hold 4 of 10 bytes: 6 bytes, at 5 a byte, are left to the core."""
    workload = chain([1.0] * 10, [1.0] * 10, [5.0] * 10)
    cluster = accelerators_and_cpus(2, 1, memory_bytes=2.0)
    found = bounds(workload, cluster, Throughput(split="noncontiguous"))
    assert found["total work over all devices"] == pytest.approx(30.0, rel=1e-6)


@pytest.mark.parametrize("problem", ["stream", "mapping", "sharding"])
def test_what_sends_nothing_takes_its_bound(problem: str) -> None:
    """Equal layers on two devices each, equal stages, and one operator that cannot be divided."""
    of = task(problem, [3.0] if problem == "sharding" else [1.0, 1.0])
    workload = of.workload
    if workload.layers is not None:
        none = {"weight_bytes": np.zeros(2), "edge_bytes": np.zeros(1)}
        workload = replace(workload, layers=replace(workload.layers, **none))
    if problem == "mapping":
        workload = replace(workload, output_bytes=np.zeros(2), extra={"weight_bytes": np.zeros(2)})
    best = solve(workload, of.cluster, of.problem).objective
    found = bounds(workload, of.cluster, of.problem)
    assert max(found.values()) == pytest.approx(best, rel=1e-6)


def test_layers_that_must_recompute_for_room_take_longer_in_all() -> None:
    """Of two layers of 2 bytes, or 1 and twice the time, one recomputes in 3 bytes: 3 s of work."""
    of = task("stream", [1.0, 1.0], room=1.5e9)
    assert of.workload.layers is not None
    layers = replace(
        of.workload.layers,
        node=np.array([0, 0, 1, 1]),
        degree=np.ones(4, np.int64),
        label=("vanilla", "recompute") * 2,
        recomputes=np.array([False, True] * 2),
        time=np.array([1.0, 2.0] * 2),
        weight_bytes=np.zeros(4),
        bytes_per_microbatch=np.zeros(4),
        fixed_bytes=np.array([2e9, 1e9] * 2),
        sync_bytes=({},) * 4,
        sharding=(),
    )
    found = bounds(replace(of.workload, layers=layers), of.cluster, of.problem)
    assert found["total work over all devices"] == pytest.approx(1.5, rel=1e-6)


def test_three_units_on_two_devices_are_two_on_one() -> None:
    assert count_out(np.full((1, 3), 2.0), np.array([2])) == pytest.approx(4.0, rel=1e-6)


def test_other_threads_settings_of_highs_take_no_bound_away() -> None:
    """HiGHS refuses to run with another number of threads than the thread's first caller set."""
    workload = chain([1.0] * 10, [1.0] * 10, [5.0] * 10)
    cluster = accelerators_and_cpus(2, 1, memory_bytes=2.0)
    problem = Throughput(split="noncontiguous")
    found: dict[str, float] = {}
    gaps: list[float] = []

    def after_another_user() -> None:
        other = highspy.Highs()
        other.setOptionValue("output_flag", False)
        other.setOptionValue("threads", 2)
        other.run()
        found.update(bounds(workload, cluster, problem))
        gaps.append(solve(workload, cluster, problem, method="column-generation").gap)

    thread = threading.Thread(target=after_another_user)
    thread.start()
    thread.join()
    assert found["total work over all devices"] == pytest.approx(30.0, rel=1e-6)
    assert gaps == [pytest.approx(0.0, abs=1e-3)]


def test_work_is_shared_by_unequal_devices_as_well_as_can_be() -> None:
    """Speeds 1 and 3 do 12 in 3."""
    workload = chain([1.0] * 12, [0.0] * 12, [1.0] * 12)
    cluster = Cluster(
        (
            DeviceKind("slow", 1, times="accelerator"),
            DeviceKind("fast", 1, times="accelerator", slowdown=1 / 3),
        )
    )
    found = bounds(workload, cluster, Throughput(split="noncontiguous"))
    assert found["total work over all devices"] == pytest.approx(3.0, rel=1e-6)


def test_gpipe_adds_up_the_bounds_of_the_passes() -> None:
    workload = replace(
        chain([3.0, 1.0, 1.0, 4.0], [0.0] * 4, [1.0] * 4),
        backward=np.array([False, False, True, True]),
    )
    cluster = accelerators_and_cpus(2)
    found = bounds(workload, cluster, Throughput(split="noncontiguous", pipeline="gpipe"))
    assert found["heaviest unit"] == pytest.approx(7.0, rel=1e-6)
    found = bounds(workload, cluster, Throughput(split="noncontiguous"))
    assert found["heaviest unit"] == pytest.approx(4.0, rel=1e-6)


def test_tolerances_of_the_linear_program_make_no_bound_wrong() -> None:
    """Times from 1e-9 to 1e12: what the multipliers prove holds whatever they are."""
    for seed in range(40):
        workload, cluster = random_case(seed, max_nodes=6, max_cores=2, max_kinds=2)
        spread = 10.0 ** np.random.default_rng(seed).uniform(-9, 12, workload.n)
        times = {name: time * spread for name, time in workload.times.items()}
        workload = replace(workload, times=times)
        best = best_max_load(workload, cluster, Throughput())
        for origin, bound in bounds(workload, cluster, Throughput()).items():
            assert bound <= best, f"seed {seed}: {origin}"


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("greedy", Throughput(split="noncontiguous")),
        ("single", Throughput(split="contiguous")),
        ("greedy", Latency()),
    ],
)
def test_methods_that_prove_nothing_have_a_bound(
    method: str, problem: Throughput | Latency
) -> None:
    workload = chain([1.0] * 12, [0.0] * 12, [9.0] * 12)
    result = solve(workload, accelerators_and_cpus(3), problem, method=method)
    least = 4.0 if isinstance(problem, Throughput) else 12.0
    assert result.bound >= least * (1 - 1e-6)
    assert result.objective is not None


def test_set_partitioning_stops_when_its_share_of_the_time_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=2.0)
    monkeypatch.setattr(search_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    share = Clock(8.0).part(0.25)
    part = share.part(0.5)
    assert share.seconds_left == pytest.approx(2.0)
    assert part.seconds_left == pytest.approx(1.0)
    clock.now = 3.9
    assert part.should_stop()
    assert not share.should_stop()
    clock.now = 4.1
    assert share.should_stop()


def test_published_gpipe_has_its_bound_at_once(benchmarks: Path) -> None:
    """Forward and backward work, each over six devices and a core: 96.14; without them 85.3."""
    path = benchmarks / "placement/throughput/LayerGraphs/gnmt_training.json"
    workload = stagecut.load(path)
    assert workload.cluster is not None
    problem = Throughput(split="noncontiguous", pipeline="gpipe")
    assert max(bounds(workload, workload.cluster, problem).values()) > 96.1
