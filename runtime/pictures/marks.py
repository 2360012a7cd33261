"""Timelines: bars, arrows and lines of memory, as a trace for Perfetto or a page to zoom into.

All timelines are drawn from these *marks*, made here from a simulation or a sharding, and in
`runtime.accuracy.chart` from a recorded run. `gantt` draws them as a picture (SVG, PNG, PDF).
Traces are in the Chrome JSON format, for Perfetto (ui.perfetto.dev) and chrome://tracing; a page is
one HTML file that needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...instances import InputError
from ...instances.common.escape import markup, plain, script
from ...instances.common.units import (
    TIME_UNITS,
    UNSPECIFIED,
    show_bytes,
    show_count,
    show_percent,
    show_time,
)
from ..schedules.actions import Action, Kind
from ..simulate.result import Simulation
from ..simulate.sharded import ShardedTimeline
from .style import COLLECTIVES, COLOURS, line_of

#: Most bars of a picture.
MOST_BARS = 60_000
#: Most links of a picture; of more, those with most work are drawn.
MOST_LINKS = 16
#: Most devices of a picture; of more, the first replica of each stage is drawn.
MOST_DEVICES = 64
#: Most steps of a critical path that are marked; of more, the last ones.
MOST_STEPS = 20_000
DEVICES, LINKS = 1, 2  # process ids
#: Most actions of a trace: its file has some 500 bytes for each.
MOST_TRACED = 500_000
#: Template of the page; names between @ signs are filled in.
PAGE = Path(__file__).with_name("simulation_page.html")


class Bar(NamedTuple):
    """Bar of a timeline: an action, a part of one, or a message, on a lane."""

    lane: int  # number of the lane
    what: str  # a key of a palette: F, B, send, all-gather, …
    whole: str  # action that it is a part of, such as ``0F3``
    start: float  # start, end: in the marks' unit of time
    end: float
    stage: int = -1  # stage, microbatch: −1 if there is none
    microbatch: int = -1
    bytes: float = 0.0  # sent, where they are known
    critical: bool = False  # whether it is on the critical path


class Arrow(NamedTuple):
    """Data from an action on one lane to an action on another, by their times."""

    source: int
    begin: float
    end: float
    target: int
    start: float
    finish: float


class Level(NamedTuple):
    """Memory of a device over time: bytes from each time on."""

    name: str
    times: list[float]
    sizes: list[float]


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks of a timeline's picture: bars, arrows and memory, by lane."""

    lanes: tuple[str, ...]  # names: devices first, then links
    devices: int  # number of lanes that are devices
    bars: tuple[Bar, ...]  # in order of time on each lane of a device
    span: float  # end of the timeline
    time_unit: str  # ``unspecified`` if the workload names none
    arrows: tuple[Arrow, ...] = ()  # between devices
    memory: tuple[Level, ...] = ()  # of each device, where it is known

    @cached_property
    def by_stage(self) -> bool:
        """Whether a device has several stages, so that labels must name the stage."""
        pairs = {(bar.lane, bar.stage) for bar in self.bars if bar.what in "FBIW"}
        return len(pairs) > len({lane for lane, _ in pairs})

    def label(self, bar: Bar) -> str:
        """Return a bar's label: microbatch, and stage where needed; empty for other bars."""
        if bar.what not in ("F", "B", "I", "W", "message") or bar.microbatch < 0:
            return ""
        return f"{bar.stage}·{bar.microbatch}" if self.by_stage else str(bar.microbatch)

    def in_unit(self, time_unit: str, scale: float) -> Marks:
        """Return the bars and the span in another unit of time, without arrows and memory."""
        bars = tuple(b._replace(start=b.start * scale, end=b.end * scale) for b in self.bars)
        span = self.span * scale
        return replace(self, bars=bars, span=span, time_unit=time_unit, arrows=(), memory=())


