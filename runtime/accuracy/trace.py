"""A trace for Perfetto with both rows: what was predicted, and what was measured."""

from __future__ import annotations

from typing import Any

from ..pictures.timeline import COLOURS
from ..pictures.trace import trace_events
from .join import Comparison
from .measured_boxes import measured_boxes

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
    run = comparison.simulation
    step = comparison.typical_step

    def named(what: str, lane: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": MEASURED, "tid": lane, "args": {"name": name}}

    events.append(named("process_name", 0, f"measured, step {step}"))
    for lane, d in enumerate(run.used):
        events.append(named("thread_name", lane, run.stages.devices[d]))
    durations = {str(a): end - start for a, (_, start, end) in comparison.predicted.items()}
    for box in measured_boxes(comparison):
        arguments: dict[str, Any] = {"stage": box.stage, "microbatch": box.microbatch}
        if box.whole in durations:
            arguments["predicted_us"] = 1e6 * durations[box.whole]
        events.append(
            {
                "ph": "X", "name": box.whole, "cat": COLOURS[box.what][1], "pid": MEASURED,
                "tid": box.lane, "ts": 1e6 * box.start, "dur": 1e6 * (box.end - box.start),
                "args": arguments,
            }
        )  # fmt: skip
    trace["otherData"] |= {
        "predicted_iteration_s": comparison.predicted_iteration_s,
        "measured_iteration_s": comparison.measured_iteration_s,
        "steps": len(comparison.steps),
    }
    return trace
