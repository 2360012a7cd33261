"""What runs beside `auto`: annealing in a process of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_iteration import least_makespan, training_case

from stagecut import (
    Cluster,
    Limits,
    PipelineJob,
    PlacementRules,
    Workers,
    Workload,
    solve,
    verify,
)
from stagecut.api.common import Judge
from stagecut.formulations.task import pose
from stagecut.instances import Solution
from stagecut.solvers import METHODS
from stagecut.solvers.core.search import Search
from stagecut.solvers.job.iteration import annealing as beside
from stagecut.solvers.job.iteration.exact import annealing, take_turns
from stagecut.solvers.job.methods import ANNEALING

#: Ends what hangs; no test waits for it.
SECONDS = 120.0
ROUNDING = 1 + 1e-9
INTERLEAVED = PipelineJob(4, "interleaved")
PINNED = PlacementRules(pins=(("1", 0),))


def case(seed: int, *, tight: bool = False, kinds: int = 1) -> tuple[Workload, Cluster]:
    return training_case(np.random.default_rng(seed), tight=tight, kinds=kinds)


def annealed(
    workload: Workload, cluster: Cluster, problem: PipelineJob, nodes: int | None
) -> float:
    judge = Judge(workload, cluster, problem)
    search: Search[Solution] = Search(Limits(seconds=None, nodes=nodes, seed=1), judge)
    annealing(pose(workload, cluster, problem), search)
    return search.objective


def test_annealing_finds_most_optima_and_no_better_ones() -> None:
    seen = same = 0
    for seed in range(8):
        problem = INTERLEAVED if seed % 2 else PipelineJob(3, "1f1b")
        workload, cluster = case(seed, tight=seed % 3 == 0, kinds=2)
        best = least_makespan(workload, cluster, problem)
        found = annealed(workload, cluster, problem, 2)
        assert found >= best / ROUNDING, seed
        seen += math.isfinite(best)
        same += math.isfinite(best) and found <= best * ROUNDING
    assert seen > 4
    assert same > seen / 2  # a chain of two kinds of devices, or of one stage, is not annealed


def test_annealing_alone_ends_without_a_deadline_and_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beside, "ENOUGH", 3)
    workload, cluster = case(4)
    one, other = (annealed(workload, cluster, INTERLEAVED, None) for _ in range(2))
    assert one == other < math.inf


def test_annealing_ends_where_none_of_its_plans_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "ENOUGH", 3)
    workload, cluster = case(4)
    search: Search[Solution] = Search(Limits(seconds=None), lambda _: math.inf)
    annealing(pose(workload, cluster, INTERLEAVED), search)
    assert search.best is None


def test_what_annealing_cannot_keep_it_is_not_started_for() -> None:
    workload, cluster = case(4)
    strategies = METHODS["pipeline"]["auto"].strategies

    def names(problem: PipelineJob) -> list[str]:
        return [strategy.name for strategy in strategies(pose(workload, cluster, problem))]

    assert names(INTERLEAVED)[0] == ANNEALING
    few = PlacementRules(max_stages=2)
    assert names(replace(INTERLEAVED, placement_rules=few))[0] == ANNEALING
    ruled = replace(INTERLEAVED, placement_rules=PINNED)
    assert ANNEALING not in names(ruled)
    assert annealed(workload, cluster, ruled, None) == math.inf


@pytest.mark.parametrize("seed", [1, 4])
def test_two_workers_find_what_brute_force_finds_and_again(seed: int) -> None:
    workload, cluster = case(seed)
    results = [
        solve(
            workload,
            cluster,
            INTERLEAVED,
            limits=Limits(seconds=SECONDS, nodes=2),
            workers=Workers(2, deterministic=True),
        )
        for _ in range(2)
    ]
    best = least_makespan(workload, cluster, INTERLEAVED)
    assert results[0].status == "optimal"
    assert results[0].objective == pytest.approx(best)
    one, other = (repr((r.objective, r.bound, r.bound_origin, r.plan)) for r in results)
    assert one == other
    plan = results[0].plan
    assert plan is not None
    verify(workload, plan)


@pytest.mark.parametrize("rules", [PINNED, PlacementRules(max_stages=2)], ids=repr)
def test_rules_hold_with_two_workers(rules: PlacementRules) -> None:
    workload, cluster = case(4)
    problem = replace(INTERLEAVED, placement_rules=rules)
    best = least_makespan(workload, cluster, problem)
    result = solve(
        workload,
        cluster,
        problem,
        limits=Limits(seconds=SECONDS),
        workers=Workers(2, deterministic=True),
    )
    assert result.objective == pytest.approx(best)


def test_annealing_has_no_turn_while_another_process_anneals() -> None:
    search: Search[Solution] = Search(Limits(), lambda _: math.inf)
    search.beside = frozenset({ANNEALING})
    turns = {"annealing": iter([None] * 9), "bounds": iter([None] * 3)}
    take_turns(search, turns)
    assert len(list(turns["annealing"])) == 9
    assert not list(turns["bounds"])
