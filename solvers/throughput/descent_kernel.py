"""Descents of a local search: moves that lower the objective, or make loads more even."""

from __future__ import annotations

import math

import numpy as np

from ...instances.common.kernel import inner, kernel


@inner
def value_of_loads(work, moved, gpipe, overlap):
    """Return the objective and the sum of squared loads.

    `work` and `moved` are compute and transfer times of each device, forward and backward; shape
    (D, 2).
    """
    forward, backward, total, squares = 0.0, 0.0, 0.0, 0.0
    for d in range(len(work)):
        if overlap:
            fw, bw = max(work[d, 0], moved[d, 0]), max(work[d, 1], moved[d, 1])
            load = max(work[d, 0] + work[d, 1], moved[d, 0] + moved[d, 1])
        else:
            fw, bw = work[d, 0] + moved[d, 0], work[d, 1] + moved[d, 1]
            load = fw + bw
        forward, backward = max(forward, fw), max(backward, bw)
        total = max(total, load)
        squares += load * load
    return (forward + backward if gpipe else total), squares


@inner
def _linked_value(g, where, entered):
    """Objective and sum of squared loads; `entered`, shape (D,), is room to work in."""
    devices = len(g.capacity)
    work, moved = np.zeros((devices, 2)), np.zeros((devices, 2))
    for v in range(len(where)):
        for side in range(2):
            work[where[v], side] += g.compute[where[v], side, v]
    entered[:] = -1
    for i in range(len(g.source)):
        a, side = where[g.source[i]], g.side[i]
        through_host = False
        for j in range(g.target_start[i], g.target_start[i + 1]):
            b = where[g.target[j]]
            if b == a or entered[b] == i:
                continue
            entered[b] = i
            link = g.link[a, b]
            if link >= 0:
                moved[a, side] += g.message[link, i]
                moved[b, side] += g.message[link, i]
            else:
                through_host = True
                moved[b, side] += g.transfer[b, i]
        if through_host:
            moved[a, side] += g.transfer[a, i]
    return value_of_loads(work, moved, g.gpipe, g.overlap)


@kernel
def move_linked_units(g, where, order):
    """Move units of `where` while that helps; first improvement, in the given order.

    O(U · D) moves a round, each priced in the size of the graph.
    """
    devices = len(g.capacity)
    used = np.zeros(devices)
    for v in range(len(where)):
        used[where[v]] += g.memory[v]
    entered = np.empty(devices, np.int64)
    best, squares = _linked_value(g, where, entered)
    improved = True
    while improved:
        improved = False
        for v in order:
            a = where[v]
            for b in range(devices):
                if b == a or used[b] + g.memory[v] > g.capacity[b]:
                    continue
                if g.compute[b, 0, v] == np.inf:
                    continue
                where[v] = b
                value, power = _linked_value(g, where, entered)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= g.memory[v]
                    used[b] += g.memory[v]
                    best, squares = value, power
                    improved = True
                    a = b
                else:
                    where[v] = a


@inner
def _shift(g, unit, a, b, count, moved):
    """Move `unit` from device a to b in the pin counts and transfer loads."""
    for i in range(g.net_start[unit], g.net_start[unit + 1]):
        e = g.net[i]
        for d, step in ((a, -1), (b, 1)):
            before = 0 < count[e, d] < g.pins[e]
            count[e, d] += step
            after = 0 < count[e, d] < g.pins[e]
            if before != after:
                sign = 1.0 if after else -1.0
                moved[d, 0] += sign * g.weight[d, 0, e]
                moved[d, 1] += sign * g.weight[d, 1, e]


@kernel
def move_units(g, where, order):
    """Move units of `where` while that helps; first improvement, in the given order."""
    compute, memory, capacity = g.compute, g.memory, g.capacity
    starts, nets, sizes = g.net_start, g.net, g.pins
    devices = len(capacity)
    work = np.zeros((devices, 2))
    moved = np.zeros((devices, 2))
    used = np.zeros(devices)
    count = np.zeros((len(sizes), devices), np.int64)
    for unit in range(len(where)):
        d = where[unit]
        work[d] += compute[d, :, unit]
        used[d] += memory[unit]
        for i in range(starts[unit], starts[unit + 1]):
            count[nets[i], d] += 1
    for e in range(len(sizes)):
        for d in range(devices):
            if 0 < count[e, d] < sizes[e]:
                moved[d] += g.weight[d, :, e]
    best, squares = value_of_loads(work, moved, g.gpipe, g.overlap)
    improved = True
    while improved:
        improved = False
        for unit in order:
            a = where[unit]
            for b in range(devices):
                if b == a or used[b] + memory[unit] > capacity[b]:
                    continue
                if math.isinf(compute[b, 0, unit]) or math.isinf(compute[a, 0, unit]):
                    continue
                work[a] -= compute[a, :, unit]
                work[b] += compute[b, :, unit]
                _shift(g, unit, a, b, count, moved)
                value, power = value_of_loads(work, moved, g.gpipe, g.overlap)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= memory[unit]
                    used[b] += memory[unit]
                    where[unit] = b
                    best, squares = value, power
                    improved = True
                    a = b
                else:
                    work[a] += compute[a, :, unit]
                    work[b] -= compute[b, :, unit]
                    _shift(g, unit, b, a, count, moved)
