"""A recorded run beside its prediction: errors by action or kind, and times calibrated by them.

A pipeline's actions are compared with those of its simulation one by one; a sharding's compute and
each kind of collective with the sums of its report. Calibration scales a workload's times by the
measured passes of each stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ...instances import (
    InputError,
    PipelinePlacement,
    Placement,
    Plan,
    Planned,
    Sharding,
    StagePlacement,
    TensorSharding,
    Workload,
    plan_of,
    program_of,
)
from ...instances.common.arrays import Floats
from ...instances.common.units import TIME_UNITS, UNSPECIFIED, show_count
from ...instances.model.costs import times_column
from ...instances.model.schedule import COMPUTES
from ..execution.chain import executed_stages
from ..execution.recording_file import RecordedAction, RecordedEvent, RunRecording, ShardedRecording
from ..pictures.marks import bars_of
from ..schedules import Schedule, at_the_end, schedule_of
from ..schedules.actions import Action, Kind
from ..simulate.network import Network
from ..simulate.plan_stages import usual_network
from ..simulate.result import Simulation
from ..simulate.simulator import simulate_stages
from ..simulate.stages import StageGraph
from ..verify.sharding import ShardingReport, check

#: Passes by the kinds of action that make them up.
_PASSES = ((Kind.F,), (Kind.B, Kind.I, Kind.W))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A recorded run beside its simulation; times in seconds, errors predicted / measured − 1."""

    simulation: Simulation  # of the plan, with the schedule and microbatches of the run
    recording: RunRecording
    steps: tuple[int, ...]  # steps that count; those before them warm up

    @cached_property
    def scale(self) -> float:
        """Seconds in the simulation's unit of time."""
        return TIME_UNITS[self.simulation.stages.time_unit]

    @cached_property
    def predicted(self) -> dict[Action, tuple[str, float, float]]:
        """Device, start and end in seconds of each computation, without transfers."""
        devices = self.simulation.used
        names = self.simulation.stages.devices
        return {
            Action(bar.stage, Kind[bar.what], bar.microbatch): (
                names[devices[bar.lane]], bar.start * self.scale, bar.end * self.scale,
            )
            for bar in bars_of(self.simulation)
            if bar.what in _NAMES
        }  # fmt: skip

    @cached_property
    def actions(self) -> pd.DataFrame:
        """One row per computation of a step.

        Columns: device, stage, kind, microbatch, predicted_s, measured_s (median over steps),
        spread (interquartile range of the measured, relative to it) and error.
        """
        seen: dict[Action, list[float]] = {action: [] for action in self.predicted}
        for done in self.computations():
            seen[done.action].append(done.end_s - done.start_s)
        rows = []
        for action, (device, start, end) in self.predicted.items():
            low, middle, high = np.quantile(seen[action], (0.25, 0.5, 0.75))
            spread = (high - low) / middle if middle else 0.0
            kind = action.kind.name
            rows.append(
                (device, action.stage, kind, action.microbatch, end - start, middle, spread)
            )
        columns = ["device", "stage", "kind", "microbatch", "predicted_s", "measured_s", "spread"]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.assign(error=_error(frame["predicted_s"], frame["measured_s"]))

    @cached_property
    def kinds(self) -> pd.DataFrame:
        """One row per stage and kind: predicted_s and measured_s (median), spread, error."""
        groups = self.actions.groupby(["stage", "kind"], sort=True)
        frame = groups[["predicted_s", "measured_s", "spread"]].median()
        return frame.assign(error=_error(frame["predicted_s"], frame["measured_s"])).reset_index()

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row per stage: device, seconds of a microbatch's passes, and error."""
        groups = self.kinds.groupby("stage", sort=True)
        frame = groups[["predicted_s", "measured_s"]].sum()
        device = self.actions.groupby("stage")["device"].first()
        frame.insert(0, "device", device)
        return frame.assign(error=_error(frame["predicted_s"], frame["measured_s"])).reset_index()

    @property
    def predicted_iteration_s(self) -> float:
        """Predicted time of a step, from the first computation to the last end."""
        return self.simulation.makespan * self.scale

    @cached_property
    def spans(self) -> dict[int, float]:
        """Seconds of each step, from its first start to its last end, without the optimizer."""
        found = {}
        for step in self.steps:
            own = [d for d in self.recording.done(step) if d.action.kind != Kind.STEP]
            found[step] = max(d.end_s for d in own) - min(d.start_s for d in own)
        return found

    @property
    def measured_iteration_s(self) -> float:
        """Median of `spans`."""
        return float(np.median(list(self.spans.values())))

    @cached_property
    def optimizer_s(self) -> float:
        """Median over the steps of the slowest rank's optimizer step; 0 if none was recorded."""
        slowest = []
        for step in self.steps:
            times = [
                sum(
                    done.end_s - done.start_s
                    for done in rank.actions
                    if done.step == step and done.action.kind == Kind.STEP
                )
                for rank in self.recording.ranks
            ]
            slowest.append(max(times))
        return float(np.median(slowest))

    @property
    def error(self) -> float:
        """Relative error of the time of a step, predicted / measured − 1."""
        return self.predicted_iteration_s / self.measured_iteration_s - 1

    @property
    def typical_step(self) -> int:
        """Number of the step whose time is nearest to the median."""
        middle = self.measured_iteration_s
        return min(self.spans, key=lambda step: abs(self.spans[step] - middle))

    def computations(self) -> Iterator[RecordedAction]:
        """Yield the computations of the steps that count."""
        counted = set(self.steps)
        for rank in self.recording.ranks:
            for done in rank.actions:
                if done.step in counted and done.action.kind in COMPUTES:
                    yield done


