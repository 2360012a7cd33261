"""Blocks of a topology, found in its table of routes: devices nearer to each other than to others.

A block structure is a partition of the devices in which every route inside a block is cheaper than
every route between two blocks. Single linkage finds all of them: the levels of a minimum spanning
tree at which no component holds a route as long as the next level. The one with the widest step
between inside and across is taken.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Floats, Ints
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
    from scipy.cluster.hierarchy import fcluster, linkage  # takes 0.3 CPU s to import
    from scipy.spatial.distance import squareform

    cost = alpha * costs.latency + beta * costs.inverse
    tree = linkage(squareform(np.minimum(cost, cost.T), checks=False), "single")
    distance = tree[:, 2]
    step = distance[1:] / np.maximum(distance[:-1], 1e-300)
    for level in np.argsort(-step, kind="stable")[:MAX_LEVELS].tolist():
        if step[level] < MIN_STEP_RATIO:
            return whole
        label = fcluster(tree, distance[level], "distance")
        inside = float(cost.max(where=label[:, None] == label[None, :], initial=0.0))
        if inside * MIN_STEP_RATIO <= distance[level + 1]:
            _, first, named = np.unique(label, return_index=True, return_inverse=True)
            block: Ints = np.argsort(np.argsort(first))[named]  # numbered by first device
            return block
    return whole


def cheapest_across(pair_costs: Floats, block: Ints) -> float:
    """Return the least cost of a pair of devices in different blocks; `inf` without one."""
    apart = block[:, None] != block[None, :]
    return float(pair_costs.min(where=apart, initial=np.inf))
