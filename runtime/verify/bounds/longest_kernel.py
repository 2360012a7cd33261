"""Longest paths through a schedule's order of actions, for many durations of its passes."""

from __future__ import annotations

import numpy as np

from ....instances.common.arrays import Floats
from ....instances.common.kernel import kernel
from ....instances.costs.layout import Layout
from ...estimate import schedule_steps
from .layout_probes import Path


@kernel
def count_longest(steps, duration, sent, end, tally, messages):
    """Count how often the longest path has each task, and messages, under every duration.

    `steps` are `ScheduleSteps` of N actions, `duration` of tasks has shape (tasks, D), and `sent`
    is the seconds of a message. The counts are added to `tally`, shape (D, tasks), and `messages`,
    (D,); `end`, (N + 1,), is scratch, whose last entry stays 0. All three are zeros at first.
    """
    task, before, needs, remote = steps.task, steps.before, steps.needs, steps.remote
    count = len(task)
    for d in range(len(messages)):
        last = 0
        for i in range(count):
            arrives = end[needs[i]] + remote[i] * sent
            end[i] = max(end[before[i]], arrives) + duration[task[i], d]
            if end[i] > end[last]:
                last = i
        while last < count:
            tally[d, task[last]] += 1.0
            own, other = before[last], needs[last]
            arrives = end[other] + remote[last] * sent
            if other < count and (own == count or arrives > end[own]):
                messages[d] += remote[last]
                last = other
            else:
                last = own


def longest_paths(layout: Layout, passes: Floats, sent: float) -> list[Path]:
    """Return the longest path of a schedule, and those with each rank 3 % or 50 % slower."""
    p, stages = layout.pipeline, layout.stages
    steps = schedule_steps(layout.schedule.value, p, layout.chunks, layout.microbatches)
    kinds = 1 + 2 * p
    scale = np.ones((stages, kinds))
    for rank in range(p):
        own = list(layout.rank_stages(rank))
        scale[own, 1 + rank] = 1.03
        scale[own, 1 + p + rank] = 1.5
    duration = steps.durations(*(passes[:, [kind]] * scale for kind in range(3)))
    end, messages = np.zeros(len(steps.task) + 1), np.zeros(kinds)
    tally = np.zeros((kinds, 4 * stages))
    count_longest(steps, duration, sent, end, tally, messages)
    found = []
    for row, moved in zip(tally.reshape(kinds, stages, 4), messages, strict=True):
        forward, whole, inputs, weights = row.T
        path = np.stack((forward, whole + inputs, weights - inputs), axis=1)
        found.append((path, float(moved)))
    return found
