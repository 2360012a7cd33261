"""Mixtures of a step's ends: sums that bound an objective which is a maximum.

A step with overlap takes until its latest end, one with a placement the sum of that over its
phases. A mixture weighs the ends of each phase, with weights of sum 1. It is a sum over operators
and tensors, which all methods can minimise, and its minimum is a bound. The first mixture is the
end of computing alone, exact if all buckets are hidden behind it or all groups are alike; each next
one has the largest minimum over the shardings found so far (cutting planes).

See J. E. Kelley, "The cutting-plane method for solving convex programs", 1960.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...formulations.linear import MatrixEntries, least_cost
from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import least_bytes, no_sharding_fits
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search

#: Mixtures that are tried, at most.
MOST_MIXTURES = 16


def minimise_sums(
    costs: ShardingCosts,
    search: Search[Solution],
    minimise: Callable[[ShardingCosts, Search[Solution]], Ints | None],
) -> None:
    """Minimise the objective if it is a sum, else mixtures of its ends in turn.

    `minimise` raises the bound to that of a sum, and returns the choices found, if any.
    """
    if costs.ends is None:
        minimise(costs, search)
        return
    weights = costs.ends.weights
    found: list[Floats] = []
    for _ in range(MOST_MIXTURES):
        chosen = minimise(costs.mixed(weights), search)
        if search.is_over() or not isinstance(search.best, TensorSharding):
            return
        if chosen is None:
            chosen = costs.chosen(search.best.signature)
            assert chosen is not None
        found.append(costs.ends_of(chosen))
        better = _best_weights(np.array(found), costs.ends.phases)
        if better is None or np.array_equal(better, weights):
            return  # no mixture of a larger bound is known
        weights = better


def _best_weights(ends: Floats, phases: Ints) -> Floats | None:
    """Return the weights of the ends (columns) whose mixture is largest for its least sharding.

    Those of each phase, which begins at an end in `phases`, have sum 1. None where HiGHS does not
    find them.
    """
    count, size = ends.shape
    phase = np.searchsorted(phases, np.arange(size), "right") - 1
    table = np.zeros((count + len(phases), size + 1))
    table[:count, :size], table[:count, size] = ends / (ends.max() or 1.0), -1.0
    table[count + phase, np.arange(size)] = 1.0
    row, column = np.nonzero(table)
    entries = MatrixEntries(row, column, table[row, column])
    low, high = np.zeros(len(table)), np.full(len(table), np.inf)
    low[count:] = high[count:] = 1.0
    cost = np.zeros(size + 1)
    cost[size] = -1.0
    found = least_cost(cost, np.zeros(size + 1), entries, low, high)
    if found is None:
        return None
    weights: Floats = np.maximum(found.x[:size], 0.0)
    weights /= np.add.reduceat(weights, phases)[phase]
    return weights


def is_too_small(costs: ShardingCosts, search: Search[Solution]) -> bool:
    """Return whether every sharding exceeds the memory, and tell the search so."""
    room = costs.problem.memory_bytes
    if room is None or sum(least_bytes(costs)) <= float(room_of(room)):
        return False
    search.prove_infeasible(no_sharding_fits(costs))
    return True
