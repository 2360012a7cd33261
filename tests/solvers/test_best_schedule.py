"""Optimal schedules against brute force and the heuristics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from pipelines import random_chain

from stagecut import InputError, Limits
from stagecut.api.best_schedule import best_schedule
from stagecut.runtime.schedules import Action, Kind, ScheduleError, schedule_of, validate
from stagecut.runtime.simulate.simulator import simulate_stages
from stagecut.runtime.simulate.stages import StageGraph, chain


def _rows(stage: int, m: int, split: bool) -> Iterator[list[Action]]:
    """Every order of a stage's passes, microbatches in order in each of them."""
    kinds = [Kind.F, Kind.I, Kind.W] if split else [Kind.F, Kind.B]

    def extend(row: list[Action], done: tuple[int, ...]) -> Iterator[list[Action]]:
        if sum(done) == m * len(kinds):
            yield row
        for k, kind in enumerate(kinds):
            if done[k] < (m if k == 0 else done[k - 1]):
                step = tuple(n + (i == k) for i, n in enumerate(done))
                yield from extend([*row, Action(stage, kind, done[k])], step)

    yield from extend([], (0,) * len(kinds))


def _brute(stages: StageGraph, m: int, capacity: float, split: bool) -> float:
    best = math.inf
    for rows in itertools.product(*(list(_rows(s, m, split)) for s in range(stages.count))):
        schedule = schedule_of(rows, microbatches=m)
        try:
            run = simulate_stages(stages, schedule)
        except ScheduleError:
            continue
        if all(memory.peak_activations <= capacity for memory in run.memory):
            best = min(best, run.makespan)
    return best


@pytest.mark.parametrize(("seed", "m", "capacity"), [(0, 2, 2), (1, 2, 1), (2, 3, 2), (3, 3, 9)])
def test_split_schedules_are_the_best_of_all(seed: int, m: int, capacity: float) -> None:
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 6, (3, 2)).astype(float)
    stages = chain(*times[:2], send=times[2] / 4, activation_bytes=[1.0, 1.0], weight_share=0.4)
    expected = _brute(stages, m, capacity, split=True)
    found = best_schedule(stages, m, activation_bytes=[capacity] * 2)
    assert found.status == "optimal"
    assert found.simulation.makespan == pytest.approx(expected, rel=1e-9)
    validate(found.schedule, stages)


@pytest.mark.parametrize("seed", range(4))
def test_whole_schedules_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 6, (2, 3)).astype(float)
    stages = chain(*times, activation_bytes=[1.0] * 3)
    found = best_schedule(stages, 3, activation_bytes=[2.0] * 3, split=False)
    assert found.simulation.makespan == pytest.approx(_brute(stages, 3, 2.0, split=False))


@pytest.mark.parametrize("seed", range(6))
def test_no_heuristic_is_better(seed: int) -> None:
    stages = random_chain(seed)
    found = best_schedule(stages, 3, limits=Limits(seconds=300))
    assert found.simulation.makespan <= min(found.heuristics.values()) * (1 + 1e-9)
    assert found.bound <= found.simulation.makespan
    assert found.status == "optimal"


def test_several_stages_on_a_device() -> None:
    stages = chain([1.0] * 4, [2.0] * 4, device=[0, 1, 0, 1], activation_bytes=[1.0] * 4)
    found = best_schedule(stages, 2, limits=Limits(seconds=300))
    validate(found.schedule, stages)
    assert found.simulation.makespan == pytest.approx(13.0)  # 12 of work, 1 until device 1 begins


def test_too_little_memory_is_said() -> None:
    stages = chain([1.0, 1.0], [1.0, 1.0], activation_bytes=[2.0, 1.0])
    with pytest.raises(InputError, match="memory"):
        best_schedule(stages, 2, activation_bytes=[1.0, 1.0])
    with pytest.raises(InputError, match="replicas"):
        best_schedule(chain([1.0], [1.0], replicas=[[0, 1]]), 2)
