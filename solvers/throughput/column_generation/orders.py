"""Orders of the units in which few nets are open at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ....instances.common.arrays import Floats, Ints


def greedy_order(
    unit_ptr: Ints, unit_nets: Ints, net_ptr: Ints, net_pins: Ints, start: int, noise: Floats
) -> tuple[Ints, float]:
    """Order the units: next is the one that opens the fewest nets and closes the most.

    Parameters
    ----------
    unit_ptr, unit_nets
        Nets of each unit, as compressed rows.
    net_ptr, net_pins
        Units of each net, as compressed rows.
    start
        First unit.
    noise
        Shape (U,): breaks ties.

    Returns
    -------
    order, cost
        The order, and the sum over layers of 2 ** (open nets).
    """
    nets = [unit_nets[a:b].tolist() for a, b in pairwise(unit_ptr)]
    pins = [net_pins[a:b] for a, b in pairwise(net_ptr)]
    full = np.diff(net_ptr).tolist()
    left = list(full)
    score = noise + [len(own) - sum(full[e] == 1 for e in own) for own in nets]
    near = score + 1e6  # while nets are open, units of untouched nets come last
    order: list[int] = []
    cost, now_open, v = 0.0, 0, start
    while len(order) < len(nets):
        if order:
            v = int(np.argmin(near if now_open else score))
        order.append(v)
        score[v] = near[v] = np.inf
        for e in nets[v]:
            left[e] -= 1
            opens, lone = left[e] == full[e] - 1, left[e] == 1
            now_open += opens - (left[e] == 0)
            if opens or lone:
                score[pins[e]] -= float(opens) + float(lone)
                near[pins[e]] = score[pins[e]]
        cost += 2.0 ** min(now_open, 1000)
    return np.array(order), cost
