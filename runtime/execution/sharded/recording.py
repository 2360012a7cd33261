"""Recordings of sharded runs: begin and end of operators and collectives. Without torch.

A file is an object whose events are rows, as there are many: step, name, kind, whether an operator
asks for it itself, axis of the mesh (−1 for computing), begin, end, bytes that the device sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ....instances import InputError
from ....instances.formats.source import Record, read_source
from ....instances.formats.stagecut_json import read_file
from ....instances.formats.versions import NEWEST, SHARDED_RECORDING
from ....instances.formats.writing import layout, write_whole


class RecordedEvent(NamedTuple):
    """Event of a device in the step `step`, from `start_s` to `end_s`.

    `name` is that of the operator or the converted tensor, `kind` ``forward``, ``backward`` or a
    collective, and `within` tells whether an operator asks for it itself, for statistics. `axis` is
    the mesh's, −1 for computing; `bytes` are those that this device sent.
    """

    step: int
    name: str
    kind: str
    within: bool
    axis: int
    start_s: float
    end_s: float
    bytes: float


@dataclass(frozen=True, eq=False)
class ShardedRank:
    """Events of one device in order."""

    rank: int
    host: str
    events: tuple[RecordedEvent, ...]


@dataclass(frozen=True, eq=False)
class ShardedRecording:
    """A run of a sharding.

    `plan` is a hash of what the plan decides, `mesh` has the devices along each axis, and `step_s`
    the seconds of each step, the optimizer's included. Raises InputError if ranks are missing, or
    one did other things than the others.
    """

    workload_fingerprint: str
    plan: str
    mesh: tuple[int, ...]
    step_s: tuple[float, ...]
    ranks: tuple[ShardedRank, ...]

    def __post_init__(self) -> None:
        if [rank.rank for rank in self.ranks] != list(range(len(self.ranks))) or not self.ranks:
            raise InputError("ranks: list ranks 0, 1, …, each once")
        first = [event[:5] for event in self.ranks[0].events]
        for rank in self.ranks:
            if [event[:5] for event in rank.events] != first:
                raise InputError(f"rank {rank.rank}: it did other things than rank 0; run again")
            numbers = [number for event in rank.events for number in event[5:]]
            if not all(map(math.isfinite, (*numbers, *self.step_s))):
                raise InputError(f"rank {rank.rank}: times and bytes must be finite numbers")
            if any(not event.start_s <= event.end_s for event in rank.events):
                raise InputError(f"rank {rank.rank}: an event ends before it begins")


class ShardedRankRecord(Record):
    """A rank."""

    rank: int
    host: str
    events: list[tuple[int, str, str, bool, int, float, float, float]]


class ShardedRecordingFile(Record):
    """A recording of a sharding; see `ShardedRecording`."""

    format: Literal["stagecut-sharded-recording"]
    version: Literal[1]
    workload_fingerprint: str
    plan: str
    mesh: list[int]
    step_s: list[float]
    ranks: list[ShardedRankRecord]


def load_sharded_recording(path: str | Path) -> ShardedRecording:
    """Return the recording of a sharding in a file; InputError if it is broken."""
    source = read_source(path)
    file = read_file(source, ShardedRecordingFile, SHARDED_RECORDING)
    ranks = tuple(
        ShardedRank(one.rank, one.host, tuple(RecordedEvent(*row) for row in one.events))
        for one in file.ranks
    )
    try:
        return ShardedRecording(
            file.workload_fingerprint, file.plan, tuple(file.mesh), tuple(file.step_s), ranks
        )
    except InputError as error:
        source.fail(str(error))


def save_sharded_recording(recording: ShardedRecording, path: str | Path) -> None:
    """Write a recording, whole or not at all."""
    data = {
        "format": SHARDED_RECORDING,
        "version": NEWEST[SHARDED_RECORDING],
        "workload_fingerprint": recording.workload_fingerprint,
        "plan": recording.plan,
        "mesh": list(recording.mesh),
        "step_s": list(recording.step_s),
        "ranks": [
            {"rank": one.rank, "host": one.host, "events": [list(e) for e in one.events]}
            for one in recording.ranks
        ],
    }
    write_whole(path, layout(data))
