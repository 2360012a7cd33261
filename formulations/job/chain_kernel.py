"""Kernels that execute a chain of stages under a schedule, and count its longest path.

`in_turn` sorts a schedule's actions topologically, once; `execute` then finds the makespan for any
durations in one pass over them.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel


@kernel
def in_turn(first, table, microbatches, order, before):
    """Sort the actions of a chain topologically: each after those that it waits for.

    A microbatch's forward pass waits for that of the previous stage; its backward pass for that of
    the next stage, on the last stage for the forward pass; W waits for I of its stage.

    Device d's actions are the rows first[d] … first[d + 1] − 1 of `table`, shape (N, 3): stage,
    kind and microbatch. `order`, shape (N,), is set to the rows in sorted order, and `before`,
    shape (N, 2), to the places in this order of the previous action on the device and of the action
    whose data it needs; −1 for none. If actions wait for each other in a cycle, the rest is unset.
    """
    devices, stages = len(first) - 1, 0
    for i in range(len(table)):
        stages = max(stages, table[i, 0] + 1)
    # Place in the order of each stage's forward and backward pass by microbatch; −1: not placed.
    done = np.full((2 * stages, microbatches), -1, np.int64)
    previous = np.full(devices, -1, np.int64)
    at = first[:-1].copy()
    placed, moved = 0, True
    while moved:
        moved = False
        for d in range(devices):
            while at[d] < first[d + 1]:
                s, kind, j = table[at[d], 0], table[at[d], 1], table[at[d], 2]
                task = -1
                if kind == 0:
                    if s > 0:
                        task = 2 * (s - 1)
                elif kind == 3:
                    task = 2 * s + 1
                elif s == stages - 1:
                    task = 2 * s
                else:
                    task = 2 * (s + 1) + 1
                if task >= 0 and done[task, j] < 0:
                    break
                order[placed] = at[d]
                before[placed, 0] = previous[d]
                before[placed, 1] = done[task, j] if task >= 0 else -1
                if kind < 3:
                    done[2 * s + min(kind, 1), j] = placed
                previous[d] = placed
                placed += 1
                at[d] += 1
                moved = True


@kernel
def execute(actions, sent, duration, end, counts):
    """Execute a chain of stages in the order of its schedule and return the makespan, in O(N).

    Parameters
    ----------
    actions
        N actions, as `ChainActions`.
    sent
        Time of a message between devices.
    duration
        Shape (P, 4): time of an action by stage and kind.
    end
        Shape (N,): set to the end of each action.
    counts
        Shape (P, 4): set to the numbers of actions on a longest path. With P + 1 rows, the last row
        begins with the number of messages on it; with 0 rows, nothing is counted.
    """
    which, before, remote = actions
    makespan, last = 0.0, -1
    for i in range(len(which)):
        ready = 0.0
        if before[i, 0] >= 0:
            ready = end[before[i, 0]]
        if before[i, 1] >= 0:
            ready = max(ready, end[before[i, 1]] + sent * remote[i])
        ready += duration[which[i, 0], which[i, 1]]
        end[i] = ready
        if ready > makespan or last < 0:
            makespan, last = ready, i
    if len(counts) > 0:
        counts[:] = 0.0
        while last >= 0:
            counts[which[last, 0], which[last, 1]] += 1.0
            own, other = before[last]
            arrives = end[other] + sent * remote[last]
            if other >= 0 and (own < 0 or arrives > end[own]):
                if len(counts) > len(duration):
                    counts[len(duration), 0] += remote[last]
                last = other
            else:
                last = own
    return makespan
