"""Predicted and measured timelines of a step: two Gantt charts, or a trace for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...instances import InputError
from ...instances.common.escape import plain
from ...instances.common.units import show_count, show_percent
from ...instances.model.schedule import COMPUTES
from ..pictures.gantt import LANE_IN, WIDTH_IN, add_legend, draw_lanes
from ..pictures.marks import MOST_BARS, Bar, Marks, marks_of, trace_events, track_events, what_of
from ..pictures.style import names_as_they_are, save_picture
from .comparison import Comparison

#: Process id of the measured step; the simulation's are 1 and 2.
MEASURED = 3


@names_as_they_are
def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the simulation and the typical step of the run into a PNG, SVG or PDF file.

    InputError if it has too many bars, or the ending is another.
    """
    predicted = marks_of(comparison.simulation, picture=True).in_unit("ms", 1e3 * comparison.scale)
    measured = measured_marks(comparison).in_unit("ms", 1e3)
    if len(measured.bars) > MOST_BARS:
        raise InputError(f"plot: {len(measured.bars)} actions in a step are too many to draw")
    heights = [LANE_IN * len(predicted.lanes), LANE_IN * len(measured.lanes)]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 2.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    end = max(predicted.span, measured.span)
    draw_lanes(above, predicted, end)
    draw_lanes(below, measured, end)
    above.set_xlim(0, end)
    above.set_title(
        f"predicted: {1e3 * comparison.predicted_iteration_s:.4g} ms", loc="left", fontsize=11
    )
    below.set_title(
        f"measured, step {comparison.typical_step + 1}; median of "
        f"{show_count(len(comparison.steps), 'step')}: "
        f"{1e3 * comparison.measured_iteration_s:.4g} ms; error of the prediction "
        f"{show_percent(comparison.error, signed=True)}",
        loc="left", fontsize=11,
    )  # fmt: skip
    below.set_xlabel("time (ms)")
    numbers = "stage·microbatch" if predicted.by_stage else "microbatch"
    add_legend(figure, (*predicted.bars, *measured.bars), numbers=numbers)
    save_picture(figure, path)


def measured_marks(comparison: Comparison) -> Marks:
    """Return marks of the typical step; lanes are the devices in use, times in seconds."""
    step = comparison.typical_step
    run = comparison.simulation
    lane = {d: i for i, d in enumerate(run.used)}
    begin = min(done.start_s for done in comparison.recording.done(step))
    found = []
    seen = set()
    for rank in comparison.recording.ranks:
        did = [done.action for done in rank.actions if done.action.kind in COMPUTES]
        if not did:
            continue
        ring = run.stages.replicas[did[0].stage]
        where = lane[ring[did[0].microbatch % len(ring)]]
        for done in rank.actions:
            action = done.action
            if done.step != step or (where, action) in seen:
                continue  # another device of the replica has run it, too
            seen.add((where, action))
            found.append(
                Bar(
                    where,
                    what_of(action.kind),
                    str(action),
                    done.start_s - begin,
                    done.end_s - begin,
                    action.stage,
                    action.microbatch,
                )
            )
    names = tuple(plain(run.stages.devices[d]) for d in run.used)
    span = max((bar.end for bar in found), default=0.0)
    found.sort(key=lambda bar: (bar.lane, bar.start))
    return Marks(names, len(names), tuple(found), span, "s")


def comparison_trace(comparison: Comparison) -> dict[str, Any]:
    """Return the simulation's trace with the typical measured step beside it, as a JSON object.

    Both begin at time 0.
    """
    trace = trace_events(comparison.simulation)
    events: list[dict[str, Any]] = trace["traceEvents"]
    for event in events:
        if event["name"] == "process_name" and event["args"]["name"] == "devices":
            event["args"]["name"] = "predicted"
    measured = measured_marks(comparison)
    name = f"measured, step {comparison.typical_step + 1}"  # as `run` counts them
    durations = {str(a): end - start for a, (_, start, end) in comparison.predicted.items()}
    for event in track_events(measured, 1e6, MEASURED, name):
        if event["name"] in durations:
            event["args"]["predicted_us"] = 1e6 * durations[event["name"]]
        events.append(event)
    trace["otherData"] |= {
        "predicted_iteration_s": comparison.predicted_iteration_s,
        "measured_iteration_s": comparison.measured_iteration_s,
        "steps": len(comparison.steps),
    }
    return trace
