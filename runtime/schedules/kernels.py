"""The loop of list scheduling: see `patterns`."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel


@kernel
def place_tasks(placed, tasks, limits, where, replicas, m):
    """Give a free device backward passes first, then forward ones, then weight gradients.

    Of those the lowest microbatch, then the lowest `rank`. Returns rows of device, stage, pass and
    microbatch in the order of their start, and how many of them are filled. `where`, (P, most
    replicas), is the device of each replica of a stage, −1 behind the last.
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
                unswept = (nxt[h, 0] - nxt[h, 2]) // number[h] if present[s, 1] else 0
                for p in range(3):
                    j = nxt[h, p]
                    if j >= m or (p < 2 and not present[s, p]):
                        continue
                    if p == 2 and (not present[s, 1] or j >= nxt[h, 1]):
                        continue
                    if p < 2 and missing[2 * s + p, j] > 0:
                        continue
                    if p == 0 and flying >= limit[s]:
                        continue
                    if p == 0 and unswept >= weight_limit[s]:
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
