"""A simulation as boxes on lanes: what every picture and trace is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...instances import InputError
from ...instances.common.escape import plain
from ..schedules.actions import Action, Kind
from ..simulate.result import Simulation

#: Colour of what a box shows, and what the legend calls it; light enough for dark text.
COLOURS = {
    "F": ("#7fb2e5", "forward"),
    "B": ("#f2b56b", "backward"),
    "I": ("#f2b56b", "backward: inputs"),
    "W": ("#b8d98b", "backward: weights"),
    "receive": ("#c9c3d8", "receive"),
    "send": ("#a89bc4", "send"),
    "reduce": ("#e59a9a", "all-reduce"),
    "step": ("#d9d27a", "optimizer step"),
    "message": ("#a89bc4", "transfer"),
}

#: More boxes than this are no picture any more.
MOST_BOXES = 60_000


class Box(NamedTuple):
    """Something that takes time on a lane; `whole` is the action that it is a part of."""

    lane: int
    what: str
    whole: str
    stage: int
    microbatch: int
    start: float
    end: float


#: Links in a picture; of more, those with most work are drawn.
MOST_LINKS = 16
#: Devices in a picture; of more, the first replica of each stage is drawn.
MOST_DEVICES = 64


def drawn(simulation: Simulation) -> list[int]:
    """Return the devices that a picture shows."""
    used = simulation.used
    if len(used) <= MOST_DEVICES:
        return used
    first = {ring[0] for ring in simulation.stages.replicas}
    return [d for d in used if d in first]


def lanes(simulation: Simulation, *, picture: bool = False) -> list[str]:
    """Return the names of the lanes: devices that do anything, then links in use.

    Parameters
    ----------
    picture
        As many as fit into a picture, instead of all.
    """
    devices = drawn(simulation) if picture else simulation.used
    links = simulation.link_load
    if picture and len(links) > MOST_LINKS:
        links = links.nlargest(MOST_LINKS, "busy")
    names = [simulation.stages.devices[d] for d in devices] + list(links.index)
    return [plain(name) for name in names]


def boxes(simulation: Simulation, *, picture: bool = False) -> Iterator[Box]:
    """Yield what happens, device after device, in order; transfers within an action apart."""
    schedule, ends = simulation.schedule, simulation.program.inputs
    for lane, d in enumerate(drawn(simulation) if picture else simulation.used):
        starts, finishes = simulation.starts[d].tolist(), simulation.ends[d].tolist()
        rows = schedule.actions[d].tolist()
        for (stage, number, m), start, end in zip(rows, starts, finishes, strict=True):
            kind = Kind(number)
            whole = str(Action(stage, kind, m))
            if kind in (Kind.F, Kind.B, Kind.I):
                receive, send = ends[2 * stage + (kind != Kind.F)].tolist()
                middle, late = min(start + receive, end), max(start, end - send)
                if receive > 0:
                    yield Box(lane, "receive", whole, stage, m, start, middle)
                yield Box(lane, kind.name, whole, stage, m, middle, late)
                if send > 0:
                    yield Box(lane, "send", whole, stage, m, late, end)
            else:
                yield Box(lane, what_of(kind), whole, stage, m, start, end)
    row = {name: i for i, name in enumerate(lanes(simulation, picture=picture))}
    for x, m, name, start, end in simulation.jobs():
        if name not in row:
            continue
        stage = int(simulation.program.jobs.source[x])
        yield Box(row[name], "message", simulation.job_name(x), stage, m, start, end)


def what_of(kind: Kind) -> str:
    """Return which of `COLOURS` an action has."""
    if kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        return kind.name
    if kind in (Kind.RECV_F, Kind.RECV_B):
        return "receive"
    if kind in (Kind.SEND_F, Kind.SEND_B):
        return "send"
    return "reduce" if kind == Kind.REDUCE_GRAD else "step"


def few_boxes(simulation: Simulation) -> list[Box]:
    """Return the boxes for a picture.

    Raises
    ------
    InputError
        If there are too many to see anything.
    """
    found = list(boxes(simulation, picture=True))
    if len(found) > MOST_BOXES:
        raise InputError(
            f"plot: {len(found)} boxes are too many to draw (most: {MOST_BOXES}); "
            "simulate fewer microbatches, or write a trace instead"
        )
    return found


def rows(found: list[Box]) -> list[int]:
    """Return the row of each box in its lane, so that no two overlap in time."""
    row = [0] * len(found)
    until: dict[int, list[float]] = {}
    for i in sorted(range(len(found)), key=lambda i: (found[i].lane, found[i].start)):
        ends = until.setdefault(found[i].lane, [])
        free = [r for r, end in enumerate(ends) if end <= found[i].start * (1 + 1e-12)]
        row[i] = free[0] if free else len(ends)
        ends[row[i] : row[i] + 1] = [found[i].end]
    return row


def bands(found: list[Box]) -> list[tuple[float, float]]:
    """Return where each box is drawn, from the middle of its lane; a lane is 1 high."""
    row = rows(found)
    number: dict[int, int] = {}
    for box, r in zip(found, row, strict=True):
        number[box.lane] = max(r + 1, number.get(box.lane, 0))
    result = []
    for box, r in zip(found, row, strict=True):
        height = 0.84 / number[box.lane]
        result.append((r * height - 0.42, (r + 1) * height - 0.42))
    return result


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
