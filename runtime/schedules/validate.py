"""Validation of schedules before a run: complete, on the right devices, and free of deadlock.

It assigns a step to each action, and shows the place of an error in a table of steps.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Bools, Ints
from ...instances.model.schedule import check_size
from ..simulate.network import HostMemory
from ..simulate.stages import BACKWARD, FORWARD, StageGraph
from .actions import PER_BATCH, TRANSFERS, Action, Kind, Schedule

#: Number of steps that a table shows before and after the marked place.
SHOWN = 6

#: Pass to which each kind of action belongs.
NEEDS = {Kind.F: FORWARD, Kind.B: BACKWARD, Kind.I: BACKWARD, Kind.W: BACKWARD}


class ScheduleError(InputError):
    """A schedule that cannot run: one line that says why, and the place in a table of steps."""

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table

    def __str__(self) -> str:
        """Return the line and, below it, the table."""
        return f"{super().__str__()}\n{self.table}"


def validate(schedule: Schedule, stages: StageGraph) -> None:
    """Check that every pass of every microbatch occurs once, on a device of its stage, and can run.

    InputError names the fault; if it has a place, this is a `ScheduleError` with a table of steps
    and devices in which the place is marked. O(actions · predecessors).
    """
    check_actions(schedule, stages)
    _, reached = execution_steps(schedule, stages)
    if any(reached[d] < len(table) for d, table in enumerate(schedule.actions)):
        raise deadlock(schedule, stages)


def rows_by_stage(schedule: Schedule, stages: StageGraph) -> Schedule:
    """Return the schedule with each row on the device that has the stage of its first action.

    Rows stay as they are if they are in the order of devices already, or if two of them begin with
    stages of one device. So a file needs no rows for devices without stages, and need not know on
    which devices its stages are.
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
    """Check a schedule except for its order: passes, places and repetitions; raises InputError."""
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
        _first(schedule, d, np.isin(what, TRANSFERS), "transfers follow from the stages")
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


def _first(schedule: Schedule, device: int, wrong: Bools, why: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        action = schedule.of(device)[index]
        table = step_table(schedule, {(device, index)})
        raise ScheduleError(f"schedule: row {device}, action {index}, {action}: {why}", table)


def execution_steps(schedule: Schedule, stages: StageGraph) -> tuple[list[Ints], Ints]:
    """Return the step of each action if all take one step, and the number that run per device.

    An action that never runs has step −1.
    """
    from ..simulate.engine_kernel import execute  # which imports schedules
    from ..simulate.program import compile_program

    alike = replace(stages, all_reduce=np.zeros(stages.count))
    program = compile_program(alike, schedule, HostMemory())
    one = np.ones_like(program.actions.duration)
    times = execute(
        replace(program, actions=program.actions._replace(duration=one)), schedule.microbatches
    )
    step = np.where(np.isfinite(times.start), times.start, -1).astype(np.int64)
    return np.split(step, program.actions.first[1:-1]), times.reached


def deadlock(schedule: Schedule, stages: StageGraph) -> ScheduleError:
    """Return the error that names the actions in a deadlock and what each waits for."""
    step, reached = execution_steps(schedule, stages)
    ran = {
        action for d in range(len(schedule.actions)) for action in schedule.of(d)[: int(reached[d])]
    }
    marks, blocked = set(), []
    for d in range(len(schedule.actions)):
        if reached[d] < len(schedule.actions[d]):
            action = schedule.of(d)[int(reached[d])]
            lacks = [str(a) for a in _awaits(action, stages) if a not in ran]
            marks.add((d, int(reached[d])))
            if lacks:
                blocked.append(f"{action} on {stages.devices[d]} waits for {', '.join(lacks)}")
    return ScheduleError(
        f"schedule: deadlock: {'; '.join(blocked[:4])}{'; …' if len(blocked) > 4 else ''}",
        step_table(schedule, marks, step),
    )


def _awaits(action: Action, stages: StageGraph) -> list[Action]:
    s, kind, j = action
    if kind == Kind.W:
        return [Action(s, Kind.I, j)]
    if kind not in NEEDS:
        return []
    task = 2 * s + NEEDS[kind]
    back = Kind.I if kind == Kind.I else Kind.B
    return [
        Action(a // 2, back if a % 2 else Kind.F, j) for a, b in stages.edges.tolist() if b == task
    ]


def step_table(
    schedule: Schedule,
    marks: Collection[tuple[int, int]] = (),
    step: list[Ints] | None = None,
) -> str:
    """Return a text table with a row per step, by default an action's index, a column per device.

    `marks` are actions (device, index) to put between ``>>`` and ``<<``; rows far from them are
    omitted. `step` is −1 for an action that never runs.
    """
    cells: dict[tuple[int, int], str] = {}
    stuck = 0
    for d, table in enumerate(schedule.actions):
        when = np.arange(len(table)) if step is None else step[d]
        stuck = max(stuck, int(when.max(initial=-1)) + 1)
    marked_rows = set()
    for d, table in enumerate(schedule.actions):
        when = np.arange(len(table)) if step is None else step[d]
        actions = schedule.of(d) if len(table) < 4096 or marks else []
        for i, action in enumerate(actions):
            row = int(when[i])
            if (d, i) in marks:
                row = stuck if row < 0 else row
                cells[row, d] = f">>{action}<<"
                marked_rows.add(row)
            elif row >= 0:
                cells[row, d] = str(action)
    rows = sorted({row for row, _ in cells})
    if marked_rows:
        low, high = min(marked_rows) - SHOWN, min(marked_rows) + SHOWN
        rows = [row for row in rows if low <= row <= high]
    else:
        rows = rows[: 4 * SHOWN]
    devices = range(len(schedule.actions))
    width = max(
        [len(cells.get((row, d), "")) for row in rows for d in devices] + [len("device 00")]
    )
    lines = ["step  " + "  ".join(f"{f'device {d}':<{width}}" for d in devices).rstrip()]
    lines += [
        f"{row:>4}  " + "  ".join(f"{cells.get((row, d), ''):<{width}}" for d in devices).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
