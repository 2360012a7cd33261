"""The DP over a series of segments against the DP over all ideals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from series_cases import series_case

from stagecut import (
    Cluster,
    DeviceKind,
    Limits,
    Throughput,
    Workload,
    accelerators_and_cpus,
    load,
    solve,
    verify,
)
from stagecut.formulations.task import Task, pose
from stagecut.formulations.throughput.ideals import pipeline
from stagecut.instances import Solution
from stagecut.runtime import evaluate
from stagecut.solvers.throughput.dp import dp
from stagecut.solvers.throughput.series import table, tree
from stagecut.solvers.throughput.series.series_dp import ORIGIN, series_dp
from stagecut.solvers.throughput.series.table import nested
from stagecut.solvers.throughput.series.tree import (
    SegmentStates,
    divide,
    neighbours,
    series,
    states,
)

CONTIGUOUS = Throughput(split="contiguous")


class Noted:
    """What the method needs of a search."""

    def __init__(self, task: Task[Throughput], objective: float) -> None:
        self.task, self.objective, self.bound = task, objective, 0.0
        self.best: Solution | None = None

    def should_stop(self) -> bool:
        return False

    def note(self, text: str) -> None:
        assert "segments" in text

    def raise_bound(self, bound: float, origin: str) -> None:
        assert origin == ORIGIN
        self.bound = max(self.bound, bound)

    def offer(self, plan: Solution) -> None:
        report = evaluate(self.task.workload, self.task.cluster, self.task.problem, plan)
        if not report.violations and report.objective < self.objective:
            self.objective, self.best = report.objective, plan


def outcome(seed: int, **sizes: int) -> tuple[float, Noted] | None:
    """Return the optimum by the DP over ideals, and what this one found; None if infeasible."""
    workload, cluster = series_case(seed, **sizes)
    problem = Throughput("contiguous", relayed=seed % 4 == 0)
    exact = solve(workload, cluster, problem, method="dp", limits=Limits(gap=0.0))
    if exact.status == "infeasible":
        return None
    assert exact.status == "optimal", seed
    found = Noted(pose(workload, cluster, problem), 1.5 * exact.objective + 1)
    series_dp(found.task, found)
    assert found.bound <= exact.objective * (1 + 1e-9), seed
    assert found.best is None or found.objective >= exact.objective * (1 - 1e-9), seed
    return exact.objective, found


def test_bounds_and_plans_agree_with_the_dp_over_ideals() -> None:
    closed = Counter[bool]()
    for seed in range(120):
        known = outcome(seed)
        if known is not None:
            best, found = known
            closed[found.bound >= best * (1 - 1e-6) - 1e-9] += 1
    assert closed[True] > 5 * closed[False]  # the others are short of memory, or loads not known


def test_a_time_that_no_plan_pays_is_as_good_as_never() -> None:
    """A time of 1e16 was in the sums of all later stages, whose rounding was taken for loads."""
    compared = 0
    for seed in range(400, 430):
        workload, cluster = series_case(seed)
        rng = np.random.default_rng([seed, 6])
        at, big = int(rng.integers(workload.n)), float(10.0 ** rng.integers(12, 18))
        found: list[Noted] = []
        limit = np.inf
        for slow in (np.inf, big):
            time = np.where(np.arange(workload.n) == at, slow, workload.times["accelerator"])
            one = replace(workload, times={**workload.times, "accelerator": time})
            task = pose(one, cluster, CONTIGUOUS)
            if not found:
                best = solve(one, cluster, CONTIGUOUS, method="dp").objective
                if best is None:  # the unit fits nowhere else
                    break
                limit = 1.5 * best + 1
            found.append(Noted(task, limit))
            series_dp(task, found[-1])
        else:
            compared += 1
            assert found[1].bound == pytest.approx(found[0].bound, rel=1e-6), (seed, big)
            assert found[1].objective == pytest.approx(found[0].objective), (seed, big)
    assert compared > 15


def test_bytes_that_no_device_has_leave_no_rounding_in_the_sums() -> None:
    """Of five units the first runs on the core alone, as it takes 1e25 bytes."""
    time = np.array([1.0, 4, 3, 2, 2])
    workload = Workload(
        name="bytes of 1e25",
        ids=tuple(range(5)),
        edges=np.array([(v, v + 1) for v in range(4)]),
        times={"accelerator": time, "cpu": time},
        memory_bytes=np.array([1e25, 1e9, 1e9, 1e9, 1e9]),
        transfer=np.zeros(5),
    )
    kinds = DeviceKind("accelerator", 2, 1e9), DeviceKind("cpu", 1, host=True)
    found = Noted(pose(workload, Cluster(kinds), CONTIGUOUS), 20.0)
    series_dp(found.task, found)
    assert found.objective == 8.0
    assert found.bound == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize(
    ("few", "dense", "inner"), [(0, 100_000, 200_000), (0, 0, 200_000), (0, 0, 0)]
)
def test_bounds_hold_where_loads_are_not_known(
    few: int, dense: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "FEW", few)
    monkeypatch.setattr(table, "DENSE", dense)
    monkeypatch.setattr(table, "MOST_INNER", inner)
    plans = 0
    for seed in range(200, 240):
        known = outcome(seed)
        plans += known is not None and known[1].best is not None
    assert plans > 5


def test_experts_of_a_layer_are_alike() -> None:
    workload = load("mixtral-8x7b-operators-training")
    pipe = pipeline(pose(workload, accelerators_and_cpus(16), CONTIGUOUS))
    near = neighbours(pipe.graph)
    layers = Counter[tuple[tuple[int, int], ...]]()
    for units in series(near, pipe.orders[0]):
        segment = divide(pipe.graph, near, units)
        assert sorted(segment.units.tolist()) == sorted(units)
        layers[tuple((len(branches), len(branches[0])) for branches in segment.classes)] += 1
        if len(units) == 40:  # gather, gate and up, swiglu, down
            found = states(segment, near)
            assert found is not None
            assert found.size == comb(8 + 7 - 1, 8) - 1
    assert layers[((8, 5),)] == 32


def test_a_branch_that_costs_more_is_not_alike() -> None:
    def segment(slow: float) -> tuple[tuple[tuple[int, ...], ...], ...]:
        workload = Workload(
            name="branches",
            ids=(0, 1, 2, 3),
            edges=np.array([(0, 1), (0, 2), (1, 3), (2, 3)]),
            times={"accelerator": np.array([1.0, 1.0, slow, 1.0])},
            memory_bytes=np.ones(4),
            transfer=np.ones(4),
        )
        graph = pipeline(pose(workload, accelerators_and_cpus(2, cpus=0), CONTIGUOUS)).graph
        near = neighbours(graph)
        found = [units for units in series(near, np.arange(4)) if len(units) == 2]
        return divide(graph, near, found[0]).classes

    assert segment(1.0) == (((1,), (2,)),)
    assert segment(1.5) == (((1,),), ((2,),))


def test_branches_change_places_so_that_states_are_nested() -> None:
    shape = ((3, 2),)
    member = np.array([[0, 0, 0, 0, 1, 0], [1, 0, 1, 1, 0, 0]], np.bool_)
    both = SegmentStates(np.arange(6), member, shape, [], ())
    inside = nested(both, 0, member[1])
    assert inside.sum() == 1
    assert (inside <= member[1]).all()
    assert (nested(both, 0, None) == member[0]).all()


def test_the_dp_goes_on_with_it_where_ideals_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load("gpt2-xl-training")
    cluster = accelerators_and_cpus(4)
    exact = solve(workload, cluster, CONTIGUOUS, method="dp", limits=Limits(gap=0.0))
    monkeypatch.setattr(dp, "all_ideals", lambda *_: None)
    other = solve(workload, cluster, CONTIGUOUS, method="dp", limits=Limits(gap=0.0))
    assert other.plan is not None
    assert other.plan.certificate["origin"] == ORIGIN
    assert other.objective == pytest.approx(exact.objective, rel=1e-9)
    assert other.bound == pytest.approx(exact.objective, rel=1e-6)
    verify(workload, other.plan)
