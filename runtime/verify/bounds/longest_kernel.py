"""Longest paths through a schedule's order of actions, for many durations of its passes."""

from __future__ import annotations

from ....instances.common.kernel import kernel


@kernel
def count_longest(steps, duration, sent, end, tally, messages):
    """Count how often the longest path has each task, and messages, under every duration.

    Parameters
    ----------
    steps
        `ScheduleSteps` of N actions.
    duration
        Shape (tasks, D).
    sent
        Seconds of a message.
    end
        Shape (N + 1,): zeros, written to; the last stays, where nothing is before an action.
    tally
        Shape (D, tasks): zeros, to be counted in.
    messages
        Shape (D,): the same.
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