_NAMES = frozenset(kind.name for kind in COMPUTES)


def compare_run(
    workload: Workload,
    plan: Plan | Planned,
    recording: RunRecording,
    *,
    network: Network | None = None,
    weight_share: float | None = None,
    warm_up: int | None = None,
) -> Comparison:
    """Compare a recorded run with a simulation of its plan.

    Parameters
    ----------
    workload, plan
        Workload and plan that were run; or the `Result` that holds the plan.
    recording
        Recording of the run; see `load_recording`.
    network, weight_share
        Parameters of the simulation; see `simulate`.
    warm_up
        Number of steps at the beginning that do not count; default: 1, if there are more.

    Returns
    -------
    Comparison
        Errors by action, stage and step.

    Raises
    ------
    InputError
        If the recording is of another plan, its steps did other computations than the
        simulation's schedule has, or none is left after the warm-up.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.execution.recording_file import RankRecording, RecordedAction
    >>> from stagecut.runtime.execution.recording_file import RunRecording
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(1), method="single").plan
    >>> took_s = 2 * plan.objective / 1000  # twice as long as predicted
    >>> done = (RecordedAction(0, "0F0", 0.0, took_s),)
    >>> rank = RankRecording(0, "host", "cuda:0", done)
    >>> where = plan.placement.tolist()
    >>> recording = RunRecording(workload.fingerprint, where, "inference", 1, (rank,))
    >>> round(stagecut.runtime.compare_run(workload, plan, recording).error, 6)
    -0.5
    """
    plan = plan_of(plan)
    if not isinstance(plan.solution, Placement | PipelinePlacement | StagePlacement):
        raise InputError(
            f"report: the plan is for {plan.problem.name}; its recording is compared with nothing, "
            "and stagecut simulate shows what was planned"
        )
    if not np.array_equal(recording.placement, plan.placement):
        raise InputError(
            "recording: it is of another plan than the one given; record the run of this plan"
        )
    if workload.time_unit == UNSPECIFIED:
        raise InputError(
            f"{workload.name}: its time unit is not specified, so nothing measured can be "
            "compared with it; set its time_unit"
        )
    stages = executed_stages(workload, plan, weight_share=weight_share)
    schedule = _schedule(stages, recording)
    simulation = simulate_stages(stages, schedule, network=network or usual_network(plan))
    return join(simulation, recording, warm_up)


