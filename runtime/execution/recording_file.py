"""Recording files of runs: begin and end of every action of every rank. Without torch.

Those of shardings have a row for each operator and collective: the fields of `RecordedEvent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from ...instances import InputError
from ...instances.common.errors import prefix_errors, quote
from ...instances.common.units import LARGEST
from ...instances.formats.source import (
    RECORDING,
    SHARDED_RECORDING,
    Amount,
    Count,
    Record,
    Whole,
    read_file,
    read_source,
)
from ...instances.formats.writing import json_text, write_whole
from ..schedules.actions import Action, parse_action

#: A point in time.
Time = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
_parsed = lru_cache(maxsize=1 << 16)(parse_action)


class RecordedAction(Record):
    """Recorded action of the optimizer step `step`, from `start_s` to `end_s`."""

    step: Count
    name: str = msgspec.field(name="action")  # such as ``2F0``
    start_s: Time
    end_s: Time

    @property
    def action(self) -> Action:
        """Action of this name."""
        return _parsed(self.name)


class RankRecording(Record):
    """Recording of one rank, which is the number of its device in the plan's cluster.

    `actions` are in the order in which they began; waiting for data is no part of an action.
    """

    rank: int
    host: str  # host, device: where it ran, such as ``node7`` and ``cuda:1``
    device: str
    actions: tuple[RecordedAction, ...]


class RunRecording(Record):
    """Recording of a plan's run, in the form of its file.

    Times are seconds on one clock that all ranks share: theirs if they are on one host, else each
    rank's own, set to zero at a barrier before the first step. `placement` has the plan's device of
    each node, by which recordings of other plans are recognised.
    """

    workload_fingerprint: str
    placement: list[Whole]
    schedule: str
    microbatches: Annotated[int, msgspec.Meta(ge=1)]  # per step
    ranks: tuple[RankRecording, ...]
    format: Literal["stagecut-recording"] = "stagecut-recording"
    version: Literal[1] = 1

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps, increasing."""
        return tuple(sorted({done.step for rank in self.ranks for done in rank.actions}))

    def done(self, step: int) -> Iterator[RecordedAction]:
        """Yield the actions of all ranks in a step."""
        for rank in self.ranks:
            yield from (done for done in rank.actions if done.step == step)

    def check(self) -> None:
        """Raise InputError if ranks are missing, or an action is not possible."""
        for number, rank in enumerate(self.ranks):
            if rank.rank != number:
                raise InputError(
                    f"ranks[{number}] is of rank {rank.rank}; list ranks 0, 1, …, each once"
                )
            seen: set[tuple[int, Action]] = set()
            for done in rank.actions:
                where = f"rank {number}: step {done.step}: {done.name}"
                if done.end_s < done.start_s:
                    raise InputError(
                        f"{where}: it ends at {quote(done.end_s)}, before it begins at "
                        f"{quote(done.start_s)}"
                    )
                with prefix_errors(f"rank {number}: step {done.step}", done.name):
                    action = done.action
                if action.microbatch >= self.microbatches:
                    raise InputError(f"{where}: there are {self.microbatches} microbatches")
                if (done.step, action) in seen:
                    raise InputError(f"{where}: it occurs twice")
                seen.add((done.step, action))
        if not any(rank.actions for rank in self.ranks):
            raise InputError("no rank did anything; record a run with at least one step")


class RecordedEvent(NamedTuple):
    """Operator or collective of a device in the step `step`, from `start_s` to `end_s`.

    `name` is that of the operator or the converted tensor, `kind` ``forward``, ``backward`` or a
    collective, and `within` tells whether it is a collective inside an operator, for statistics.
    `axis` is the mesh's, −1 for computing; `bytes` are those that this device sent.
    """

    step: Count
    name: str
    kind: str
    within: bool
    axis: int
    start_s: Time
    end_s: Time
    bytes: Amount


class ShardedRank(Record):
    """Events of one device in order."""

    rank: int
    host: str
    events: tuple[RecordedEvent, ...]


class ShardedRecording(Record):
    """Recording of a sharding's run, in the form of its file.

    `plan` is a hash of what the plan decides, `mesh` has the devices along each axis, and `step_s`
    the seconds of each step, the optimizer's included.
    """

    workload_fingerprint: str
    plan: str
    mesh: tuple[int, ...]
    step_s: tuple[Amount, ...]
    ranks: tuple[ShardedRank, ...]
    format: Literal["stagecut-sharded-recording"] = "stagecut-sharded-recording"
    version: Literal[1] = 1

    def check(self) -> None:
        """Raise InputError if ranks are missing, or their operators and collectives differ."""
        if [rank.rank for rank in self.ranks] != list(range(len(self.ranks) or 1)):
            raise InputError("ranks: list ranks 0, 1, …, each once")
        first = [event[:5] for event in self.ranks[0].events]
        for rank in self.ranks:
            if [event[:5] for event in rank.events] != first:
                raise InputError(f"rank {rank.rank}: it did other things than rank 0; run again")
            if any(event.start_s > event.end_s for event in rank.events):
                raise InputError(f"rank {rank.rank}: an event ends before it begins")


T = TypeVar("T", RunRecording, ShardedRecording)


def load_recording(path: str | Path) -> RunRecording:
    """Return the recording in a file.

    Parameters
    ----------
    path
        File that `stagecut run --record` wrote.

    Returns
    -------
    RunRecording
        Actions of each rank with begin and end in seconds.

    Raises
    ------
    InputError
        If the file is broken: one line with file, field and remedy.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.runtime.execution.load_recording("recording.json")
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: recording.json: no such file; check the path
    """
    return _load(path, RunRecording, RECORDING)


def load_sharded_recording(path: str | Path) -> ShardedRecording:
    """Return the recording of a sharding in a file; raises InputError if it is broken."""
    return _load(path, ShardedRecording, SHARDED_RECORDING)


def _load(path: str | Path, kind: type[T], form: str) -> T:
    source = read_source(path)
    recording = read_file(source, kind, form)
    try:
        recording.check()
    except InputError as error:
        source.fail(str(error))
    return recording


def save_recording(recording: RunRecording | ShardedRecording, path: str | Path) -> None:
    """Write a recording, whole or not at all; raises InputError if it is not consistent."""
    recording.check()
    data: dict[str, Any] = msgspec.to_builtins(recording)
    head = {name: data.pop(name) for name in ("format", "version")}
    write_whole(path, json_text({**head, **data, "ranks": list(data["ranks"])}))
