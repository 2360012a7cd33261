"""The inner loop of the bound by hubs: see `hubs`."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel


@kernel
def dearest(layers, step, cost, gain, may, slope, best, came, members):
    """Return the worth of a set that is worth most and its transfers; write it to `members`.

    Parameters
    ----------
    layers, step, cost
        Of a frontier, as of `build`.
    gain, may
        Of each unit, in order: what it is worth, shape (U,), and whether it may be left out and
        taken, shape (U, 2).
    slope
        What a unit of transfer time takes from the worth.
    best, came
        Shape (S,): scratch.
    members
        Shape (U,), by place in the order: 1 for units that are taken, and 0.
    """
    for x in range(len(best)):
        best[x] = -np.inf
    best[0] = 0.0
    size = len(gain)
    for i in range(size):
        for x in range(layers[i], layers[i + 1]):
            for choice in range(2):
                y = step[x, choice]
                if y < 0 or not may[i, choice]:
                    continue
                worth = best[x] - slope * cost[x, choice] + gain[i] * choice
                if worth > best[y]:
                    best[y] = worth
                    came[y] = 2 * x + choice
    x = layers[size]
    worth, paid = best[x], 0.0
    if worth > -np.inf:
        for i in range(size - 1, -1, -1):
            choice = came[x] % 2
            members[i] = choice
            x = came[x] // 2
            paid += cost[x, choice]
    return worth, paid
