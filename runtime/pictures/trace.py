"""Marks as a trace in the Chrome JSON format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...instances import InputError
from ...instances.common.units import TIME_UNITS, UNSPECIFIED
from ..simulate.result import Simulation
from .marks import Arrow, Bar, Marks, marks_of, rows
from .style import COLOURS

DEVICES, LINKS = 1, 2  # process ids

#: Most actions of a trace: its file has some 500 bytes for each.
MOST_TRACED = 500_000


def trace_events(simulation: Simulation) -> dict[str, Any]:
    """Return the trace of a simulation as a JSON object; InputError beyond what a viewer loads."""
    if simulation.schedule.size > MOST_TRACED:
        raise InputError(
            f"trace: {simulation.schedule.size} actions are too many (most: {MOST_TRACED}); "
            "simulate fewer microbatches"
        )
    about = {
        "schedule": simulation.schedule.name,
        "microbatches": simulation.schedule.microbatches,
        "time_per_sample": simulation.time_per_sample,
    }
    return trace_of(marks_of(simulation), about)


def trace_of(marks: Marks, about: dict[str, Any]) -> dict[str, Any]:
    """Return marks as a JSON object, with what else there is to say about the whole.

    A track per device and per link; a slice per action with its reception, computation and sending
    inside; arrows from where data is produced to where it is used; counters of memory. Times are in
    microseconds; a workload without a time unit counts as if in milliseconds.
    """
    unit = marks.time_unit
    scale = 1e6 * TIME_UNITS["ms" if unit == UNSPECIFIED else unit]
    events = track_events(marks, scale, DEVICES, "devices")
    events += _link_events(marks, scale)
    for number, arrow in enumerate(marks.arrows, 1):
        events += _flow(arrow, number, scale)
    for level in marks.memory:
        for time, size in zip(level.times, level.sizes, strict=True):
            events.append(
                {
                    "ph": "C", "name": f"memory of {level.name}", "pid": DEVICES,
                    "ts": time * scale, "args": {"bytes": size},
                }
            )  # fmt: skip
    other = {"time_unit": unit, "makespan": marks.span} | about
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def track_events(marks: Marks, scale: float, process: int, name: str) -> list[dict[str, Any]]:
    """Return the tracks of the devices as one process of a trace.

    `scale` is the microseconds in the marks' unit of time.
    """
    events = _named(process, name, marks.lanes[: marks.devices])
    for parts in _actions(bar for bar in marks.bars if bar.lane < marks.devices):
        main = max(parts, key=lambda bar: bar.what in "FBIW")
        whole = main._replace(start=parts[0].start, end=parts[-1].end)
        events.append(_slice(whole, whole.whole, process, whole.lane, scale))
        for bar in parts if len(parts) > 1 else ():
            events.append(_slice(bar, COLOURS[bar.what][1], process, bar.lane, scale))
    return events


def _actions(bars: Iterable[Bar]) -> Iterator[list[Bar]]:
    """Yield the parts of one action after the other: they follow each other without a break."""
    parts: list[Bar] = []
    for bar in bars:
        if parts and (parts[-1].lane, parts[-1].whole, parts[-1].end) != (
            bar.lane, bar.whole, bar.start,
        ):  # fmt: skip
            yield parts
            parts = []
        parts.append(bar)
    if parts:
        yield parts


def _link_events(marks: Marks, scale: float) -> list[dict[str, Any]]:
    """Return the tracks of links: messages that share one overlap, which takes more tracks."""
    found = tuple(bar for bar in marks.bars if bar.lane >= marks.devices)
    if not found:
        return []
    places = sorted({(bar.lane, row) for bar, row in zip(found, rows(found), strict=True)})
    track = {place: number for number, place in enumerate(places)}
    names = [
        f"{marks.lanes[lane]} ({row + 1})" if row else marks.lanes[lane] for lane, row in places
    ]
    events = _named(LINKS, "links", names)
    for bar, row in zip(found, rows(found), strict=True):
        events.append(_slice(bar, bar.whole, LINKS, track[bar.lane, row], scale))
    return events


def _named(process: int, name: str, tracks: Iterable[str]) -> list[dict[str, Any]]:
    """Return the names of a process and its tracks, in their order."""

    def said(what: str, track: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": process, "tid": track, "args": args}

    events = [said("process_name", 0, name=name)]
    for track, text in enumerate(tracks):
        events.append(said("thread_name", track, name=text))
        events.append(said("thread_sort_index", track, sort_index=track))
    return events


def _slice(bar: Bar, name: str, process: int, track: int, scale: float) -> dict[str, Any]:
    """Return a bar as a slice, with what is known of it."""
    known = {"stage": bar.stage, "microbatch": bar.microbatch, "bytes": bar.bytes}
    args = {key: value for key, value in known.items() if value != (0.0 if key == "bytes" else -1)}
    if bar.critical:
        args["critical"] = True
    return {
        "ph": "X", "name": name, "cat": COLOURS[bar.what][1], "pid": process, "tid": track,
        "ts": bar.start * scale, "dur": (bar.end - bar.start) * scale, "args": args,
    }  # fmt: skip


def _flow(arrow: Arrow, number: int, scale: float) -> list[dict[str, Any]]:
    """Return an arrow: it begins inside the producer's slice and ends inside the consumer's."""
    shared = {"name": "data", "cat": "data", "id": number, "pid": DEVICES}
    leave = arrow.begin + 0.99 * (arrow.end - arrow.begin)
    arrive = arrow.start + 0.01 * (arrow.finish - arrow.start)
    return [
        {"ph": "s", "tid": arrow.source, "ts": leave * scale, **shared},
        {"ph": "f", "bp": "e", "tid": arrow.target, "ts": arrive * scale, **shared},
    ]
