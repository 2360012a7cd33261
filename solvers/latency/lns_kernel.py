"""Inner loop of the local search over calls: random moves."""

from __future__ import annotations

import numpy as np

from ...formulations.latency.execute_kernel import execute
from ...instances.common.kernel import kernel


@kernel
def random_moves(flat, slot, slots, room, calls, units, value, draws):
    """Try random moves of units, keep those that do not raise the latency, and return the latency.

    `slot`, shape (n,), is the number of each node's call, −1 on a CPU, and changes in place; `room`
    is the memory of each accelerator in bytes, `units` the nodes of each unit as compressed rows,
    `draws`, shape (moves, 4), random numbers in [0, 1).
    """
    start, members = units
    groups = len(start) - 1
    used = np.zeros(len(room))
    for v in range(len(slot)):
        if slot[v] >= 0:
            used[slot[v] // calls] += flat.memory[v]
    kept = np.empty(len(slot), np.int64)
    for m in range(len(draws)):
        g = int(draws[m, 0] * groups)
        low, high = start[g], start[g + 1]
        # target: a neighbour's call or the CPUs if it is there; else any call, or the CPUs
        v = members[low + int(draws[m, 1] * (high - low))]
        ins = flat.pred_start[v + 1] - flat.pred_start[v]
        outs = flat.succ_start[v + 1] - flat.succ_start[v]
        pick = int(draws[m, 2] * (ins + outs + 1))
        if pick < ins:
            to = slot[flat.pred[flat.pred_start[v] + pick]]
        elif pick < ins + outs:
            to = slot[flat.succ[flat.succ_start[v] + pick - ins]]
        else:
            to = int(draws[m, 3] * (len(slots.kind) + 1)) - 1
        if to == slot[v] and calls == 1:
            continue
        size, possible, same = 0.0, True, True
        for i in range(low, high):
            u = members[i]
            size += flat.memory[u]
            time = flat.cpu[u] if to < 0 else flat.compute[slots.kind[to], u]
            possible &= time < np.inf
            same &= slot[u] == to
            kept[i - low] = slot[u]
        if same or not possible:
            continue
        home = slot[v] // calls if slot[v] >= 0 else -1
        there = to // calls if to >= 0 else -1
        if there >= 0 and there != home and used[there] + size > room[there]:
            continue
        if calls > 1 and there >= 0 and there == home:
            slot[v] = to  # only this node of the unit moves within the accelerator
        else:
            for i in range(low, high):
                slot[members[i]] = to
        new = execute(flat, slot, slots)[0]
        if new <= value:
            value = new
            if home != there:
                if home >= 0:
                    used[home] -= size
                if there >= 0:
                    used[there] += size
        else:
            for i in range(low, high):
                slot[members[i]] = kept[i - low]
    return value