def marks_of(simulation: Simulation, *, picture: bool = False) -> Marks:
    """Return the marks of a simulation; of a `picture`, only as many lanes as fit.

    InputError if a picture would have too many bars.
    """
    devices = drawn(simulation) if picture else simulation.used
    bars = tuple(bars_of(simulation, picture=picture))
    if picture and len(bars) > MOST_BARS:
        raise InputError(
            f"plot: {len(bars)} bars are too many to draw (most: {MOST_BARS}); "
            "simulate fewer microbatches, or write a trace instead"
        )
    names = _lanes(simulation, devices, picture=picture)
    return Marks(
        lanes=tuple(names),
        devices=len(devices),
        bars=tuple(_with_path(simulation, names, len(devices), bars)),
        span=simulation.makespan,
        time_unit=simulation.stages.time_unit,
        arrows=tuple(_arrows(simulation, devices)),
        memory=tuple(
            Level(plain(simulation.stages.devices[d]), *memory_steps(simulation, d))
            for d in devices
        ),
    )


def drawn(simulation: Simulation) -> list[int]:
    """Return the devices that a picture shows."""
    used = simulation.used
    if len(used) <= MOST_DEVICES:
        return used
    first = {ring[0] for ring in simulation.stages.replicas}
    return [d for d in used if d in first]


def _lanes(simulation: Simulation, devices: list[int], *, picture: bool) -> list[str]:
    """Return the names of the lanes: devices with actions, then links that are busy."""
    links = simulation.link_load
    links = links[links["busy"] > 0]  # transfers take hosts no time
    if picture and len(links) > MOST_LINKS:
        links = links.nlargest(MOST_LINKS, "busy")
    return [
        plain(name) for name in [*(simulation.stages.devices[d] for d in devices), *links.index]
    ]


def bars_of(simulation: Simulation, *, picture: bool = False) -> Iterator[Bar]:
    """Yield the bars device by device, in order, with transfers within an action apart."""
    schedule, ends = simulation.schedule, simulation.program.inputs
    devices = drawn(simulation) if picture else simulation.used
    for lane, d in enumerate(devices):
        starts, finishes = simulation.starts[d].tolist(), simulation.ends[d].tolist()
        actions = schedule.actions[d].tolist()
        for (stage, number, m), start, end in zip(actions, starts, finishes, strict=True):
            kind = Kind(number)
            whole = str(Action(stage, kind, m))
            if kind in (Kind.F, Kind.B, Kind.I):
                receive, send = ends[2 * stage + (kind != Kind.F)].tolist()
                middle, late = min(start + receive, end), max(start, end - send)
                if receive > 0:
                    yield Bar(lane, "receive", whole, start, middle, stage, m)
                yield Bar(lane, kind.name, whole, middle, late, stage, m)
                if send > 0:
                    yield Bar(lane, "send", whole, late, end, stage, m)
            else:
                yield Bar(lane, what_of(kind), whole, start, end, stage, m)
    row = {name: i for i, name in enumerate(_lanes(simulation, devices, picture=picture))}
    for x, m, name, start, end in simulation.jobs():
        if plain(name) in row:
            stage = int(simulation.program.jobs.source[x])
            yield Bar(row[plain(name)], "message", simulation.job_name(x), start, end, stage, m)


def what_of(kind: Kind) -> str:
    """Return the key of an action's colour."""
    if kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        return kind.name
    return "reduce" if kind == Kind.REDUCE_GRAD else "step"


def _with_path(
    simulation: Simulation, names: list[str], devices: int, bars: tuple[Bar, ...]
) -> Iterator[Bar]:
    """Yield the bars, those of the critical path marked."""
    steps = simulation.critical_path()[-MOST_STEPS:]
    actions = {(plain(step.where), step.what) for step in steps}
    messages = {step.what for step in steps}
    for bar in bars:
        if bar.lane < devices:
            yield bar._replace(critical=(names[bar.lane], bar.whole) in actions)
        else:
            yield bar._replace(critical=f"{bar.whole}, microbatch {bar.microbatch}" in messages)


