"""Bounds of a mapping hold for its stages: what other processes find of other stages is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stagecut import Limits, Workload, accelerators_and_cpus
from stagecut.api.common import Judge
from stagecut.formulations.task import Task, pose
from stagecut.instances import DeviceMapping, ReplicaPlacement, Solution, topology
from stagecut.solvers.core import portfolio
from stagecut.solvers.core.processes import Channel, LocalProcesses
from stagecut.solvers.core.search import News, Search
from stagecut.solvers.mapping.auto import annealing, stage_times
from stagecut.solvers.mapping.methods import METHODS
from stagecut.solvers.mapping.state import MappingState

STAGES, DEVICES, NODES = 3, 4, 6


def case(seed: int) -> tuple[Task[DeviceMapping], Judge]:
    """A chain of which several partitions are about as good, on devices with unlike links."""
    rng = np.random.default_rng(seed)
    workload = Workload(
        name=f"chain {seed}",
        ids=tuple(range(NODES)),
        edges=np.array([(v, v + 1) for v in range(NODES - 1)]),
        times={"accelerator": rng.uniform(1.0, 3.0, NODES)},
        memory_bytes=np.zeros(NODES),
        transfer=None,
        output_bytes=rng.uniform(1e6, 50e6, NODES),
        time_unit="ms",
    )
    problem = DeviceMapping(topology(f"random_blk_2:{DEVICES}@seed={seed}"), STAGES, 1)
    cluster = accelerators_and_cpus(DEVICES)
    return pose(workload, cluster, problem), Judge(workload, cluster, problem)


def best_of_all(judge: Judge) -> ReplicaPlacement:
    """Return the best mapping over all partitions of the chain and all devices."""
    stages = [
        np.searchsorted(cuts, np.arange(NODES), side="right")
        for cuts in itertools.combinations(range(1, NODES), STAGES - 1)
    ]
    found = (
        ReplicaPlacement(stage, np.array(slots).reshape(STAGES, 1), np.zeros((STAGES - 1, 1), int))
        for stage in stages
        for slots in itertools.permutations(range(DEVICES), STAGES)
    )
    return min(found, key=judge)


class Sends:
    """Peers that send a solution when they are asked for the k-th time."""

    def __init__(self, solution: Solution, at: int) -> None:
        self.solution, self.at, self.asked = solution, at, 0

    def tell(self, news: News, sender: str) -> None:
        """Nobody listens."""

    def take(self, search: Search[Any]) -> None:
        self.asked += 1
        if self.asked == self.at:
            search.offer(self.solution)


#: Cases in which other stages than those chosen have a better mapping.
OTHERS = (23, 27)


@pytest.mark.parametrize("seed", OTHERS)
def test_no_bound_is_above_a_mapping_that_comes_from_elsewhere(seed: int) -> None:
    task, judge = case(seed)
    best = best_of_all(judge)
    alone: Search[Solution] = Search(Limits(nodes=3), judge)
    stage_times(task, alone)
    assert judge(best) < 0.99 * alone.objective
    taken = []
    for at in (1, 2, 3, 5, 8, 13, 21):
        search: Search[Solution] = Search(Limits(nodes=3), judge)
        search.peers = Sends(best, at)
        stage_times(task, search)
        assert not [note for note in search.notes if "defect" in note]
        assert isinstance(search.best, ReplicaPlacement)
        taken.append(bool((search.best.stage == best.stage).all()))
        expected = judge(best) if taken[-1] else alone.objective
        assert search.objective == pytest.approx(expected)
        assert expected * 0.999 < search.bound <= expected * (1 + 1e-9)
    assert taken[0]  # before stages are chosen
    assert not taken[-1]


@pytest.mark.parametrize("seed", OTHERS)
def test_a_worker_maps_the_stages_of_the_best_plan_known(seed: int) -> None:
    task, judge = case(seed)
    best = best_of_all(judge)
    poor = max(
        (
            replace(best, slots=np.array(slots).reshape(STAGES, 1))
            for slots in itertools.permutations(range(DEVICES), STAGES)
        ),
        key=judge,
    )
    search: Search[Solution] = Search(Limits(nodes=3), judge)
    search.offer(poor)
    annealing(task, search)
    assert search.objective == pytest.approx(judge(best))
    assert search.bound <= search.objective


class Counted(LocalProcesses):
    """An executor whose workers end at once."""

    started = 0

    def start(self, body: object, argument: object) -> Channel:  # noqa: ARG002
        self.started += 1
        raise OSError("not in this test")


def test_a_worker_begins_once_stages_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    task, judge = case(0)
    monkeypatch.setattr(portfolio, "START_AFTER_S", -1.0)
    executor = Counted(1)
    search: Search[Solution] = Search(Limits(), judge)
    strategies = tuple(METHODS["auto"].strategies(task))
    workers = portfolio.Portfolio(task, search, strategies, executor, 1, deterministic=False)
    mapping = MappingState(task, search)
    workers.look()
    assert executor.started == 0
    mapping.layouts()
    search.raise_bound(0.0, "a test")
    assert not search.should_stop()
    workers.look()
    assert executor.started == 1
