"""Which free leaves a call takes: a small knapsack."""

from __future__ import annotations

import numpy as np

from ....instances.common.arrays import Bools, Floats
from ....instances.common.kernel import kernel, uncounted
from . import arrays as col

#: Steps after which the search is left; many alike things to take make it exponential.
MOST_STEPS = 20_000


def knapsack(size: Floats, worth: Floats, free: float) -> tuple[float, Bools]:
    """Return the largest worth within `free`, and what to take for it; see `_knapsack`."""
    count = len(size)
    order, chosen, answer = np.empty(count, np.int64), np.zeros(count, np.bool_), np.zeros(count)
    best = _knapsack(size, worth, free, order, chosen, np.zeros(count, np.bool_))
    answer[order] = chosen
    return best, answer > 0


@kernel
def _knapsack(size, worth, free, order, chosen, taken):
    """Return the largest worth within `free`; write an order, and what of it to take for that.

    Depth-first, best ratio first, cut by the fractional bound. Sizes are above 0. If that takes
    too long the worth is the fractional bound, which is too high, and what is taken is the best
    found: right for bounds, and for plans that are judged again. `taken` is room to work in.
    """
    count = len(size)
    for i in range(count):
        chosen[i] = taken[i] = False
        j = i
        while j > 0 and worth[order[j - 1]] * size[i] < worth[i] * size[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    best, have, left, most = 0.0, 0.0, free, np.inf
    i, steps = 0, 0
    while True:
        steps += 1
        bound, room, j = have, left, i
        while j < count and size[order[j]] <= room:
            bound += worth[order[j]]
            room -= size[order[j]]
            j += 1
        if j < count:
            bound += worth[order[j]] * room / size[order[j]]
        if steps == 1:
            most = bound
        if steps > MOST_STEPS:
            best = most
            break
        if bound > best * (1 + 1e-12) and i < count:
            if size[order[i]] <= left:
                taken[i] = True
                have += worth[order[i]]
                left -= size[order[i]]
                if have > best:
                    best = have
                    for j in range(count):  # a slice takes seconds to compile
                        chosen[j] = taken[j]
            i += 1
            continue
        i -= 1
        while i >= 0 and not taken[i]:
            i -= 1
        if i < 0:
            break
        taken[i] = False
        have -= worth[order[i]]
        left += size[order[i]]
        i += 1
    return best


@uncounted
def best_saving(g, w, d, k, free):
    """Most transfer time that taking free leaves into the call can save within `free` bytes."""
    size, worth = w.leaf_size, w.leaf_worth
    count, total = 0, 0.0
    for i in range(d):
        x = w.unit[i, col.STACK]
        for u in range(g.unit[x, col.NODE], g.unit[x + 1, col.NODE]):
            if g.node[u, col.SINKS] == 1 and w.node[u, col.OUTSIDE] == 0:
                size[count], worth[count] = g.time[u, col.SINK_BYTES], g.transfer[k, u]
                count += 1
    for t in range(len(g.source)):
        if w.touched[t] == g.source[t, col.FEEDS]:
            size[count], worth[count] = g.source[t, col.BYTES], g.source[t, col.MOVED + k]
            count += 1
    kept = 0
    for i in range(count):
        if size[i] <= 0:
            total += worth[i]
        elif size[i] <= free and worth[i] > 0:
            size[kept], worth[kept] = size[i], worth[i]
            kept += 1
    order, chosen, taken = w.leaf_order, w.leaf_chosen, w.leaf_taken
    return total + _knapsack(size[:kept], worth[:kept], free, order, chosen, taken)
