"""Training of a placement policy on random graphs or on workloads. Needs torch.

Rewards are objectives, simulated times, or measured times of batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..formulations.task import Task, pose
from ..instances import (
    CallPlacement,
    Cluster,
    InputError,
    Latency,
    PipelineJob,
    Plan,
    Problem,
    Workload,
)
from ..instances.common.arrays import Floats, Ints
from ..instances.common.choices import Choice
from ..instances.formats.files import load
from ..instances.generate.graph_family import family_graph
from ..runtime import evaluate
from ..runtime.execution.trials import TimePlans
from ..runtime.simulate.plan_stages import stages_of, usual_network, usual_schedule
from ..runtime.simulate.simulator import simulate_stages
from ..solvers import Limits
from ..solvers.learned.environments import PlacementEnvironment, environment
from ..solvers.learned.policy import new_policy, one_thread
from ..solvers.learned.policy_file import read_policy, training_of, write_policy
from ..solvers.learned.train import (
    Example,
    Settings,
    TrainingRun,
    imitate_step,
    new_training,
    train_step,
)
from .solve import solve


class Reward(Choice):
    """Values of a placement by which a policy is trained; less is better."""

    OBJECTIVE = "objective"  # the objective by definition
    # time per microbatch of a batch in the simulator, by the schedule that `stagecut simulate`
    # takes by default, with its beginning and its end
    SIMULATED = "simulated"
    # time of a batch on processes, relative to another placement's at the same time
    MEASURED = "measured"


def with_reward(
    task: Task[Problem],
    of: PlacementEnvironment,
    reward: Reward,
    time_plans: TimePlans | None = None,
) -> PlacementEnvironment:
    """Return an environment whose placements have the values of a reward.

    A placement that breaks a rule keeps its value, since it cannot be run.
    """
    if reward is Reward.SIMULATED:
        return replace(of, values=lambda group, device: _simulated(task, of, group, device))
    if reward is Reward.MEASURED:
        if time_plans is None:
            raise InputError("reward: measured; nothing is there to measure with")
        return replace(of, values=_Measured(task, of, time_plans))
    return of


def _plans(
    task: Task[Problem], of: PlacementEnvironment, group: Ints, device: Ints
) -> Iterator[Plan | None]:
    """Yield the plan of each placement, None if it breaks a rule."""
    workload, cluster, problem = task.workload, task.cluster, task.problem
    for own, where in zip(group, device, strict=True):
        solution = of.solution(own, where)
        report = evaluate(workload, cluster, problem, solution)
        yield None if report.violations else Plan(
            workload.name, workload.fingerprint, cluster, problem, solution, report.objective, 0.0,
            "learned", workload.time_unit,
        )  # fmt: skip


def _simulated(task: Task[Problem], of: PlacementEnvironment, group: Ints, device: Ints) -> Floats:
    worth = of.values(group, device)
    for i, plan in enumerate(_plans(task, of, group, device)):
        if plan is not None:
            run = simulate_stages(
                stages_of(task.workload, plan), usual_schedule(plan), network=usual_network(plan)
            )
            worth[i] = run.makespan / run.schedule.microbatches / of.observation.even_load
    return worth


class _Measured:
    """Values of placements: measured time of a batch over a reference's, times its predicted value.

    The reference is the best by prediction of the first placements; in every round all others are
    timed beside it. A placement that leaves a device without work is not run: its value is at least
    that of all units on one device.
    """

    def __init__(
        self, task: Task[Problem], of: PlacementEnvironment, time_plans: TimePlans
    ) -> None:
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
        for own, seconds in zip(rows.values(), times[1:].tolist(), strict=True):
            worth[own] = predicted * seconds
        return worth


#: Largest gap of a plan that is imitated.
CERTIFIED = 0.03
#: Updates between one writing of the policy and the next.
KEPT_EVERY = 200


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Workloads with their problems."""

    workloads: tuple[Workload, ...]  # with the clusters that they suggest
    problems: tuple[Problem, ...]  # each is asked of each workload that it fits
    reward: Reward = Reward.OBJECTIVE  # what placements are worth
    time_plans: TimePlans | None = None  # what times plans, for measured rewards

    @cached_property
    def tasks(self) -> tuple[Task[Problem], ...]:
        """Every workload with every problem that it fits."""
        posed = (
            pose(workload, workload.cluster, problem)
            for workload in self.workloads
            for problem in self.problems
            if workload.cluster is not None and _fits(workload, problem)
        )
        return tuple(task for task in posed if environment(task).rules)

    @cached_property
    def environments(self) -> tuple[PlacementEnvironment, ...]:
        """The tasks, as a policy is asked for placements of them."""
        return tuple(
            with_reward(task, environment(task), self.reward, self.time_plans)
            for task in self.tasks
        )

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the workloads, by name."""
        return {workload.name: workload.fingerprint for workload in self.workloads}


@dataclass(frozen=True)
class LearnOptions:
    """Options of training."""

    steps: int  # updates in all, by imitation and then by PPO
    imitate: int = 0  # updates by imitation of certified plans
    seconds: float | None = None  # training ends after so many; None: when all updates are done
    seed: int = 0  # of everything random
    plan_seconds: float = 5.0  # for each plan to imitate, at most
    settings: Settings = field(default_factory=Settings)  # of PPO


@dataclass(frozen=True)
class Update:
    """Statistics of an update: mean and best costs relative to an even load, imitation loss."""

    step: int
    phase: str
    workload: str
    mean: float
    best: float
    loss: float


def family_set(families: Sequence[str], count: int, seed: int) -> tuple[Workload, ...]:
    """Return `count` graphs, of the families in turn, in every second turn with unlike devices.

    InputError if there is no such family, or the count is below 1.
    """
    if count < 1 or not families:
        raise InputError("--count: an empty family; it must be at least 1")
    return tuple(
        family_graph(
            families[i % len(families)], seed * 100_000 + i, unlike=i // len(families) % 2 == 1
        )
        for i in range(count)
    )


def workload_set(
    names: Sequence[str], cluster_for: Callable[[Workload], Cluster | None]
) -> tuple[Workload, ...]:
    """Return workloads by file or name, each with the cluster to train for.

    InputError if one cannot be read, or no method could plan it for its cluster.
    """
    found = tuple(load(name) for name in names)
    return tuple(replace(workload, cluster=cluster_for(workload)) for workload in found)


def _fits(workload: Workload, problem: Problem) -> bool:
    """Whether the workload has a backward pass for iterations, and none for requests."""
    if isinstance(problem, Latency):
        return not workload.backward.any()
    return not isinstance(problem, PipelineJob) or bool(workload.backward.any())


def learn(
    on: TrainingSet,
    output: Path,
    options: LearnOptions,
    *,
    command: str = "",
    resume: bool = False,
    resumable: bool = True,
    report: Callable[[Update], None] | None = None,
) -> TrainingRun:
    """Train a policy and write it, also if interrupted, with the state that `resume` needs.

    The same set, options and seed give the same curve, and a resumed training the curve of an
    uninterrupted one.

    Parameters
    ----------
    command
        Command that the file names as its origin.
    resume
        Continue the training of the output file.
    resumable
        Write the state that `resume` needs.
    report
        Called with every update.

    Raises
    ------
    InputError
        If nothing can be trained on, or the file to resume is of another training.
    """
    if not on.environments:
        raise InputError("learn: no workload fits the problem; give others")
    about: dict[str, object] = {
        "command": command,
        "training_set": on.fingerprints,
        "reward": str(on.reward),
    }
    if resume:
        kept = read_policy(output)
        if kept.about.get("training_set") != on.fingerprints:
            raise InputError(f"{output}: trained on another set; resume with the same")
        training = training_of(kept, options.settings)
        about["command"] = kept.about.get("command", command)
        if kept.about.get("reward", Reward.OBJECTIVE) != on.reward:
            training.history = {}  # of another kind of values
    else:
        training = new_training(new_policy(options.seed), options.settings, options.seed)
        if options.imitate:
            training.examples = list(_certified(on, options.plan_seconds, options.seed))
    end = None if options.seconds is None else time.monotonic() + options.seconds
    seed = kept.seed if resume else options.seed
    examples = [
        Example(on.environments[i], np.array(g), np.array(d), v) for i, g, d, v in training.examples
    ]
    try:
        with one_thread():
            while training.steps < options.steps and (end is None or time.monotonic() < end):
                update = _update(on, training, examples, options)
                if report is not None:
                    report(update)
                if training.steps % KEPT_EVERY == 0:
                    write_policy(output, training, seed, about, resumable=resumable)
    finally:
        write_policy(output, training, seed, about, resumable=resumable)
    return training


def _update(
    on: TrainingSet, training: TrainingRun, examples: Sequence[Example], options: LearnOptions
) -> Update:
    if training.steps < options.imitate and examples:
        loss = imitate_step(training, examples, options.settings.gradient_norm)
        return Update(training.steps, "imitation", "", float("nan"), float("nan"), loss)
    step = train_step(training, on.environments, options.settings)
    values = step.drawn.values
    name = on.tasks[step.environment].workload.name
    return Update(step.number, "ppo", name, float(values.mean()), float(values.min()), step.entropy)


def _certified(
    on: TrainingSet, seconds: float, seed: int
) -> Iterator[tuple[int, list[int], list[int], float]]:
    """Yield plans certified to be nearly optimal, in the form of `TrainingRun.examples`."""
    for number, (task, of) in enumerate(zip(on.tasks, on.environments, strict=True)):
        limits = Limits(seconds=seconds, gap=CERTIFIED / 3, seed=seed)
        result = solve(task.workload, task.cluster, task.problem, limits=limits)
        if result.plan is None or result.gap is None or result.gap > CERTIFIED:
            continue
        group, device = (
            of.observation.graph.restrict(of_nodes).tolist()
            for of_nodes in (_group_of(result.plan), result.plan.placement)
        )
        yield number, group, device, result.plan.objective / of.unit


def _group_of(plan: Plan) -> Ints:
    """Return the number of each node's device, or of its call; shape (n,)."""
    solution = plan.solution
    if isinstance(solution, CallPlacement):
        _, group = np.unique(
            np.stack((solution.device, solution.call)), axis=1, return_inverse=True
        )
        return np.asarray(group, np.int64).ravel()
    return plan.placement
