"""Blocks of a topology, found in its table of routes: devices nearer to each other than to others.

A block structure is a partition of the devices in which every route inside a block is cheaper than
every route between two blocks. Single linkage finds all of them: the levels of a minimum spanning
tree at which no component holds a route as long as the next level. The one with the widest step
between inside and across is taken.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ...instances.model.arrays import Floats, Ints
from .costs import MappingCosts

#: Least ratio of the cheapest route across to the dearest inside.
MIN_STEP_RATIO = 1.5
#: Levels of the spanning tree that are tried, widest step first.
MAX_LEVELS = 8


def find_blocks(costs: MappingCosts) -> Ints:
    """Return the number of each device's block, shape (D,); all 0 if there is no structure.

    Routes are compared by what all messages of a batch would cost on them. O(D²) time.
    """
    alpha, beta = costs.boundary.sum(axis=0) + costs.ring.sum(axis=0)
    whole = np.zeros(costs.size, np.int64)
    if costs.size < 3 or alpha + beta == 0:
        return whole
    u, v, weight = _spanning_tree(costs.latency, costs.inverse, alpha, beta)
    order = np.argsort(weight, kind="stable")
    u, v, weight = u[order], v[order], weight[order]
    step = weight[1:] / np.maximum(weight[:-1], 1e-300)
    for level in np.argsort(-step, kind="stable")[:MAX_LEVELS].tolist():
        if step[level] < MIN_STEP_RATIO:
            return whole
        block: Ints = _components(costs.size, u[: level + 1], v[: level + 1])
        if _dearest_inside(
            costs.latency, costs.inverse, alpha, beta, block
        ) * MIN_STEP_RATIO <= float(weight[level + 1]):
            return block
    return whole


@njit(cache=True)
def _spanning_tree(latency, inverse, alpha, beta):  # type: ignore[no-untyped-def]
    """Prim's algorithm on the complete graph, without a table of its own."""
    size = len(latency)
    near = np.full(size, np.inf)
    parent = np.zeros(size, np.int64)
    open_ = np.ones(size, np.bool_)
    u, v, weight = np.empty(size - 1, np.int64), np.empty(size - 1, np.int64), np.empty(size - 1)
    d = 0
    for k in range(size - 1):
        open_[d] = False
        best, least = -1, np.inf
        for e in range(size):
            if open_[e]:
                cost = alpha * latency[d, e] + beta * inverse[d, e]
                if cost < near[e]:
                    near[e], parent[e] = cost, d
                if near[e] < least:
                    best, least = e, near[e]
        u[k], v[k], weight[k] = parent[best], best, least
        d = best
    return u, v, weight


@njit(cache=True)
def _components(size, u, v):  # type: ignore[no-untyped-def]
    """Numbers 0, 1, … of the components of a forest, by first device."""
    label = np.arange(size)
    for k in range(len(u)):
        a, b = label[u[k]], label[v[k]]
        label[label == max(a, b)] = min(a, b)
    names = np.unique(label)
    return np.searchsorted(names, label)


@njit(cache=True)
def _dearest_inside(latency, inverse, alpha, beta, block):  # type: ignore[no-untyped-def]
    worst = 0.0
    for d in range(len(block)):
        for e in range(len(block)):
            if block[d] == block[e] and d != e:
                worst = max(worst, alpha * latency[d, e] + beta * inverse[d, e])
    return worst


def cheapest_across(pair_costs: Floats, block: Ints) -> float:
    """Return the least cost of a pair of devices in different blocks; `inf` without one."""
    apart = block[:, None] != block[None, :]
    return float(pair_costs.min(where=apart, initial=np.inf))