def join(simulation: Simulation, recording: RunRecording, warm_up: int | None = None) -> Comparison:
    """Compare a run with its simulation; see `compare_run`."""
    steps = recording.steps
    if warm_up is None:
        warm_up = min(1, len(steps) - 1)
    if not 0 <= warm_up < len(steps):
        raise InputError(f"warm-up: {warm_up}; it must be from 0 to {len(steps) - 1}")
    found = Comparison(simulation, recording, steps[warm_up:])
    _check(found)
    return found


def _schedule(stages: StageGraph, recording: RunRecording) -> Schedule:
    """Return the schedule that was run, in the order that was recorded."""
    rows: list[list[Action]] = [[] for _ in stages.devices]
    last = [done for done in recording.done(recording.steps[-1]) if done.action.kind in COMPUTES]
    seen = set()
    for done in sorted(last, key=lambda done: done.start_s):
        stage, _, m = done.action
        if stage >= stages.count:
            raise InputError(
                f"recording: {done.action}: the plan has stages 0 to {stages.count - 1}"
            )
        if done.action not in seen:  # else another replica of the pipeline has run it, too
            rows[stages.replicas[stage][m % len(stages.replicas[stage])]].append(done.action)
            seen.add(done.action)
    made = schedule_of(rows, name=recording.schedule, microbatches=recording.microbatches)
    return at_the_end(made, stages)


def _check(comparison: Comparison) -> None:
    """Raise InputError unless each step has the simulated actions."""
    wanted = set(comparison.predicted)
    for step in comparison.steps:
        did = {
            done.action for done in comparison.recording.done(step) if done.action.kind in COMPUTES
        }
        if did != wanted:
            first = min(did ^ wanted)
            who = "the run did not" if first in wanted else "the simulation does not"
            raise InputError(
                f"recording: step {step}: {who} do {first}; give the schedule that was run "
                f"({comparison.recording.schedule}), and whole steps"
            )


def _error(predicted: pd.Series[float], measured: pd.Series[float]) -> pd.Series[float]:
    """Return predicted / measured − 1; 0 where both are 0."""
    ratio = predicted / measured.where(measured > 0)
    return (ratio - 1).where(~((predicted == 0) & (measured == 0)), 0.0)


#: Key of a row: the kind of compute or the collective, the axis of the mesh (−1 for compute), and
#: whether it is inside an operator.
Key = tuple[str, int, bool]


@dataclass(frozen=True)
class Amount:
    """Number in a step, bytes sent over all devices, and seconds."""

    number: int = 0
    bytes: float = 0.0
    seconds: float = 0.0

    def plus(self, number: int, size: float, seconds: float) -> Amount:
        """Return the sum."""
        return Amount(self.number + number, self.bytes + size, self.seconds + seconds)


@dataclass(frozen=True, eq=False)
class ShardedComparison:
    """Sharded plan beside its recorded run."""

    # predicted, measured: of a step; measured is the median of the steps that count. A collective's
    # time is that of the device that came to it last, as the others waited meanwhile; compute is
    # the mean of the devices.
    predicted: dict[Key, Amount]
    measured: dict[Key, Amount]
    predicted_s: float  # predicted_s, measured_s: of a step; measured without the optimizer
    measured_s: float
    optimizer_s: float  # rest of a step: the optimizer, and reading the loss
    steps: int  # number of steps that count

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted_s / self.measured_s - 1


