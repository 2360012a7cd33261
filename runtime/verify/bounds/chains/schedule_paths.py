"""Longest paths through the actions of a schedule on a chain of stages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .....instances import Iteration
from .....instances.common.arrays import Floats, Ints
from .....instances.model.schedule import Kind
from ....schedules import make_schedule, schedule_of
from ....simulate.stages import chain

#: Ends of actions that are held at once.
TIMES = 5_000_000


@dataclass(frozen=True, eq=False)
class SchedulePaths:
    """The actions of P stages on D devices, in an order in which they can be executed.

    Parameters
    ----------
    which
        Shape (A, 2): stage of each action, and its kind: F, B, I or W.
    before
        Of each action, those that it waits for, by number.
    held
        Shape (D,): passes that a device has begun and not come back to at once: where it has one
        stage, the microbatches that this holds.
    """

    which: Ints
    before: tuple[tuple[int, ...], ...]
    held: Ints

    def longest(self, durations: Floats) -> tuple[float, Floats]:
        """Return the makespan, and how often a longest path has each action, shape (P, 4).

        Parameters
        ----------
        durations
            Shape (P, 4).
        """
        took = durations[self.which[:, 0], self.which[:, 1]].tolist()
        end: list[float] = []
        last: list[int] = []
        for own, waits in zip(took, self.before, strict=True):
            latest = max(waits, key=end.__getitem__, default=-1)
            end.append(own + (end[latest] if waits else 0.0))
            last.append(latest)
        counts = np.zeros(durations.shape)
        at = int(np.argmax(end))
        makespan = end[at]
        while at >= 0:
            counts[self.which[at, 0], self.which[at, 1]] += 1
            at = last[at]
        return makespan, counts

    def makespans(self, durations: Floats) -> Floats:
        """Return the makespans of many chains at once, shape (C,).

        Parameters
        ----------
        durations
            Shape (4, C, P).
        """
        width = max(1, TIMES // len(self.which))
        if durations.shape[1] > width:
            pieces = np.split(durations, range(width, durations.shape[1], width), axis=1)
            return np.concatenate([self.makespans(piece) for piece in pieces])
        end = np.zeros((len(self.which), durations.shape[1]))
        for action, (stage, kind) in enumerate(self.which.tolist()):
            for earlier in self.before[action]:
                np.maximum(end[action], end[earlier], out=end[action])
            end[action] += durations[kind, :, stage]
        return np.asarray(end.max(axis=0), np.float64)


def paths_of(problem: Iteration, stages: int, *, trains: bool) -> SchedulePaths:
    """Return the actions of so many stages.

    Parameters
    ----------
    trains
        Whether there are backward passes.
    """
    if problem.order:
        rows = sorted(problem.order.rows, key=lambda row: row[0].stage)
        schedule = schedule_of(rows, microbatches=problem.microbatches)
    else:
        where = problem.devices_of(stages)
        equal = chain([1.0] * stages, [1.0] * stages if trains else None, device=where)
        schedule = make_schedule(problem.schedule, equal, problem.microbatches)
    queues = [
        [(s, k, j) for s, k, j in table.tolist() if k <= Kind.W] for table in schedule.actions
    ]
    number: dict[tuple[int, int, int], int] = {}
    which: list[tuple[int, int]] = []
    before: list[tuple[int, ...]] = []
    place = [0] * stages
    while len(which) < sum(map(len, queues)):
        for d, queue in enumerate(queues):
            while place[d] < len(queue):
                stage, kind, j = queue[place[d]]
                waits = _waits_for(stage, kind, j, stages)
                if waits is not None and waits not in number:
                    break
                own = [] if waits is None else [number[waits]]
                if place[d]:
                    own.append(number[_named(*queue[place[d] - 1])])
                number[_named(stage, kind, j)] = len(which)
                which.append((stage, kind))
                before.append(tuple(own))
                place[d] += 1
    held = np.array([_most_held(queue, trains) for queue in queues], np.int64)
    return SchedulePaths(np.array(which, np.int64), tuple(before), held)


def _named(stage: int, kind: int, microbatch: int) -> tuple[int, int, int]:
    """Name an action by what others wait for: B and I, the gradients of inputs, are one."""
    return stage, Kind.B if kind == Kind.I else kind, microbatch


def _waits_for(stage: int, kind: int, microbatch: int, stages: int) -> tuple[int, int, int] | None:
    """Return whose data an action needs."""
    if kind == Kind.F:
        return (stage - 1, Kind.F, microbatch) if stage else None
    if kind == Kind.W:
        return stage, Kind.B, microbatch
    return (stage + 1, Kind.B, microbatch) if stage + 1 < stages else (stage, Kind.F, microbatch)


def _most_held(queue: list[tuple[int, int, int]], trains: bool) -> int:
    """Return how many microbatches are begun and not through at once."""
    steps = [int(kind == Kind.F) - (kind in (Kind.B, Kind.W)) for _, kind, _ in queue]
    return max(accumulate(steps), default=0) if trains else 1