def _arrows(simulation: Simulation, devices: list[int]) -> Iterator[Arrow]:
    """Yield arrows from the actions that produce data to those that use it on other devices."""
    where: dict[tuple[int, int], tuple[int, float, float]] = {}
    for lane, d in enumerate(devices):
        actions = simulation.schedule.actions[d].tolist()
        times = (simulation.starts[d].tolist(), simulation.ends[d].tolist())
        for (stage, kind, m), start, end in zip(actions, *times, strict=True):
            if kind in (Kind.F, Kind.B, Kind.I) and end > start:
                where[2 * stage + (kind != Kind.F), m] = (lane, start, end)
    for a, b in simulation.stages.edges.tolist():
        for m in range(simulation.schedule.microbatches):
            if (a, m) in where and (b, m) in where and where[a, m][0] != where[b, m][0]:
                yield Arrow(*where[a, m], *where[b, m])


def memory_steps(simulation: Simulation, device: int) -> tuple[list[float], list[float]]:
    """Return times and bytes of a device's memory, one pair per change, from time 0 on."""
    memory = simulation.memory[device]
    base = memory.weights + memory.versions
    if not len(memory.times):
        return [0.0], [base]
    last = np.append(memory.times[1:] != memory.times[:-1], True)  # several changes at one time
    times, sizes = memory.times[last].tolist(), (base + memory.activations[last]).tolist()
    if times[0] > 0:
        return [0.0, *times], [base, *sizes]
    return times, sizes


def rows(bars: tuple[Bar, ...]) -> list[int]:
    """Return the row of each bar in its lane, such that no two of a row overlap in time."""
    row = [0] * len(bars)
    until: dict[int, list[float]] = {}
    for i in sorted(range(len(bars)), key=lambda i: (bars[i].lane, bars[i].start)):
        ends = until.setdefault(bars[i].lane, [])
        free = [r for r, end in enumerate(ends) if end <= bars[i].start * (1 + 1e-12)]
        row[i] = free[0] if free else len(ends)
        ends[row[i] : row[i] + 1] = [bars[i].end]
    return row


def bands(bars: tuple[Bar, ...]) -> list[tuple[float, float]]:
    """Return top and bottom of each bar, from the middle of its lane; a lane is 1 high."""
    row = rows(bars)
    number: dict[int, int] = {}
    for bar, r in zip(bars, row, strict=True):
        number[bar.lane] = max(r + 1, number.get(bar.lane, 0))
    result = []
    for bar, r in zip(bars, row, strict=True):
        height = 0.84 / number[bar.lane]
        result.append((r * height - 0.42, (r + 1) * height - 0.42))
    return result


def sharded_marks(timeline: ShardedTimeline) -> Marks:
    """Return the marks of a sharding: lanes for compute and for each axis of the mesh.

    Each group of devices that works in parallel with others has lanes of its own.
    """
    lanes = ("compute", *(f"axis {d}: {p}" for d, p in enumerate(timeline.mesh)))
    several = timeline.groups > 1
    return Marks(
        lanes=tuple(
            f"group {j} {lane}" if several else lane
            for j in range(timeline.groups)
            for lane in lanes
        ),
        devices=timeline.groups * len(lanes),
        bars=tuple(
            Bar(
                j * len(lanes) + e.axis + 1,
                e.kind if e.kind in COLLECTIVES else "rooted",
                plain(e.name),
                e.start,
                e.end,
                bytes=e.bytes,
            )
            for e in sorted(timeline.events, key=lambda e: (e.axis, e.start))
            for j in (range(timeline.groups) if e.group is None else (e.group,))
        ),
        span=timeline.makespan,
        time_unit=timeline.time_unit,
    )


