"""Running lists of actions in steps of one action each: see `steps`."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel


@kernel
def run_in_steps(first, table, before_at, before_to, count, m):
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
