"""The inner loop of the least load of a share of the work: see `least_load`."""

from __future__ import annotations

from typing import NamedTuple

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import kernel


class Table(NamedTuple):
    """What is known of the states of two layers in turn, by value.

    Parameters
    ----------
    excess
        Shape (2, S, B): the least load of a set of a value, less that value; `inf` if there is none
        within the limit.
    span
        Shape (2, S, 2): the least and the greatest value that a state has.
    """

    excess: Floats
    span: Ints


@kernel
def extend(places, layers, step, cost, rest, value, more, bounds, table, found):
    """Extend a table over the units from a first place up to a last, without it.

    Parameters
    ----------
    places
        The first and the last.
    layers, step, cost
        Of a frontier, as of `build`.
    rest
        Shape (S,): transfers still to come if all units left are out.
    value, more
        Of each unit, in order: its value, in steps, and by how much its work is above it.
    bounds
        Fewest steps that are a share, most excess, and the worth of a step.
    found
        Shape (2,): the least load of sets that are a share, and the place at which it was found.
    """
    first, last = places
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
