"""Recordings of sharded runs: begin and end of operators and collectives. Without torch.

A file is an object whose events are rows, as there are many: step, name, kind, whether an operator
asks for it itself, axis of the mesh (−1 for computing), begin, end, bytes that the device sent.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from ....instances import InputError
from ....instances.formats.source import Record, read_source
from ....instances.formats.stagecut_json import read_file
from ....instances.formats.versions import SHARDED_RECORDING
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


class ShardedRank(Record):
    """Events of one device in order."""

    rank: int
    host: str
    events: tuple[RecordedEvent, ...]


class ShardedRecording(Record):
    """A run of a sharding, as files have it.

    `plan` is a hash of what the plan decides, `mesh` has the devices along each axis, and `step_s`
    the seconds of each step, the optimizer's included.
    """

    workload_fingerprint: str
    plan: str
    mesh: tuple[int, ...]
    step_s: tuple[float, ...]
    ranks: tuple[ShardedRank, ...]
    format: Literal["stagecut-sharded-recording"] = "stagecut-sharded-recording"
    version: Literal[1] = 1


def load_sharded_recording(path: str | Path) -> ShardedRecording:
    """Return the recording of a sharding in a file; InputError if it is broken."""
    source = read_source(path)
    recording = read_file(source, ShardedRecording, SHARDED_RECORDING)
    try:
        _check(recording)
    except InputError as error:
        source.fail(str(error))
    return recording


def save_sharded_recording(recording: ShardedRecording, path: str | Path) -> None:
    """Write a recording, whole or not at all; InputError if ranks did not do the same."""
    _check(recording)
    data = msgspec.to_builtins(recording)
    head = {"format": recording.format, "version": recording.version}
    write_whole(path, layout({**head, **data, "ranks": list(data["ranks"])}))


def _check(recording: ShardedRecording) -> None:
    """Raise InputError if ranks are missing, or one did other things than the others."""
    if [rank.rank for rank in recording.ranks] != list(range(len(recording.ranks) or 1)):
        raise InputError("ranks: list ranks 0, 1, …, each once")
    first = [event[:5] for event in recording.ranks[0].events]
    for rank in recording.ranks:
        if [event[:5] for event in rank.events] != first:
            raise InputError(f"rank {rank.rank}: it did other things than rank 0; run again")
        numbers = [number for event in rank.events for number in event[5:]]
        if not all(map(math.isfinite, (*numbers, *recording.step_s))):
            raise InputError(f"rank {rank.rank}: times and bytes must be finite numbers")
        if any(not event.start_s <= event.end_s for event in rank.events):
            raise InputError(f"rank {rank.rank}: an event ends before it begins")