def trace_events(simulation: Simulation) -> dict[str, Any]:
    """Return the trace of a simulation as a JSON object; InputError if it has too many events."""
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
    """Return marks as a trace, a JSON object, with facts about the run.

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
    """Yield the bars of each action: consecutive parts of it without a gap."""
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
    """Return the tracks of links, several for a link whose messages overlap."""
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
    """Return a bar as a slice, with its stage, microbatch and bytes."""
    known = {"stage": bar.stage, "microbatch": bar.microbatch, "bytes": bar.bytes}
    args = {key: value for key, value in known.items() if value != (0.0 if key == "bytes" else -1)}
    if bar.critical:
        args["critical"] = True
    return {
        "ph": "X", "name": name, "cat": COLOURS[bar.what][1], "pid": process, "tid": track,
        "ts": bar.start * scale, "dur": (bar.end - bar.start) * scale, "args": args,
    }  # fmt: skip


def _flow(arrow: Arrow, number: int, scale: float) -> list[dict[str, Any]]:
    """Return an arrow's events, inside the producer's slice and inside the consumer's."""
    shared = {"name": "data", "cat": "data", "id": number, "pid": DEVICES}
    leave = arrow.begin + 0.99 * (arrow.end - arrow.begin)
    arrive = arrow.start + 0.01 * (arrow.finish - arrow.start)
    return [
        {"ph": "s", "tid": arrow.source, "ts": leave * scale, **shared},
        {"ph": "f", "bp": "e", "tid": arrow.target, "ts": arrive * scale, **shared},
    ]


def html_page(simulation: Simulation, *, title: str = "") -> str:
    """Return the HTML page of a simulation; InputError if it has too many bars."""
    schedule = simulation.schedule
    name = title or f"{schedule.name}, {show_count(schedule.microbatches, 'microbatch')}"
    marks = marks_of(simulation, picture=True)
    return page_of(marks, name, _facts(simulation), _table(simulation))


def page_of(marks: Marks, title: str, facts: dict[str, str], table: str = "") -> str:
    """Return the HTML page of any marks, below facts by name, with rows of a table as HTML."""
    kinds = [what for what in COLOURS if any(bar.what == what for bar in marks.bars)]
    data = {
        "lanes": marks.lanes,
        "kinds": [COLOURS[what] for what in kinds],
        "bars": [
            [
                *(b.lane, kinds.index(b.what), b.whole, b.stage, b.microbatch, b.start, b.end),
                *(*band, b.critical, b.bytes, bool(marks.label(b) or b.microbatch < 0)),
            ]
            for b, band in zip(marks.bars, bands(marks.bars), strict=True)
        ],
        "arrows": marks.arrows,
        "span": marks.span,
        "unit": "" if marks.time_unit == "unspecified" else marks.time_unit,
        "memory": [
            {
                "name": level.name,
                "colour": line_of(i)[0],
                "dashes": {"-": [], "--": [7, 4], ":": [2, 3]}[line_of(i)[1]],
                "steps": list(zip(level.times, level.sizes, strict=True)),
            }
            for i, level in enumerate(marks.memory)
        ],
    }
    filled = {
        "TITLE": markup(title),
        "FACTS": "".join(
            f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>"
            for name, value in facts.items()
        ),
        "TABLE": table,
        "DATA": script(data),
    }
    page = PAGE.read_text(encoding="utf-8")
    return re.sub("@(TITLE|FACTS|TABLE|DATA)@", lambda found: filled[found[1]], page)


def _facts(simulation: Simulation) -> dict[str, str]:
    unit = simulation.stages.time_unit
    return {
        "makespan": show_time(simulation.makespan, unit),
        "time per microbatch, steady state": show_time(simulation.time_per_sample, unit),
        "bubble": show_percent(simulation.bubble),
        "highest memory": show_bytes(max(m.peak for m in simulation.memory)),
    }


def _table(simulation: Simulation) -> str:
    frame = simulation.to_pandas().iloc[simulation.used]
    columns = {
        "compute": "compute", "transfer": "transfer", "idle": "idle", "bubble": "bubble",
        "in_flight": "in flight", "weight_bytes": "kept always",
        "version_bytes": "further versions", "activation_bytes": "activations, peak",
        "peak_bytes": "memory, peak",
    }  # fmt: skip
    head = "".join(f"<th>{text}</th>" for text in ["device", *columns.values()])
    rows = []
    for name, row in frame.iterrows():
        cells = [f"<th>{markup(str(name))}</th>"]
        for column in columns:
            value = float(row[column])
            if column.endswith("_bytes"):
                text = show_bytes(value)
            elif column == "bubble":
                text = show_percent(value)
            else:
                text = f"{value:.6g}"
            cells.append(f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
