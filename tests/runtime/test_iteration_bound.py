"""The check of a bound of an iteration by all chains of stages, against brute force."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_iteration import least_makespan
from sweep import VARIANTS

import stagecut
from stagecut import Limits, PipelineJob, VerificationError, Workload
from stagecut.instances import UncheckedError, is_iteration
from stagecut.runtime.schedules import Schedule, make_schedule
from stagecut.runtime.simulate.simulator import simulate_stages
from stagecut.runtime.simulate.stages import chain
from stagecut.runtime.verify.bounds import stage_chains as stage_list
from stagecut.runtime.verify.bounds.check import check_bound
from stagecut.runtime.verify.bounds.job import no_iteration_below, paths_of


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("block", range(4))
def test_says_what_brute_force_says(block: int, schedule: str) -> None:
    """It is never wrong, and exact but where it leaves out kinds of devices and some transfers.

    In a third of the cases memory binds, and one in six has no plan.
    """
    exact = 0
    for seed in range(18 * block, 18 * block + 18):
        case = VARIANTS[f"iteration {schedule}"](seed)
        problem = case.problem
        assert is_iteration(problem)
        best = case.optimum()
        if best == 0:
            continue
        if best < math.inf:
            above = best * (1 + 1e-6)
            assert not no_iteration_below(case.workload, case.cluster, problem, above), seed
        below = best * (1 - 1e-9) if best < math.inf else 1e6
        exact += no_iteration_below(case.workload, case.cluster, problem, below)
    assert exact >= 12


def test_a_stage_without_time_can_help() -> None:
    """With it other stages may have one more microbatch in flight, under ZB-H1."""
    forward, backward = [7.0, 7.0, 5.0, 0.0], [8.0, 3.0, 7.0, 0.0]
    workload = Workload(
        name="idle end",
        ids=tuple(range(8)),
        edges=np.array([(0, 1), (1, 2), (2, 3), (3, 7), (7, 6), (6, 5), (5, 4)]),
        times={"accelerator": np.array(forward + backward)},
        memory_bytes=np.zeros(8),
        transfer=np.zeros(8),
        colours=np.array([0, 1, 2, 3, 0, 1, 2, 3]),
        backward=np.array([False] * 4 + [True] * 4),
    )
    problem, cluster = PipelineJob(5, "zb-h1"), stagecut.accelerators_and_cpus(4)
    assert least_makespan(workload, cluster, problem) == 79.0
    assert not no_iteration_below(workload, cluster, problem, 79.0 * (1 + 1e-6))


def test_a_schedule_left_open_is_the_usual_one() -> None:
    """A plan whose problem names no schedule is checked as the iteration under 1F1B that it is."""
    workload, cluster = stagecut.load("gpt2-xl-training"), stagecut.accelerators_and_cpus(2)
    plan = stagecut.solve(workload, cluster, PipelineJob(4), limits=Limits(seconds=20)).plan
    assert plan is not None
    assert plan.problem.schedule == "1f1b"  # type: ignore[union-attr]
    assert check_bound(workload, replace(plan, problem=PipelineJob(4))).value >= plan.bound


def test_given_schedules() -> None:
    exact = 0
    for seed in range(60):
        case = VARIANTS["iteration given"](seed)
        problem, best = case.problem, case.optimum()
        assert is_iteration(problem)
        if not 0 < best < math.inf or problem.chunks_per_device > 1:
            continue
        above = best * (1 + 1e-6)
        assert not no_iteration_below(case.workload, case.cluster, problem, above), seed
        exact += no_iteration_below(case.workload, case.cluster, problem, best * (1 - 1e-9))
    assert exact >= 8


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
def test_longest_paths_are_the_simulators_makespans(schedule: str) -> None:
    forward, backward = [1.0, 3.0, 2.0], [4.0, 2.5, 3.0]
    stages = chain(forward, backward, weight_share=0.4)
    made: Schedule = make_schedule(schedule, stages, 5)
    paths = paths_of(PipelineJob(5, schedule), 3, trains=True)
    rows = [[f, b, 0.6 * b, 0.4 * b] for f, b in zip(forward, backward, strict=True)]
    durations = np.array(rows)
    makespan, counts = paths.longest(durations)
    assert makespan == pytest.approx(simulate_stages(stages, made, 5).makespan)
    assert (counts * durations).sum() == pytest.approx(makespan)
    assert paths.makespans(durations.T[:, None, :]) == pytest.approx([makespan])


def test_of_plans_as_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = stagecut.load("llama3-8b-training")
    cluster = stagecut.accelerators_and_cpus(4)
    plan = stagecut.solve(workload, cluster, PipelineJob(8), limits=Limits(gap=1e-3)).plan
    assert plan is not None
    assert str(plan.certificate["origin"]).startswith("paths of the schedule")
    assert check_bound(workload, plan).value == plan.bound
    forged = replace(plan, bound=plan.objective * (1 + 1e-6), objective=plan.objective * 1.01)
    with pytest.raises(UncheckedError, match="without a certificate that can be checked"):
        check_bound(workload, forged)
    monkeypatch.setattr(stage_list, "STAGES", 10)
    with pytest.raises(VerificationError, match="too many stages"):
        check_bound(workload, plan)
