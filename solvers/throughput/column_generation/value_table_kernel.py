"""The inner loop of the best sets by value: the least load of a set of each value, by state."""

from __future__ import annotations

from typing import NamedTuple

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import kernel


class Units(NamedTuple):
    """What units add to a set, in order; shape (U,) each.

    Parameters
    ----------
    value
        In whole parts.
    load, allowed
        Compute time, and whether it may be taken.
    """

    value: Ints
    load: Floats
    allowed: Bools


class Table(NamedTuple):
    """The least load of parts of sets before each state, by value in whole parts.

    Parameters
    ----------
    load
        Shape (S, B); `inf` where there is none that matters.
    span
        Shape (S, 2): the least and the greatest value that a state has.
    """

    load: Floats
    span: Ints


@kernel
def fill(arcs, units, bounds, hope, table, places):
    """Fill the rows of the states between two places.

    Parameters
    ----------
    arcs
        Steps, from `arcs_forward`.
    bounds
        Most load; the value, in parts, that a set must exceed; what a unit of load left is worth.
    hope
        Shape (S,): the most, in parts, that what comes after a state adds, its load at that worth
        taken off.
    """
    ptr, source, taken, cost = arcs
    value, load, allowed = units
    limit, floor, slope = bounds
    least, span = table
    size = least.shape[1]
    for x in range(places[0], places[1]):
        low, high = size, -1
        for j in range(ptr[x], ptr[x + 1]):
            shift = value[taken[j]] if taken[j] >= 0 else 0
            low = min(low, span[source[j], 0] + shift)
            high = max(high, span[source[j], 1] + shift)
        high = min(high, size - 1)
        for b in range(low, high + 1):
            least[x, b] = float("inf")
        for j in range(ptr[x], ptr[x + 1]):
            unit, before = taken[j], source[j]
            shift, more = 0, cost[j]
            if unit >= 0:
                if not allowed[unit]:
                    continue
                shift = value[unit]
                more += load[unit]
            last = min(span[before, 1], size - 1 - shift)
            for b in range(span[before, 0], last + 1):
                now = least[before, b] + more
                if now < least[x, b + shift] and now <= limit:
                    least[x, b + shift] = now
        span[x, 0], span[x, 1] = size, -1
        for b in range(low, high + 1):
            if b + hope[x] + slope * (limit - least[x, b]) <= floor:
                least[x, b] = float("inf")
            elif least[x, b] < float("inf"):
                span[x, 0] = min(span[x, 0], b)
                span[x, 1] = b
