"""Comparison of a recorded sharded run with its plan: compute, and each kind of collective."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ...instances import InputError, Plan, Sharding, TensorSharding, Workload, program_of
from ...instances.common.units import TIME_UNITS
from ..execution.sharded.recording import RecordedEvent, ShardedRecording
from ..verify.sharding import ShardingReport, check

#: What a row is of: what is done, the axis of the mesh (−1 for computing), and whether operators
#: ask for it themselves.
Key = tuple[str, int, bool]


@dataclass(frozen=True)
class Amount:
    """Count in a step, bytes sent by all devices, and seconds."""

    number: int = 0
    bytes: float = 0.0
    seconds: float = 0.0

    def plus(self, number: int, size: float, seconds: float) -> Amount:
        """Return the sum."""
        return Amount(self.number + number, self.bytes + size, self.seconds + seconds)


@dataclass(frozen=True, eq=False)
class ShardedComparison:
    """Sharded plan beside its recorded run."""

    # predicted, measured: in a step; measured is the median of the steps that count. A collective
    # takes as long as for the device that came to it last: the others waited meanwhile. Computing
    # is the mean of the devices.
    predicted: dict[Key, Amount]
    measured: dict[Key, Amount]
    predicted_s: float  # predicted_s, measured_s: of a step; measured without the optimizer
    measured_s: float
    optimizer_s: float  # what a step takes besides: the optimizer, and the loss that is shown
    steps: int  # that count

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
