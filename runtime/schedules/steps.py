"""Which step each action of a schedule takes, and the table that shows it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Ints
from ..simulate.stages import BACKWARD, FORWARD, StageGraph
from .actions import TRANSFERS, Action, Kind, Schedule
from .steps_kernel import run_in_steps

#: Steps that a table shows before and after the marked place.
SHOWN = 6
#: The pass that a kind belongs to.
NEEDS = {Kind.F: FORWARD, Kind.B: BACKWARD, Kind.I: BACKWARD, Kind.W: BACKWARD}


class ScheduleError(InputError):
    """A schedule that cannot run: one line that says why, and the place in a table of steps."""

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table

    def __str__(self) -> str:
        """Return the line and, below it, the table."""
        return f"{super().__str__()}\n{self.table}"


def execution_steps(schedule: Schedule, stages: StageGraph) -> tuple[list[Ints], Ints]:
    """Return at which step each action runs if all take one step, and how many run per device."""
    count = stages.count
    remote = [stages.replicas[a // 2] != stages.replicas[b // 2] for a, b in stages.edges.tolist()]
    kinds = {int(k) for t in schedule.actions for k in np.unique(t[:, 1])}
    explicit = bool(kinds & set(TRANSFERS))
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
    step, reached = run_in_steps(first, table, at, to, count, schedule.microbatches)
    return [step[first[d] : first[d + 1]] for d in range(len(first) - 1)], reached


def deadlock(schedule: Schedule, stages: StageGraph) -> ScheduleError:
    """Return the error that says who waits for what, with the places marked."""
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
    """Return a table with a row per step and a column per device.

    Parameters
    ----------
    marks
        Actions (device, index) to put between ``>>`` and ``<<``; rows far from them are left out.
    step
        Step of each action, −1 for what never runs; default: its index.
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
