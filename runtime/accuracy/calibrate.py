"""Calibration of a workload's times by a recorded run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...instances import InputError, Plan, Planned, StagePlacement, Workload, plan_of
from ...instances.common.arrays import Floats
from ...instances.common.quantities import show_count
from ...instances.model.costs import times_column
from ..execution.chain import executed_stages
from ..schedules.actions import Kind
from ..simulate.simulator import simulate_stages
from .join import Comparison

#: Passes by the kinds of action that make them up.
_PASSES = ((Kind.F,), (Kind.B, Kind.I, Kind.W))


@dataclass(frozen=True, eq=False)
class WorkloadCalibration:
    """A corrected workload."""

    # with the new times; plans for the old one are refused against it: plan again
    workload: Workload
    # one row per stage and pass: predicted_s, measured_s and factor, which the times of its nodes
    # were multiplied by (infinite where they were 0: then they share what was measured)
    factors: pd.DataFrame
    # part of the backward pass that computed gradients of weights; None if it was not split
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
        What was run; or the `Result` that holds the plan.
    comparison
        Of the run and its simulation; see `compare_run`.
    source
        What the recording is called; kept in the provenance.

    Returns
    -------
    Calibration
        The corrected workload, for which to plan again, and the factors.

    Raises
    ------
    InputError
        If it is a run of a training plan, whose layers have times for each configuration.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.execution.recording_file import Done, RankRecording, RunRecording
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(1), method="single").plan
    >>> took_s = 2 * plan.objective / 1000  # twice as long as predicted
    >>> done = (Done(0, "0F0", 0.0, took_s),)
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
    """Scale times of a pass's nodes, all on one device, to the measured sum."""
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