def compare_sharded_run(
    workload: Workload, plan: Plan, recording: ShardedRecording
) -> ShardedComparison:
    """Compare a recorded sharded run with its plan; the first step warms up.

    InputError if the recording is of another workload or mesh.
    """
    problem, solution = plan.problem, plan.solution
    if not isinstance(problem, Sharding) or not isinstance(solution, TensorSharding):
        raise InputError(f"recording: it is of a sharding, the plan is for {problem.name}")
    if recording.workload_fingerprint != workload.fingerprint:
        raise InputError("recording: it is of a run of another workload")
    if recording.mesh != problem.mesh.shape:
        raise InputError("recording: it is of a run on another mesh")
    report = check(workload, plan.cluster, problem, solution)
    predicted = _predicted(workload, report)
    steps = sorted({event.step for event in recording.ranks[0].events})
    counted = steps[1:] or steps
    each = [_measured(recording, step) for step in counted]
    measured = {
        key: Amount(
            each[0][key].number, each[0][key].bytes,
            float(np.median([one[key].seconds for one in each])),
        )
        for key in each[0]
    }  # fmt: skip
    spans = {step: _span(recording, step) for step in counted}
    whole = [recording.step_s[step] for step in counted if step < len(recording.step_s)]
    span = float(np.median(list(spans.values())))
    return ShardedComparison(
        predicted,
        measured,
        sum(amount.seconds for amount in predicted.values()),
        span,
        max(0.0, float(np.median(whole)) - span) if whole else 0.0,
        len(counted),
    )


def _predicted(workload: Workload, report: ShardingReport) -> dict[Key, Amount]:
    found: dict[Key, Amount] = defaultdict(Amount)
    unit = TIME_UNITS[workload.time_unit]
    program = program_of(workload)
    for operator, time, (size, seconds) in zip(
        program.operators, report.times, report.added, strict=True
    ):
        if operator.role == "operator":
            kind = "backward" if operator.backward else "forward"
            found[kind, -1, False] = found[kind, -1, False].plus(1, 0.0, time * unit - seconds)
        if size:
            found["statistics", 0, True] = found["statistics", 0, True].plus(1, size, seconds)
    for one in report.converted:
        for step in one.steps:
            if step.bytes:
                key = (step.collective, step.axis, False)
                found[key] = found[key].plus(1, step.bytes, step.seconds)
    return dict(found)


def _measured(recording: ShardedRecording, step: int) -> dict[Key, Amount]:
    own = [[event for event in rank.events if event.step == step] for rank in recording.ranks]
    found: dict[Key, Amount] = defaultdict(Amount)
    asked: set[tuple[str, int]] = set()
    computing: set[str] = set()
    for together in zip(*own, strict=True):
        event: RecordedEvent = together[0]
        seconds = [one.end_s - one.start_s for one in together]
        if event.axis < 0:
            key: Key = (event.kind, -1, False)
            number = int(event.name not in computing)  # one that exchanges computes in parts
            computing.add(event.name)
            found[key] = found[key].plus(number, 0.0, float(np.mean(seconds)))
            continue
        key = ("statistics", 0, True) if event.within else (event.kind, event.axis, False)
        number = 1 if not event.within else int((event.name, 0) not in asked)
        asked.add((event.name, 0))
        found[key] = found[key].plus(number, sum(one.bytes for one in together), min(seconds))
    return dict(found)


def _span(recording: ShardedRecording, step: int) -> float:
    events = [event for rank in recording.ranks for event in rank.events if event.step == step]
    return max(e.end_s for e in events) - min(e.start_s for e in events)


@dataclass(frozen=True, eq=False)
class WorkloadCalibration:
    """Workload with times corrected by a recorded run."""

    workload: Workload  # with the new times; plans for the old one are refused with it
    # one row per stage and pass: predicted_s, measured_s and the factor of its nodes' times, which
    # is infinite where they were 0: these then share the measured time
    factors: pd.DataFrame
    # share of the backward pass that computed gradients of weights; None if it was not split
    weight_share: float | None


