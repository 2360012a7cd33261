"""A trace for Perfetto with both rows: what was predicted, and what was measured."""

from __future__ import annotations

from typing import Any

from ..pictures.trace import trace_events, track_events
from .join import Comparison
from .measured_marks import measured_marks

#: Process id of what was measured; the simulation's are 1 and 2.
MEASURED = 3


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
    name = f"measured, step {comparison.typical_step}"
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
