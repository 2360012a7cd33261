"""Options of a stage's units in the training DP: what they cost, and which to choose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...instances.model.arrays import Floats, Ints
from ...instances.model.kernel import inner, kernel
from .knapsack import least_cost, ratio_rule


class Options(NamedTuple):
    """The configurations of a stage's units, one unit after the other; room for all there are."""

    item: Ints  # (U + 1,) first option of each unit
    cost: Floats  # compute and transfer time, without the synchronisation of weights
    per_microbatch: Floats  # size for each microbatch in flight
    fixed: Floats  # size besides
    weight: Floats


def no_options(units: int, most: int) -> Options:
    """Return room for so many options of units."""
    item, (cost, per_microbatch, fixed, weight) = np.zeros(units + 1, np.int64), np.zeros((4, most))
    return Options(item, cost, per_microbatch, fixed, weight)


@kernel
def price_stage(data, units, count, inside, k, t, options):
    """Fill the options of a stage's units on kind k at degree number t; return the transfer time.

    Parameters
    ----------
    units, count
        Shape (U,), of which the first `count` are the stage.
    inside
        Shape (U,): whether a unit is in the stage.
    options
        Filled in.
    """
    transfer = 0.0
    filled = 0
    size = len(data.incident_start) - 1
    for i in range(count):
        u = units[i]
        for at in range(data.incident_start[u], data.incident_start[u + 1]):
            if not inside[data.other[at]]:
                transfer += data.edge_time[data.incident[at]]
        options.item[i] = filled
        for c in range(data.first[t * size + u], data.first[t * size + u + 1]):
            options.cost[filled] = data.time[c] * data.slowdown[k]
            for at in range(data.sync_start[c], data.sync_start[c + 1]):
                e = data.sync_edge[at]
                if not inside[data.edges[e, 0] + data.edges[e, 1] - u]:
                    options.cost[filled] += data.sync_time[at]
            options.per_microbatch[filled] = data.per_microbatch[c]
            options.fixed[filled] = data.fixed[c]
            options.weight[filled] = data.weight[c]
            filled += 1
    options.item[count] = filled
    return transfer


@kernel
def configure(data, options, count, kappa, y, capacity, limit, decide, choice, gave_up):
    """Return the least Σ cost (times d: without transfer) of one option for each of `count` units.

    Parameters
    ----------
    kappa
        Synchronisation time for each weight.
    y
        Microbatches in flight.
    capacity, limit, decide, choice, gave_up
        As of `least_cost`.
    """
    item = options.item[: count + 1]
    cost, size = np.empty(item[count]), np.empty(item[count])
    for o in range(item[count]):
        cost[o] = options.cost[o] + kappa * options.weight[o]
        size[o] = options.per_microbatch[o] * y + options.fixed[o]
    if data.greedy:
        return ratio_rule(item, cost, size, capacity, limit, choice)
    return least_cost(item, cost, size, capacity, limit, decide, choice, gave_up)


@kernel
def in_flight(data, d, behind):
    """Return y of a stage of d replicas with `behind` replicas in the stages after it."""
    if data.gpipe:
        return -(-data.microbatches // d)
    return -(-(behind + d) // d)


@inner
def look(data, p, t, units, count, options, quick):
    """Note cost and sizes of the fastest options for divisor number p; `inf` if p is forbidden.

    `quick` has the shape (P, 3); the stage is the first `count` of `units`.
    """
    kappa = data.kappa[t, p]
    quick[p, 0] = quick[p, 1] = quick[p, 2] = 0.0
    for i in range(count):
        if not data.allowed[units[i], p]:
            quick[p, 0] = np.inf
            return
        best = options.item[i]
        value = options.cost[best] + kappa * options.weight[best]
        for o in range(options.item[i] + 1, options.item[i + 1]):
            another = options.cost[o] + kappa * options.weight[o]
            if another < value:
                best, value = o, another
        quick[p, 0] += value
        quick[p, 1] += options.per_microbatch[best]
        quick[p, 2] += options.fixed[best]
