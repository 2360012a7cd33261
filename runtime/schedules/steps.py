"""Which step each action of a schedule takes, and the table that shows it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Ints
from ...instances.common.kernel import kernel
from ..simulate.stages import BACKWARD, FORWARD, StageGraph
from .actions import TRANSFERS, Action, Kind, Schedule

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
    step, reached = _steps(first, table, at, to, count, schedule.microbatches)
    return [step[first[d] : first[d + 1]] for d in range(len(first) - 1)], reached


@kernel
def _steps(first, table, before_at, before_to, count, m):
    """Run the lists of all devices in steps of one action each.

    Shapes: `first` (D + 1,) begins each device's rows of `table`, (N, 3): stage, kind, microbatch;
    `before_to` lists from `before_at` on the points that each point waits for; `count` stages,
    m microbatches. Returns the step of each action, −1 if it never runs, and where each device
    ended, shape (D,).
    """
    devices = len(first) - 1
    done = np.full((7 * count, m), -1, np.int64)  # 6P …: input gradients ended, for W
    arrived = np.zeros((count, m), np.int64)
    replicas = np.zeros((count, m), np.int64)
    step = np.full(len(table), -1, np.int64)
    for i in range(len(table)):
        if table[i, 1] == 8:
            replicas[table[i, 0], table[i, 2]] += 1
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
                    arrived[s, j] += 1
                    moved = True
                able = arrived[s, j] == replicas[s, j]
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
