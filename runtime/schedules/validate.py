"""Is a schedule complete, on the right devices, and free of deadlock? Said before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...instances import InputError
from ...instances.common.arrays import Bools
from ...instances.model.schedules.size import check_size
from ..simulate.stages import StageGraph
from .actions import PER_BATCH, Action, Kind, Schedule
from .steps import NEEDS, ScheduleError, deadlock, execution_steps, step_table


def validate(schedule: Schedule, stages: StageGraph) -> None:
    """Check that every pass of every microbatch is done once, where its stage is, and can be.

    Raises
    ------
    InputError
        With what is wrong; a `ScheduleError`, where there is a place to show, has a table of steps
        and devices with the place marked below that.

    Notes
    -----
    O(actions · predecessors).
    """
    check_actions(schedule, stages)
    _, reached = execution_steps(schedule, stages)
    if any(reached[d] < len(table) for d, table in enumerate(schedule.actions)):
        raise deadlock(schedule, stages)


def rows_by_stage(schedule: Schedule, stages: StageGraph) -> Schedule:
    """Return the schedule with each row on the device that has the stage of its first action.

    Rows that are in the order of the devices already, or where two have stages of one device, stay
    as they are. So a file needs no row for a device without stages, and its rows are those of
    stages, whichever devices these are on.
    """
    size = len(stages.devices)
    rows = [(d, table) for d, table in enumerate(schedule.actions) if len(table)]
    if schedule.engines or any(table[0, 0] >= stages.count for _, table in rows):
        return schedule
    at = []
    for _, table in rows:
        stage, _, microbatch = table[0].tolist()
        devices = stages.replicas[stage]
        at.append(devices[microbatch % len(devices)])
    in_order = len(schedule.actions) == size and at == [d for d, _ in rows]
    if in_order or len(set(at)) < len(at):
        return schedule
    placed = [np.zeros((0, 3), np.int32)] * size
    for d, (_, table) in zip(at, rows, strict=True):
        placed[d] = table
    return replace(schedule, actions=tuple(placed))


def check_actions(schedule: Schedule, stages: StageGraph) -> None:
    """Check everything about a schedule but the order; raises InputError."""
    if len(schedule.actions) != len(stages.devices):
        used = len({d for devices in stages.replicas for d in devices})
        raise InputError(
            f"schedule: it has {len(schedule.actions)} row(s); "
            f"the plan has {used} device(s) with stages, and each of these needs a row"
        )
    count, m = stages.count, schedule.microbatches
    check_size(count, m)
    most = max(len(devices) for devices in stages.replicas)
    where = np.full((count, most), -1, dtype=np.int64)
    for s, devices in enumerate(stages.replicas):
        where[s, : len(devices)] = devices
    number = np.array([len(devices) for devices in stages.replicas])
    present = np.ones((len(Kind), count), dtype=bool)
    for needed, side in NEEDS.items():
        present[needed] = stages.present[:, side]
    seen = np.zeros((len(Kind), count, m), dtype=np.uint8)
    different = 0
    for d, table in enumerate(schedule.actions):
        stage, what, which = table[:, 0], table[:, 1], table[:, 2]
        _first(schedule, d, stage >= count, f"the plan has stages 0 to {count - 1}")
        _first(schedule, d, which >= m, f"there are microbatches 0 to {m - 1}")
        batch = np.isin(what, PER_BATCH)
        here = np.where(
            batch, (where[stage] == d).any(axis=1), where[stage, which % number[stage]] == d
        )
        _first(schedule, d, ~here, "the stage, or its replica for this microbatch, is elsewhere")
        _first(schedule, d, ~present[what, stage], "the stage has no such pass")
        codes = (what.astype(np.int64) * count + stage) * m + which
        seen.ravel()[codes] = 1
        different += len(np.unique(codes[batch])) - int(batch.sum())  # alike on other devices
    different += int(np.count_nonzero(seen[: min(PER_BATCH)]))
    different += sum(int(np.isin(table[:, 1], PER_BATCH).sum()) for table in schedule.actions)
    if different < schedule.size:
        _name_repeated(schedule)
    both = seen[Kind.B] & (seen[Kind.I] | seen[Kind.W])
    if both.any():
        s, j = np.argwhere(both)[0].tolist()
        raise InputError(
            f"schedule: stage {s} has {s}B{j} and also {s}I{j} or {s}W{j}; use one form"
        )
    for kind, done in (
        (Kind.F, seen[Kind.F]),
        (Kind.B, seen[Kind.B] | seen[Kind.I]),
        (Kind.W, seen[Kind.B] | seen[Kind.W]),
    ):
        lacking = present[kind][:, None] & (done == 0)
        if lacking.any():
            s, j = np.argwhere(lacking)[0].tolist()
            d = stages.replicas[s][j % len(stages.replicas[s])]
            raise InputError(
                f"schedule: {Action(s, kind, j)} is missing; "
                f"it belongs on {stages.devices[d]} (row {d})"
            )
    explicit = seen[Kind.RECV_F : Kind.SEND_B + 1].any()
    if explicit:
        _check_transfers(stages, seen)
    for s in np.flatnonzero(seen[Kind.REDUCE_GRAD].any(axis=1)).tolist():
        for d in stages.replicas[s]:
            table = schedule.actions[d]
            own = table[(table[:, 0] == s) & (table[:, 1] == Kind.REDUCE_GRAD), 2]
            lacking = np.setdiff1d(np.flatnonzero(seen[Kind.REDUCE_GRAD, s]), own)
            if len(lacking):
                action = Action(s, Kind.REDUCE_GRAD, int(lacking[0]))
                raise InputError(f"schedule: {action} is missing on {stages.devices[d]}")


def _name_repeated(schedule: Schedule) -> None:
    for d, table in enumerate(schedule.actions):
        _, at = np.unique(table, axis=0, return_index=True)
        again = np.ones(len(table), dtype=bool)
        again[at] = False
        _first(schedule, d, again, "it occurs twice")


def _check_transfers(stages: StageGraph, seen: NDArray[np.uint8]) -> None:
    for a, b in stages.edges.tolist():
        if stages.replicas[a // 2] == stages.replicas[b // 2]:
            continue
        for task, base in ((a, Kind.SEND_F), (b, Kind.RECV_F)):
            kind = Kind(base + 2 * (task % 2))
            gone = seen[kind, task // 2] == 0
            if gone.any():
                action = Action(task // 2, kind, int(np.argmax(gone)))
                raise InputError(
                    f"schedule: {action} is missing; a schedule that lists some transfers must "
                    "list all"
                )


def _first(schedule: Schedule, device: int, wrong: Bools, why: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        action = schedule.of(device)[index]
        table = step_table(schedule, {(device, index)})
        raise ScheduleError(f"schedule: row {device}, action {index}, {action}: {why}", table)
