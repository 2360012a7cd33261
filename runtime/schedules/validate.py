"""Is a schedule complete, on the right devices, and free of deadlock? Said before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numba import njit

from ...instances import InputError
from ...instances.arrays import Ints
from ..pieces import BACKWARD, FORWARD, Stages
from .actions import PER_BATCH, Action, Kind, Schedule

#: Steps that a table shows before and after the marked place.
SHOWN = 6
NEEDS = {Kind.F: FORWARD, Kind.B: BACKWARD, Kind.I: BACKWARD, Kind.W: BACKWARD}


def validate(schedule: Schedule, stages: Stages) -> None:
    """Check that every pass of every microbatch is done once, where its stage is, and can be.

    Raises
    ------
    InputError
        With what is wrong in the first line, and a table of steps and devices with the place
        marked below it.

    Notes
    -----
    O(actions · predecessors).
    """
    check_actions(schedule, stages)
    step, reached = execution_steps(schedule, stages)
    if any(reached[d] < len(table) for d, table in enumerate(schedule.actions)):
        raise InputError(deadlock_message(schedule, stages, step, reached))


def check_actions(schedule: Schedule, stages: Stages) -> None:
    """Check everything about a schedule but the order; raises InputError."""
    if len(schedule.actions) != len(stages.devices):
        raise InputError(
            f"schedule: it has {len(schedule.actions)} rows; "
            f"the plan has {len(stages.devices)} devices, one row each"
        )
    count, m = stages.count, schedule.microbatches
    most = max(len(devices) for devices in stages.replicas)
    where = np.full((count, most), -1, dtype=np.int64)
    for stage, devices in enumerate(stages.replicas):
        where[stage, : len(devices)] = devices
    number = np.array([len(devices) for devices in stages.replicas])
    present = np.zeros((len(Kind), count), dtype=bool)
    for kind in Kind:
        present[kind] = True
    for kind, side in NEEDS.items():
        present[kind] = stages.present[:, side]
    seen = np.zeros((len(Kind), count, m), dtype=np.uint8)
    for d, table in enumerate(schedule.actions):
        stage, kind, which = table[:, 0], table[:, 1], table[:, 2]
        _first(schedule, d, stage >= count, f"the plan has stages 0 to {count - 1}")
        _first(schedule, d, which >= m, f"there are microbatches 0 to {m - 1}")
        batch = np.isin(kind, PER_BATCH)
        here = np.where(batch, (where[stage] == d).any(axis=1), where[stage, which % number[stage]] == d)
        _first(schedule, d, ~here, "the stage, or its replica for this microbatch, is elsewhere")
        _first(schedule, d, ~present[kind, stage], "the stage has no such pass")
        codes = (kind.astype(np.int64) * count + stage) * m + which
        before = int(seen.sum()) if len(codes) != len(np.unique(codes)) else -1
        if before >= 0 or (seen.ravel()[codes[~batch]] > 0).any():
            _, at = np.unique(codes, return_index=True)
            again = np.ones(len(codes), dtype=bool)
            again[at] = False
            _first(schedule, d, again, "it occurs twice")
        seen.ravel()[codes] = 1
    both = seen[Kind.B] & (seen[Kind.I] | seen[Kind.W])
    if both.any():
        s, j = np.argwhere(both)[0].tolist()
        raise InputError(f"schedule: stage {s} has {s}B{j} and also {s}I{j} or {s}W{j}; use one form")
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
        _check_transfers(schedule, stages, seen)
    reduced = seen[Kind.REDUCE_GRAD, :, 0]
    for s in np.flatnonzero(reduced).tolist():
        for d in stages.replicas[s]:
            table = schedule.actions[d]
            if not ((table[:, 0] == s) & (table[:, 1] == Kind.REDUCE_GRAD)).any():
                raise InputError(f"schedule: {s}REDUCE_GRAD is missing on {stages.devices[d]}")


def _check_transfers(schedule: Schedule, stages: Stages, seen: np.ndarray) -> None:  # type: ignore[type-arg]
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


def _first(schedule: Schedule, device: int, wrong: np.ndarray, why: str) -> None:  # type: ignore[type-arg]
    if wrong.any():
        index = int(np.argmax(wrong))
        action = schedule.of(device)[index]
        table = step_table(schedule, {(device, index): ""})
        raise InputError(f"schedule: row {device}, action {index}, {action}: {why}\n{table}")


def execution_steps(schedule: Schedule, stages: Stages) -> tuple[list[Ints], Ints]:
    """Return at which step each action runs if all take one step, and how many run per device."""
    count = stages.count
    remote = [stages.replicas[a // 2] != stages.replicas[b // 2] for a, b in stages.edges.tolist()]
    explicit = any((t[:, 1] >= Kind.RECV_F).any() and (t[:, 1] <= Kind.SEND_B).any() for t in schedule.actions)  # noqa: E501
    kinds = {int(k) for t in schedule.actions for k in np.unique(t[:, 1])}
    explicit = bool(kinds & set(range(Kind.RECV_F, Kind.SEND_B + 1)))
    # Points of a microbatch: tasks 0 … 2P−1, receives 2P …, sends 4P …; what each waits for.
    before: list[list[int]] = [[] for _ in range(6 * count)]
    for (a, b), far in zip(stages.edges.tolist(), remote, strict=True):
        if far and explicit:
            before[4 * count + a] = [a]
            before[2 * count + b].append(4 * count + a)
            if 2 * count + b not in before[b]:
                before[b].append(2 * count + b)
        else:
            before[b].append(a)
    at = np.cumsum([0, *map(len, before)])
    to = np.array([p for points in before for p in points], dtype=np.int64)
    table = np.concatenate(schedule.actions).astype(np.int64).reshape(-1, 3)
    first = np.cumsum([0, *map(len, schedule.actions)])
    step, reached = _steps(first, table, at, to, count, schedule.microbatches, len(kinds) > 0)
    return [step[first[d] : first[d + 1]] for d in range(len(first) - 1)], reached


@njit(cache=True)
def _steps(first, table, before_at, before_to, count, m, _):
    devices = len(first) - 1
    done = np.full((7 * count, m), -1, np.int64)  # 6P …: input gradients ended, for W
    arrived = np.zeros(count, np.int64)
    replicas = np.zeros(count, np.int64)
    step = np.full(len(table), -1, np.int64)
    for i in range(len(table)):
        if table[i, 1] == 8:
            replicas[table[i, 0]] += 1
    at = first[:-1].copy()
    counted = np.zeros(devices, np.bool_)
    now = 0
    while True:
        moved = False
        for d in range(devices):
            i = at[d]
            if i >= first[d + 1]:
                continue
            s, kind, j = table[i, 0], table[i, 1], table[i, 2]
            able = True
            point = -1
            if kind == 0:
                point = 2 * s
            elif kind <= 2:
                point = 2 * s + 1
            elif kind == 3:
                able = 0 <= done[6 * count + s, j] < now
            elif kind == 4 or kind == 6:
                point = 2 * count + 2 * s + (kind - 4) // 2
            elif kind == 5 or kind == 7:
                point = 4 * count + 2 * s + (kind - 5) // 2
            elif kind == 8:
                if not counted[d]:
                    counted[d] = True
                    arrived[s] += 1
                    moved = True
                able = arrived[s] == replicas[s]
            if point >= 0:
                for e in range(before_at[point], before_at[point + 1]):
                    when = done[before_to[e], j]
                    if when < 0 or when >= now:
                        able = False
            if not able:
                continue
            moved = True
            step[i] = now
            if point >= 0:
                done[point, j] = now
            if kind == 2:
                done[6 * count + s, j] = now
            counted[d] = False
            at[d] += 1
        if not moved:
            return step, at - first[:-1]
        now += 1


def deadlock_message(
    schedule: Schedule, stages: Stages, step: list[Ints], reached: Ints
) -> str:
    """Return who waits for what, and the table of steps with the places marked."""
    ran = {
        action
        for d in range(len(schedule.actions))
        for action in schedule.of(d)[: int(reached[d])]
    }
    marks, told = {}, []
    for d in range(len(schedule.actions)):
        if reached[d] < len(schedule.actions[d]):
            action = schedule.of(d)[int(reached[d])]
            lacks = [str(a) for a in _awaits(action, stages) if a not in ran]
            marks[d, int(reached[d])] = ""
            if lacks:
                told.append(f"{action} on {stages.devices[d]} waits for {', '.join(lacks)}")
    return (
        f"schedule: deadlock: {'; '.join(told[:4])}{'; …' if len(told) > 4 else ''}\n"
        f"{step_table(schedule, marks, step)}"
    )


def _awaits(action: Action, stages: Stages) -> list[Action]:
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
    marks: Mapping[tuple[int, int], str] | None = None,
    step: list[Ints] | None = None,
) -> str:
    """Return a table with a row per step and a column per device.

    Parameters
    ----------
    marks
        Actions (device, index) to put between ``>>`` and ``<<``; rows far from them are left out.
    step
        Step of each action, −1 for what never runs; default: its index.
    """
    marks = marks or {}
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