def calibrate(
    workload: Workload, plan: Plan | Planned, comparison: Comparison, source: str
) -> WorkloadCalibration:
    """Return the workload with times scaled to each stage's measured passes.

    Operators of a pass keep their proportions. Only times on the kinds of device that ran them
    change.

    Parameters
    ----------
    workload, plan
        Workload and plan that were run; or the `Result` that holds the plan.
    comparison
        Comparison of the run and its simulation; see `compare_run`.
    source
        Name of the recording, for the provenance.

    Returns
    -------
    WorkloadCalibration
        The corrected workload, for which to plan again, and the factors.

    Raises
    ------
    InputError
        If the plan is for a stream, whose layers have times for each configuration.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.execution.recording_file import RankRecording, RecordedAction
    >>> from stagecut.runtime.execution.recording_file import RunRecording
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(1), method="single").plan
    >>> took_s = 2 * plan.objective / 1000  # twice as long as predicted
    >>> done = (RecordedAction(0, "0F0", 0.0, took_s),)
    >>> rank = RankRecording(0, "host", "cuda:0", done)
    >>> where = plan.placement.tolist()
    >>> recording = RunRecording(workload.fingerprint, where, "inference", 1, (rank,))
    >>> comparison = stagecut.runtime.compare_run(workload, plan, recording)
    >>> factors = stagecut.runtime.calibrate(workload, plan, comparison, "run.json").factors
    >>> factors["factor"].round(6).tolist()
    [2.0]
    """
    plan = plan_of(plan)
    if isinstance(plan.solution, StagePlacement):
        raise InputError(
            "calibrate: a training plan's run times a configuration of each layer alone; profile "
            "again without --estimate"
        )
    stages = comparison.simulation.stages
    table = comparison.kinds
    keys = zip(table["stage"].tolist(), table["kind"].tolist(), strict=True)
    kinds = dict(zip(keys, table["measured_s"].tolist(), strict=True))
    times = {name: values.copy() for name, values in workload.times.items()}
    rows = []
    for s, passes in enumerate(stages.nodes):
        for side, nodes in enumerate(passes):
            parts = [kinds[s, kind.name] for kind in _PASSES[side] if (s, kind.name) in kinds]
            if not parts:
                continue
            measured = float(sum(parts))
            predicted = float(stages.compute[s, side]) * comparison.scale
            _spread(workload, plan, times, list(nodes), predicted, measured, comparison.scale)
            factor = measured / predicted if predicted else np.inf
            rows.append((s, "forward" if side == 0 else "backward", predicted, measured, factor))
    factors = pd.DataFrame(rows, columns=["stage", "pass", "predicted_s", "measured_s", "factor"])
    said = factors["factor"][np.isfinite(factors["factor"])]
    words = (
        f"{show_count(len(comparison.steps), 'step')} of {source}, "
        f"{comparison.recording.schedule}; times of stages × {said.min():.3f} to {said.max():.3f}"
    )
    made = replace(workload, times=times, provenance={**workload.provenance, "calibrated": words})
    return WorkloadCalibration(made, factors, _weight_share(kinds))


def _spread(
    workload: Workload,
    plan: Plan,
    times: dict[str, Floats],
    nodes: list[int],
    predicted: float,
    measured: float,
    scale: float,
) -> None:
    """Scale the times of a pass's nodes, all on one device, to the measured sum."""
    kind = plan.cluster.kinds[plan.cluster.devices[int(plan.placement[nodes[0]])].kind]
    column = times[times_column(workload, kind)]
    if predicted > 0:
        column[nodes] *= measured / predicted
    else:
        column[nodes] = measured / scale / kind.slowdown / len(nodes)


def _weight_share(kinds: dict[tuple[int, str], float]) -> float | None:
    weights = sum(value for (_, kind), value in kinds.items() if kind == "W")
    inputs = sum(value for (_, kind), value in kinds.items() if kind == "I")
    return weights / (weights + inputs) if weights + inputs else None


def predicted_after(
    calibration: WorkloadCalibration, plan: Plan, comparison: Comparison
) -> Comparison:
    """Return the comparison of the same run with the corrected workload."""
    run = comparison.simulation
    made_for = replace(plan, workload_fingerprint=calibration.workload.fingerprint)
    share = calibration.weight_share
    share = run.stages.weight_share if share is None else share
    stages = executed_stages(calibration.workload, made_for, weight_share=share)
    again = simulate_stages(stages, run.schedule, network=run.network)
    return Comparison(again, comparison.recording, comparison.steps)
