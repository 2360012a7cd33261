"""The least load of a call that meets a path in an interval, by minimum cuts."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import inner, kernel
from .mincut_kernel import INSIDE, OUTSIDE, UNDECIDED, least_load


@kernel
def least_of_interval(a, b, path, reach, compute, graph, held, seen, side, scratch):
    """L(a, b) by minimum cuts, the least over the kinds.

    `graph` has the weights of the nets, and nets and pins as compressed rows; `held` the memory of
    units, of devices and of colours, and the colour of each unit. `seen` of each colour, `side` of
    each unit and `scratch` are room to work in.
    """
    weight, pin_start, pins, net_start, nets = graph
    memory, capacity, tie, tie_memory = held
    kinds, units = compute.shape
    size = len(path)
    need = 0.0
    seen[:] = False
    side[:] = UNDECIDED
    for u in range(units):
        if reach[path[a], u] and reach[u, path[b]]:
            side[u] = INSIDE
            need += _bytes(u, memory, tie, tie_memory, seen)
        elif (a > 0 and reach[u, path[a - 1]]) or (b < size - 1 and reach[path[b + 1], u]):
            side[u] = OUTSIDE
    least = np.inf
    for k in range(kinds):
        if need <= capacity[k]:
            value = least_load(
                side, compute[k], weight[k], pin_start, pins, net_start, nets, scratch
            )
            least = min(least, value)
    return least


@inner
def _bytes(u, memory, tie, tie_memory, seen):
    """Memory that unit `u` adds: its own, or that of its whole colour the first time."""
    if tie[u] < 0:
        return memory[u]
    if seen[tie[u]]:
        return 0.0
    seen[tie[u]] = True
    return tie_memory[tie[u]]
