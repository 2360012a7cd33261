"""Kernels of label setting along a frontier: labels by rounded load, and a table by whole value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import inner, kernel
from .frontier import Arcs


class UnitTerms(NamedTuple):
    """Values and loads of units along the order; all of shape (U,)."""

    value: Ints  # values, in multiples of 1 / parts
    load: Floats  # load, allowed: compute time, and whether it may be taken
    allowed: Bools


class ValueTable(NamedTuple):
    """Table of the least load of partial sets up to each state, by value in whole parts."""

    load: Floats  # (S, B): `inf` if there is no useful set
    span: Ints  # (S, 2): least and greatest value at each state


class Terms(NamedTuple):
    """Values and loads that units and transfers add to a set."""

    # price, load, allowed: (U,), along the order: value and compute time of each unit, and whether
    # it may be taken
    price: Floats
    load: Floats
    allowed: Bools
    # charge, transfer_price: share of the transfers that counts as load (0 if they overlap), and
    # value lost per unit of transfer time
    charge: float
    transfer_price: float


class Sweep(NamedTuple):
    """One direction of label setting: its arcs, and the limits on load and value."""

    forward: bool  # forward, arcs: the direction, and the steps into each state in it
    arcs: Arcs
    terms: Terms  # values and loads of units and transfers
    limit: float  # limit, floor: most load; the value that a set must exceed
    floor: float


class FrontierLabels(NamedTuple):
    """Labels of one direction at one resolution: value and load of partial sets."""

    # begin, counts: (S,): labels of state x are begin[x] … begin[x] + counts[x] − 1, by increasing
    # load and value
    begin: Ints
    counts: Ints
    value: Floats  # value, used: value and load of each label
    used: Floats
    # of each label: 2·(previous label) + (1 if the unit between is taken)
    origin: Ints

    def last(self, forward: bool) -> range:
        """Return the labels of complete sets."""
        x = len(self.begin) - 1 if forward else 0
        return range(int(self.begin[x]), int(self.begin[x] + self.counts[x]))


def hope(forward: bool, arcs: Arcs, terms: Terms, slope: float) -> Floats:
    """Return the greatest value of the part of a set before each state (after, if not `forward`).

    Each unit of load costs `slope`. The other terms are as in `extend`; shape (S,).
    """
    best = np.full(len(arcs[0]) - 1, -np.inf)
    _hope(forward, arcs, terms, slope, best)
    return best


@kernel
def _hope(forward, arcs, terms, slope, best):
    """Write the bounds of `hope`."""
    ptr, source, taken, cost = arcs
    price, load, allowed, charge, transfer_price = terms
    states = len(ptr) - 1
    best[0 if forward else states - 1] = 0.0
    for i in range(1, states):
        x = i if forward else states - 1 - i
        for j in range(ptr[x], ptr[x + 1]):
            unit = taken[j]
            worth = best[source[j]] - (transfer_price + slope * charge) * cost[j]
            if unit >= 0:
                if not allowed[unit]:
                    continue
                worth += price[unit] - slope * load[unit]
            best[x] = max(best[x], worth)


def fresh_buckets(buckets: int) -> tuple[Floats, Floats, Ints]:
    """Return empty buckets in which `extend` merges labels."""
    size = buckets + 2
    return np.full(size, -np.inf), np.empty(size), np.empty(size, np.int64)


@kernel
def extend(sweep, merged, hopes, rest, state, labels, budget):
    """Extend labels of partial sets state by state, until the work `budget` is spent.

    Return whether all states are done.

    A label is the value and the load of the part of a set before a state (after it, if not
    `forward`). Labels of one state whose loads fall into one bucket become one with the greatest
    value and the smallest load, and labels with more load and no more value are dropped. This is a
    relaxation: every set within the load is represented by labels of at least its value and at most
    its load. A label is also dropped if no label of the other direction (`rest`) completes it to a
    value above the floor within the limit, or nothing can, by `hopes`: slopes, shape (R,), and
    `hope` of the other direction at each, (S, R).

    `state` is read and written: states done, labels so far, 1 if the arrays must grow. Initially
    the first state has a label; `merged` is as `fresh_buckets` returns it.
    """
    forward, arcs, terms, limit, floor = sweep
    ptr, source, taken, cost = arcs
    price, load, allowed, charge, transfer_price = terms
    slopes, hoped = hopes
    has_rest, (rest_begin, rest_count, rest_value, rest_used, _) = rest
    begin, count, value, used, _ = labels
    best_value, best_used, best_from = merged
    buckets = len(best_value) - 2
    scale = buckets / limit if limit > 0 else 0.0
    states = len(ptr) - 1
    work = 0
    state[2] = 0
    while state[0] < states and work < budget:
        x = state[0] if forward else states - 1 - state[0]
        room = 0
        for j in range(ptr[x], ptr[x + 1]):
            room += count[source[j]]
        if state[1] + min(room, buckets + 2) > len(value):
            state[2] = 1
            break
        low = buckets + 2
        high = low - buckets - 3  # −1; for a literal, `_keep` would be compiled again
        for j in range(ptr[x], ptr[x + 1]):
            unit = taken[j]
            more = charge * cost[j]
            plus = -transfer_price * cost[j]
            choice = 0
            if unit >= 0:
                if not allowed[unit]:
                    continue
                choice = 1
                more += load[unit]
                plus += price[unit]
            first = begin[source[j]]
            other = rest_begin[x] + rest_count[x] - 1 if has_rest else 0
            for k in range(first, first + count[source[j]]):
                now = used[k] + more
                if now > limit:
                    break
                worth = value[k] + plus
                work += 1
                hopeless = False
                for r in range(len(slopes)):
                    if worth + hoped[x, r] + slopes[r] * (limit - now) <= floor:
                        hopeless = True
                        break
                if hopeless:
                    continue
                if has_rest:
                    while other >= rest_begin[x] and now + rest_used[other] > limit:
                        other -= 1
                    if other < rest_begin[x]:
                        break
                    if worth + rest_value[other] <= floor:
                        continue
                at = int(now * scale)
                low = min(low, at)
                high = max(high, at)
                if best_value[at] == -np.inf:
                    best_value[at] = worth
                    best_used[at] = now
                    best_from[at] = 2 * k + choice
                else:
                    if worth > best_value[at]:
                        best_value[at] = worth
                        best_from[at] = 2 * k + choice
                    if now < best_used[at]:
                        best_used[at] = now
        _keep(merged, low, high, labels, x, state)
        work += high - low + 10 if high >= low else 10
    return state[0] == states


@inner
def _keep(merged, low, high, labels, x, state):
    """Take the labels of state x out of the buckets low … high, in order of load and value."""
    best_value, best_used, best_from = merged
    begin, count, value, used, origin = labels
    kept = begin[x] = state[1]
    most = -np.inf
    for at in range(low, high + 1):
        if best_value[at] > most:
            most = best_value[at]
            value[kept] = most
            used[kept] = best_used[at]
            origin[kept] = best_from[at]
            kept += 1
        best_value[at] = -np.inf
    count[x] = kept - begin[x]
    state[0] += 1
    state[1] = kept


@kernel
def fill(arcs, units, bounds, hope, table, places):
    """Fill the rows of the table for the states between two places.

    `bounds` are the most load; the value, in parts, that a set must exceed; and the worth of a unit
    of load left. `hope`, shape (S,), is the greatest value, in parts, of what can follow a state,
    less the worth of its load.
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
