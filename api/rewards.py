"""Rewards of a policy in training: objectives, simulated batches, or measured ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..formulations.task import Task
from ..instances import InputError, Plan, Problem
from ..instances.common.arrays import Floats, Ints
from ..instances.common.choices import Choice
from ..runtime import evaluate
from ..runtime.execution.trials import TimePlans
from ..runtime.simulate.plan_stages import stages_of, usual_network, usual_schedule
from ..runtime.simulate.simulator import simulate_stages
from ..solvers.learned.subject import Subject


class Reward(Choice):
    """What a placement is worth to a policy in training; less is better.

    Parameters
    ----------
    OBJECTIVE
        The objective by definition.
    SIMULATED
        Time per microbatch of a batch in the simulator, by the schedule that `stagecut simulate`
        takes by default, with its beginning and its end.
    MEASURED
        Time of a batch on processes, relative to another placement's at the same time.
    """

    OBJECTIVE = "objective"
    SIMULATED = "simulated"
    MEASURED = "measured"


def rewarded(
    task: Task[Problem], of: Subject, reward: Reward, time_plans: TimePlans | None = None
) -> Subject:
    """Return a subject whose placements are worth what the reward says.

    What breaks a rule is worth what it was: it cannot be run.
    """
    if reward is Reward.SIMULATED:
        return replace(of, values=lambda group, device: _simulated(task, of, group, device))
    if reward is Reward.MEASURED:
        if time_plans is None:
            raise InputError("reward: measured; nothing is there to measure with")
        return replace(of, values=_Measured(task, of, time_plans))
    return of


def _plans(task: Task[Problem], of: Subject, group: Ints, device: Ints) -> Iterator[Plan | None]:
    """Yield the plan of each placement, None if it breaks a rule."""
    workload, cluster, problem = task.workload, task.cluster, task.problem
    for own, where in zip(group, device, strict=True):
        solution = of.solution(own, where)
        told = evaluate(workload, cluster, problem, solution)
        yield None if told.violations else Plan(
            workload.name, workload.fingerprint, cluster, problem, solution, told.objective, 0.0,
            "learned", workload.time_unit,
        )  # fmt: skip


def _simulated(task: Task[Problem], of: Subject, group: Ints, device: Ints) -> Floats:
    worth = of.values(group, device)
    for i, plan in enumerate(_plans(task, of, group, device)):
        if plan is not None:
            run = simulate_stages(
                stages_of(task.workload, plan), usual_schedule(plan), network=usual_network(plan)
            )
            worth[i] = run.makespan / run.schedule.microbatches / of.scene.even_load
    return worth


class _Measured:
    """Times of batches, in multiples of a reference's, which is worth what it is predicted to be.

    The reference is the best by prediction of the first placements; in every round all others are
    timed beside it. A placement that leaves a device without work is not run: it is worth as much
    as all units on one device.
    """

    def __init__(self, task: Task[Problem], of: Subject, time_plans: TimePlans) -> None:
        self._task, self._of, self._time_plans = task, of, time_plans
        self._reference: tuple[Plan, float] | None = None

    def __call__(self, group: Ints, device: Ints) -> Floats:
        worth, devices = self._of.values(group, device), self._task.cluster.size
        plans: dict[bytes, Plan] = {}
        rows: dict[bytes, list[int]] = {}
        for i, plan in enumerate(_plans(self._task, self._of, group, device)):
            if plan is None:
                continue
            if len(np.unique(plan.placement)) < devices:
                worth[i] = max(worth[i], devices)
                continue
            key = plan.placement.tobytes()
            plans[key] = plan
            rows.setdefault(key, []).append(i)
        if not plans:
            return worth
        if self._reference is None:
            first = min(plans, key=lambda key: worth[rows[key][0]])
            self._reference = plans[first], float(worth[rows[first][0]])
        reference, predicted = self._reference
        times = self._time_plans([reference, *plans.values()])
        for own, time in zip(rows.values(), times[1:].tolist(), strict=True):
            worth[own] = predicted * time
        return worth
