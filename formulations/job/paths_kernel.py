"""The execution of a chain of stages whose messages take time, and its longest path."""

from __future__ import annotations

from ...instances.common.kernel import kernel


@kernel
def execute_with_messages(which, before, duration, sent, end, counts):
    """Run a chain in the order of its schedule; return the seconds until all is done.

    Parameters
    ----------
    which
        Shape (N, 2): stage and kind of each action, in an order in which each comes after those
        that it waits for.
    before
        Shape (N, 2): the action before on the device, and the one whose data it needs; −1 for none.
    duration
        Shape (P, 4): of each kind.
    sent
        Seconds of a message between stages.
    end
        Shape (N,): set to when each action ends.
    counts
        Shape (P + 1, 4): set to the numbers of actions on a longest path; in the last row, first
        column, of messages.
    """
    stages = len(duration)
    makespan, last = 0.0, -1
    for i in range(len(which)):
        ready = 0.0
        if before[i, 0] >= 0:
            ready = end[before[i, 0]]
        if before[i, 1] >= 0:
            arrives = end[before[i, 1]]
            if which[before[i, 1], 0] != which[i, 0]:
                arrives += sent
            ready = max(ready, arrives)
        end[i] = ready + duration[which[i, 0], which[i, 1]]
        if end[i] > makespan or last < 0:
            makespan, last = end[i], i
    counts[:] = 0.0
    while last >= 0:
        counts[which[last, 0], which[last, 1]] += 1.0
        own, other = before[last]
        chosen = own
        if other >= 0:
            moved = which[other, 0] != which[last, 0]
            arrives = end[other] + (sent if moved else 0.0)
            if own < 0 or arrives > end[own]:
                chosen = other
                if moved:
                    counts[stages, 0] += 1.0
        last = chosen
    return makespan
