"""Traces in the Chrome JSON format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...instances import InputError
from ...instances.common.units import TIME_UNITS, UNSPECIFIED
from ..schedules.actions import Action, Kind
from ..simulate.result import Simulation
from .timeline import COLOURS, boxes, lanes, memory_steps, rows

DEVICES, LINKS = 1, 2  # process ids

#: Most actions of a trace: its file has some 500 bytes for each.
MOST_TRACED = 500_000


def trace_events(simulation: Simulation) -> dict[str, Any]:
    """Return the trace as a JSON object.

    A track per device and per link; a slice per action with its reception, computation and
    sending inside; arrows from where data is produced to where it is used; counters of memory.
    Times are in microseconds; a workload without a time unit counts as if in milliseconds.

    Raises
    ------
    InputError
        If there is more than a viewer loads.
    """
    if simulation.schedule.size > MOST_TRACED:
        raise InputError(
            f"trace: {simulation.schedule.size} actions are too many (most: {MOST_TRACED}); "
            "simulate fewer microbatches"
        )
    unit = simulation.stages.time_unit
    scale = 1e6 * TIME_UNITS["ms" if unit == UNSPECIFIED else unit]
    names = lanes(simulation)
    devices = len(simulation.used)
    events: list[dict[str, Any]] = []
    for process, name in ((DEVICES, "devices"), (LINKS, "links")):
        if process == DEVICES or len(names) > devices:
            events.append(_named("process_name", process, 0, name))
    for lane, name in enumerate(names):
        process = DEVICES if lane < devices else LINKS
        events.append(_named("thread_name", process, lane, name))
        events.append(
            {
                "ph": "M", "name": "thread_sort_index", "pid": process, "tid": lane,
                "args": {"sort_index": lane},
            }
        )  # fmt: skip
    for lane, d in enumerate(simulation.used):
        rows = simulation.schedule.actions[d].tolist()
        times = zip(rows, simulation.starts[d].tolist(), simulation.ends[d].tolist(), strict=True)
        for (stage, kind, m), start, end in times:
            action = Action(stage, Kind(kind), m)
            events.append(
                {
                    "ph": "X", "name": str(action), "cat": Kind(kind).name, "pid": DEVICES,
                    "tid": lane, "ts": start * scale, "dur": (end - start) * scale,
                    "args": {"stage": stage, "microbatch": m},
                }
            )  # fmt: skip
    whole = {"F", "B", "I", "W", "reduce", "step"}
    inline = {2 * s + p for s, p in np.argwhere(simulation.program.inputs.reshape(-1, 2, 2).any(2))}
    tracks = _link_tracks(simulation, names, events)
    for number, box in enumerate(boxes(simulation)):
        process = DEVICES if box.lane < devices else LINKS
        task = 2 * box.stage + (box.what != "F")
        if process == DEVICES and box.what in whole and task not in inline:
            continue  # the slice above says it all
        name = box.whole if process == LINKS else COLOURS[box.what][1]
        events.append(
            {
                "ph": "X", "name": name, "cat": box.what, "pid": process,
                "tid": tracks.get(number, box.lane),
                "ts": box.start * scale, "dur": (box.end - box.start) * scale,
                "args": {"stage": box.stage, "microbatch": box.microbatch},
            }
        )  # fmt: skip
    events += _flows(simulation, scale)
    for d in simulation.used:
        for time, size in zip(*memory_steps(simulation, d), strict=True):
            events.append(
                {
                    "ph": "C", "name": f"memory of {simulation.stages.devices[d]}",
                    "pid": DEVICES, "ts": time * scale, "args": {"bytes": size},
                }
            )  # fmt: skip
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": simulation.schedule.name,
            "microbatches": simulation.schedule.microbatches,
            "time_unit": unit,
            "makespan": simulation.makespan,
            "time_per_sample": simulation.time_per_sample,
        },
    }


def _link_tracks(
    simulation: Simulation, names: list[str], events: list[dict[str, Any]]
) -> dict[int, int]:
    """Return the track of each box on a link: messages that share it overlap, and tracks cannot.

    Adds the names of further tracks to the events.
    """
    found = list(boxes(simulation))
    track: dict[tuple[int, int], int] = {}
    tracks: dict[int, int] = {}
    for number, (box, row) in enumerate(zip(found, rows(found), strict=True)):
        if box.lane < len(simulation.used):
            continue
        if row and (box.lane, row) not in track:
            track[box.lane, row] = len(names) + len(track)
            name = f"{names[box.lane]} ({row + 1})"
            events.append(_named("thread_name", LINKS, track[box.lane, row], name))
        tracks[number] = track.get((box.lane, row), box.lane)
    return tracks


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _flows(simulation: Simulation, scale: float) -> list[dict[str, Any]]:
    """Arrows between devices: a flow begins inside the producer's slice, ends in the consumer's."""
    stages = simulation.stages
    where: dict[tuple[int, int], tuple[int, float, float]] = {}
    for lane, d in enumerate(simulation.used):
        rows = simulation.schedule.actions[d].tolist()
        times = zip(rows, simulation.starts[d].tolist(), simulation.ends[d].tolist(), strict=True)
        for (stage, kind, m), start, end in times:
            if kind in (Kind.F, Kind.B, Kind.I) and end > start:
                where[2 * stage + (kind != Kind.F), m] = (lane, start, end)
    events = []
    number = 0
    for a, b in stages.edges.tolist():
        for m in range(simulation.schedule.microbatches):
            if (a, m) not in where or (b, m) not in where or where[a, m][0] == where[b, m][0]:
                continue
            number += 1
            (source, begin, end), (target, start, finish) = where[a, m], where[b, m]
            shared = {"name": "data", "cat": "data", "id": number, "pid": DEVICES}
            leave, arrive = begin + 0.99 * (end - begin), start + 0.01 * (finish - start)
            events.append({"ph": "s", "tid": source, "ts": leave * scale, **shared})
            events.append({"ph": "f", "bp": "e", "tid": target, "ts": arrive * scale, **shared})
    return events
