"""The marks of a timeline: lanes, bars, arrows, lines of memory, and what they say.

Whatever shows something over time is drawn from these: `gantt` writes a picture (SVG, PNG, PDF),
`html_page` a page to zoom into, `trace` a file for Perfetto. They decide how marks look, never what
there is. Marks are made here of a simulation, of a sharding, and in
`runtime.accuracy.chart` of a recorded run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...instances import InputError
from ...instances.common.escape import plain
from ..schedules.actions import Action, Kind
from ..simulate.result import Simulation
from ..simulate.sharded import ShardedTimeline
from .style import COLLECTIVES

#: Most bars of a picture.
MOST_BARS = 60_000
#: Most links in a picture; of more, those with most work are drawn.
MOST_LINKS = 16
#: Most devices in a picture; of more, the first replica of each stage is drawn.
MOST_DEVICES = 64
#: Steps of a critical path that are marked, the last ones.
MOST_STEPS = 20_000


class Bar(NamedTuple):
    """Something that takes time on a lane."""

    lane: int  # number of the lane
    what: str  # a key of a palette: F, B, send, all-gather, …
    whole: str  # the action that it is a part of, such as ``0F3``; several bars may be parts of one
    start: float  # start, end: in the marks' unit of time
    end: float
    stage: int = -1  # stage, microbatch: −1 where there is none
    microbatch: int = -1
    bytes: float = 0.0  # that are sent, where that is known
    critical: bool = False  # whether it decides when all ends


class Arrow(NamedTuple):
    """Data of an action on one lane that an action on another lane takes, by their times."""

    source: int
    begin: float
    end: float
    target: int
    start: float
    finish: float


class Level(NamedTuple):
    """Memory of a device over time: its bytes from each time on."""

    name: str
    times: list[float]
    sizes: list[float]


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks of a timeline's picture: bars, arrows and memory, by lane."""

    lanes: tuple[str, ...]  # names: devices first, then links
    devices: int  # how many of the lanes are devices
    bars: tuple[Bar, ...]  # in the order of time on each lane of a device
    span: float  # when all has ended
    time_unit: str  # ``unspecified`` if the workload names none
    arrows: tuple[Arrow, ...] = ()  # between devices
    memory: tuple[Level, ...] = ()  # of each device, where it is known

    @cached_property
    def by_stage(self) -> bool:
        """Whether a device has several stages, so that labels must name the stage."""
        pairs = {(bar.lane, bar.stage) for bar in self.bars if bar.what in "FBIW"}
        return len(pairs) > len({lane for lane, _ in pairs})

    def label(self, bar: Bar) -> str:
        """Return what a bar is called in little room; nothing if its colour says enough."""
        if bar.what not in ("F", "B", "I", "W", "message") or bar.microbatch < 0:
            return ""
        return f"{bar.stage}·{bar.microbatch}" if self.by_stage else str(bar.microbatch)

    def in_unit(self, time_unit: str, scale: float) -> Marks:
        """Return the bars and the span in another unit of time; nothing else."""
        bars = tuple(b._replace(start=b.start * scale, end=b.end * scale) for b in self.bars)
        span = self.span * scale
        return replace(self, bars=bars, span=span, time_unit=time_unit, arrows=(), memory=())


def marks_of(simulation: Simulation, *, picture: bool = False) -> Marks:
    """Return the marks of a simulation, for a picture of as many lanes as fit.

    InputError if there is too much to draw in one.
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
    """Return the names of the lanes: devices that do anything, then links that are busy."""
    links = simulation.link_load
    links = links[links["busy"] > 0]  # what goes to a host takes no time there
    if picture and len(links) > MOST_LINKS:
        links = links.nlargest(MOST_LINKS, "busy")
    return [
        plain(name) for name in [*(simulation.stages.devices[d] for d in devices), *links.index]
    ]


def bars_of(simulation: Simulation, *, picture: bool = False) -> Iterator[Bar]:
    """Yield what happens, device after device, in order; transfers within an action apart."""
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
    """Return which colour an action has."""
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
    """Yield from where data is produced to where it is used on another device."""
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
    """Return times and bytes of a device's memory, one pair per change; begins at time 0."""
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
    """Return the row of each bar in its lane, so that no two overlap in time."""
    row = [0] * len(bars)
    until: dict[int, list[float]] = {}
    for i in sorted(range(len(bars)), key=lambda i: (bars[i].lane, bars[i].start)):
        ends = until.setdefault(bars[i].lane, [])
        free = [r for r, end in enumerate(ends) if end <= bars[i].start * (1 + 1e-12)]
        row[i] = free[0] if free else len(ends)
        ends[row[i] : row[i] + 1] = [bars[i].end]
    return row


def bands(bars: tuple[Bar, ...]) -> list[tuple[float, float]]:
    """Return where each bar is drawn, from the middle of its lane; a lane is 1 high."""
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
    """Return the marks of a sharding: lanes for computing and for each axis of the mesh.

    Each group of devices that works beside others has lanes of its own.
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
