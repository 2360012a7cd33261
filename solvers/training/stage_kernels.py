"""Inner loops over the configurations of a stage's units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.kernel import inner, kernel
from .knapsack_kernel import least_cost, ratio_rule


class UnitOptions(NamedTuple):
    """The options of units: those of unit i are item[i] … item[i + 1] − 1, with room for more.

    `cost` leaves the synchronisation of weights out, which depends on the replicas; `weight` is
    what it grows with. A size is size_a for each microbatch in flight and size_b.
    """

    item: NDArray[np.int64]
    cost: NDArray[np.float64]
    size_a: NDArray[np.float64]
    size_b: NDArray[np.float64]
    weight: NDArray[np.float64]


@kernel
def price_stage(data, units, inside, k, t, filled):
    """Fill the options of a stage's units on kind k at degree number t; return the transfer time.

    `units` has all and only those `inside`, shape (U,).
    """
    item, cost, size_a, size_b, weight = filled
    transfer = 0.0
    options = 0
    size = len(data.incident_start) - 1
    count = len(units)
    for i in range(count):
        u = units[i]
        for at in range(data.incident_start[u], data.incident_start[u + 1]):
            if not inside[data.other[at]]:
                transfer += data.edge_time[data.incident[at]]
        item[i] = options
        for c in range(data.first[t * size + u], data.first[t * size + u + 1]):
            cost[options] = data.time[c] * data.slowdown[k]
            for at in range(data.sync_start[c], data.sync_start[c + 1]):
                e = data.sync_edge[at]
                if not inside[data.edges[e, 0] + data.edges[e, 1] - u]:
                    cost[options] += data.sync_time[at]
            size_a[options] = data.per_microbatch[c]
            size_b[options] = data.fixed[c]
            weight[options] = data.weight[c]
            options += 1
    item[count] = options
    return transfer


@kernel
def configure(data, given, count, kappa, y, capacity, limit, decide, choice, gave_up):
    """Return the least Σ cost (times d: without transfer) of one option for each of some units.

    `given` are their `UnitOptions`, `count` is how many they are.
    """
    _, cost, size_a, size_b, weight = given
    item = given.item[: count + 1]
    options = item[-1]
    full = cost[:options] + kappa * weight[:options]
    size = size_a[:options] * y + size_b[:options]
    if data.greedy:
        return ratio_rule(item, full, size, capacity, limit, choice)
    return least_cost(item, full, size, capacity, limit, decide, choice, gave_up)


@inner
def fastest_options(data, p, t, units, options, quick):
    """Note cost and sizes of the fastest options for divisor number p; `inf` if p is forbidden."""
    item, cost, size_a, size_b, weight = options
    kappa = data.kappa[t, p]
    quick[p] = 0.0
    for i in range(len(units)):
        if not data.allowed[units[i], p]:
            quick[p, 0] = np.inf
            return
        best = item[i]
        value = cost[best] + kappa * weight[best]
        for o in range(item[i] + 1, item[i + 1]):
            another = cost[o] + kappa * weight[o]
            if another < value:
                best, value = o, another
        quick[p, 0] += value
        quick[p, 1] += size_a[best]
        quick[p, 2] += size_b[best]
