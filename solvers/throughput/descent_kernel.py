"""Kernel of a descent by moves of single units that lower the max-load, or even out the loads."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import inner, kernel


@inner
def _value(work, moved, gpipe, overlap):
    """Return the objective and the sum of squared loads.

    `work` and `moved`, shape (D, 2), are compute and transfer times by device, forward and
    backward.
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
def _add_flow(g, where, i, sign, moved, entered):
    """Add `sign` times the transfer times of node i's output to `moved`, shape (D, 2)."""
    a, side = where[g.source[i]], g.side[i]
    first, last = g.target_start[i], g.target_start[i + 1]
    for j in range(first, last):
        entered[where[g.target[j]]] = False
    through_host = False
    for j in range(first, last):
        b = where[g.target[j]]
        if b == a or entered[b]:
            continue
        entered[b] = True
        link = g.link[a, b]
        if link >= 0:
            moved[a, side] += sign * g.message[link, i]
            moved[b, side] += sign * g.message[link, i]
        else:
            through_host = True
            moved[b, side] += sign * g.transfer[b, i]
    if through_host:
        moved[a, side] += sign * g.transfer[a, i]


@inner
def _move(g, where, v, b, work, moved, entered):
    """Move unit v to device b, and update compute and transfer times, shape (D, 2)."""
    for r in range(g.of_start[v], g.of_start[v + 1]):
        _add_flow(g, where, g.of[r], -1.0, moved, entered)
    for side in range(2):
        work[where[v], side] -= g.compute[where[v], side, v]
        work[b, side] += g.compute[b, side, v]
    where[v] = b
    for r in range(g.of_start[v], g.of_start[v + 1]):
        _add_flow(g, where, g.of[r], 1.0, moved, entered)


@kernel
def move_units(g, where, order):
    """Move units of `where` until no single move improves; first improvement, in given order."""
    devices = len(g.capacity)
    work, moved = np.zeros((devices, 2)), np.zeros((devices, 2))
    used, entered = np.zeros(devices), np.zeros(devices, np.bool_)
    for v in range(len(where)):
        used[where[v]] += g.memory[v]
        for side in range(2):
            work[where[v], side] += g.compute[where[v], side, v]
    for i in range(len(g.source)):
        _add_flow(g, where, i, 1.0, moved, entered)
    best, squares = _value(work, moved, g.gpipe, g.overlap)
    improved = True
    while improved:
        improved = False
        for v in order:
            for b in range(devices):
                a = where[v]
                if b == a or used[b] + g.memory[v] > g.capacity[b]:
                    continue
                if g.compute[a, 0, v] == np.inf or g.compute[b, 0, v] == np.inf:
                    continue
                _move(g, where, v, b, work, moved, entered)
                value, power = _value(work, moved, g.gpipe, g.overlap)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= g.memory[v]
                    used[b] += g.memory[v]
                    best, squares = value, power
                    improved = True
                else:
                    _move(g, where, v, a, work, moved, entered)
