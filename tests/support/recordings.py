"""Recordings of runs that take exactly what a simulation says, or nearly."""

from __future__ import annotations

import numpy as np

from stagecut import Plan
from stagecut.instances.common.units import TIME_UNITS
from stagecut.runtime.execution.recording_file import RankRecording, RecordedAction, RunRecording
from stagecut.runtime.pictures.marks import bars_of
from stagecut.runtime.schedules.actions import Action, Kind
from stagecut.runtime.simulate.result import Simulation


def recording_of(
    simulation: Simulation,
    plan: Plan,
    steps: int = 3,
    *,
    noise: float = 0.0,
    warm_up: float = 1.0,
    optimizer_s: float = 0.0,
) -> RunRecording:
    """Return the recording of a run that takes what `simulation` says.

    Parameters
    ----------
    noise
        Standard deviation of the logarithm of each action's length.
    warm_up
        The first step is so many times as long.
    optimizer_s
        Of a step's end.
    """
    rng = np.random.default_rng(0)
    scale = TIME_UNITS[simulation.stages.time_unit]
    rows: list[list[RecordedAction]] = [[] for _ in simulation.used]
    for step in range(steps):
        longer = scale * (warm_up if step == 0 else 1.0)
        begin = 100.0 + 1000.0 * step * simulation.makespan * scale
        for bar in bars_of(simulation):
            if bar.lane < len(rows) and bar.what in "FBIW":
                start = float(begin + longer * bar.start)
                length = float(longer * (bar.end - bar.start) * np.exp(noise * rng.normal()))
                action = Action(bar.stage, Kind[bar.what], bar.microbatch)
                rows[bar.lane].append(RecordedAction(step, str(action), start, start + length))
        for row in rows if optimizer_s else ():
            end = row[-1].end_s
            action = Action(row[0].action.stage, Kind.STEP)
            row.append(RecordedAction(step, str(action), end, end + optimizer_s))
    ranks = tuple(
        RankRecording(r, "host", "cpu", tuple(sorted(row, key=lambda done: done.start_s)))
        for r, row in enumerate(rows)
    )
    return RunRecording(
        plan.workload_fingerprint,
        plan.placement.tolist(),
        simulation.schedule.name,
        simulation.schedule.microbatches,
        ranks,
    )
