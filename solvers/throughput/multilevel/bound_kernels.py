"""Kernels of the bounds for large graphs: `hub_bound` and `least_load`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import kernel


class CoverTable(NamedTuple):
    """Table of two layers of states in turn: the least excess load of a set, by value in steps."""

    # (2, S, B): the least load of a set of a value, less that value; `inf` if there is no such set
    # within the limit
    excess: Floats
    span: Ints  # (2, S, 2): the least and the greatest value that a state has


@kernel
def most_valuable_set(frontier, gain, may, slope, scratch, members):
    """Return the greatest value of a set, and its transfers; write the set to `members`.

    `gain` is the value of each unit in order, `may`, (U, 2), whether it may be left out and taken,
    `slope` the value lost per unit of transfer time; the scratch arrays have shape (S,).
    """
    layers, step, cost = frontier
    best, came = scratch
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


@kernel
def extend_cover(places, frontier, units, bounds, table, found):
    """Extend a table over the units between two places.

    Write the least load of sets of a share, and the place where it was found, to `found`.

    `frontier` has layers, steps and costs, as of `build`, and the transfers from each state to the
    end if no more units are taken, (S,). `units` are the value of each unit, in steps, and its work
    above that, in order; `bounds` the fewest steps that make up a share, the most excess, and the
    load per step.
    """
    first, last = places
    layers, step, cost, rest = frontier
    value, more = units
    share, most, worth = bounds
    excess, span = table
    size = excess.shape[2]
    for i in range(first, last):
        now, after = i % 2, (i + 1) % 2
        begin = layers[i + 1]
        later = layers[i + 2] - begin
        for y in range(later):
            excess[after, y, :] = float("inf")
            span[after, y, 0], span[after, y, 1] = size, -1
        for x in range(begin - layers[i]):
            low = span[now, x, 0]
            for choice in range(2):
                y = step[layers[i] + x, choice] - begin
                shift = choice * value[i]
                high = min(span[now, x, 1], size - 1 - shift)
                if y < 0 or high < low:
                    continue
                paid = cost[layers[i] + x, choice] + choice * more[i]
                here, there = excess[now, x], excess[after, y]
                for b in range(low, high + 1):
                    there[b + shift] = min(there[b + shift], here[b] + paid)
                span[after, y, 0] = min(span[after, y, 0], low + shift)
                span[after, y, 1] = max(span[after, y, 1], high + shift)
        for y in range(later):
            low, high = size, -1
            for b in range(span[after, y, 0], span[after, y, 1] + 1):
                if excess[after, y, b] > most:
                    excess[after, y, b] = float("inf")
                    continue
                low, high = min(low, b), b
                if b >= share and excess[after, y, b] + rest[begin + y] + b * worth < found[0]:
                    found[0], found[1] = excess[after, y, b] + rest[begin + y] + b * worth, i
            span[after, y, 0], span[after, y, 1] = low, high
