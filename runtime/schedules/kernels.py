"""The loop of list scheduling: see `patterns`.

Running lists of actions in steps of one action each: see `steps`.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel


@kernel
def place_tasks(placed, tasks, limits, where, replicas, m, split):
    """Give a free device backward passes first, then forward ones, then weight gradients.

    Of those the lowest microbatch, then the lowest `rank`. Returns rows of device, stage, pass and
    microbatch in the order of their start, and how many of them are filled. `where`, (P, most
    replicas), is the device of each replica of a stage, −1 behind the last; with `split`, weight
    gradients are passes of their own.
    """
    first, owner, replica, number = placed
    duration, present, rank, waits, edge_at, edge_to = tasks
    limit, weight_limit = limits
    devices = len(first) - 1
    held_count = len(owner)
    missing = np.zeros((len(waits), m), np.int32)
    for t in range(len(waits)):
        missing[t, :] = waits[t]
    nxt = np.zeros((held_count, 3), np.int64)
    for h in range(held_count):
        nxt[h, :] = replica[h]
    free = np.zeros(devices)  # when a device is free; inf while it waits
    doing = np.full((devices, 3), -1, np.int64)  # entry, pass, microbatch
    done = np.empty((3 * held_count * (m + 1), 4), np.int32)
    count = 0
    now = 0.0
    look = np.ones(devices, np.bool_)
    while True:
        for d in range(devices):
            if not look[d] or doing[d, 0] >= 0:
                continue
            look[d] = False
            best, side, key0, key1 = -1, -1, 0, 0
            for h in range(first[d], first[d + 1]):
                s = owner[h]
                flying = (nxt[h, 0] - nxt[h, 1]) // number[h] if present[s, 1] else 0
                unswept = (nxt[h, 0] - nxt[h, 2]) // number[h] if split and present[s, 1] else 0
                for p in range(3):
                    j = nxt[h, p]
                    if j >= m or (p < 2 and not present[s, p]):
                        continue
                    if p == 2 and (not split or not present[s, 1] or j >= nxt[h, 1]):
                        continue
                    if p < 2 and missing[2 * s + p, j] > 0:
                        continue
                    if p == 0 and flying >= limit[s]:
                        continue
                    if p == 0 and split and unswept >= weight_limit[s]:
                        continue
                    urgency = 0 if p == 1 else (1 if p == 0 else 2)
                    a = urgency * (m + 1) + j
                    b = rank[2 * s + min(p, 1)] * (m + 1) + j
                    if best < 0 or a < key0 or (a == key0 and b < key1):
                        best, side, key0, key1 = h, p, a, b
            if best >= 0:
                j = nxt[best, side]
                doing[d, 0], doing[d, 1], doing[d, 2] = best, side, j
                nxt[best, side] += number[best]
                free[d] = now + duration[owner[best], side]
                done[count, 0], done[count, 1] = d, owner[best]
                done[count, 2], done[count, 3] = side, j
                count += 1
        now = np.inf
        for d in range(devices):
            if doing[d, 0] >= 0 and free[d] < now:
                now = free[d]
        if now == np.inf:
            return done, count
        for d in range(devices):
            if doing[d, 0] >= 0 and free[d] <= now:
                s, p, j = owner[doing[d, 0]], doing[d, 1], doing[d, 2]
                doing[d, 0] = -1
                look[d] = True
                if p < 2:
                    for e in range(edge_at[2 * s + p], edge_at[2 * s + p + 1]):
                        t = edge_to[e]
                        missing[t, j] -= 1
                        if missing[t, j] == 0:
                            look[where[t // 2, j % replicas[t // 2]]] = True


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
