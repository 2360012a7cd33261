"""The sets of the best values within a load, where values are whole numbers of parts.

Prices are ours to choose, so they are rounded to whole parts of the value of a share; loads are
not. The table of the least load by state and value is then exact, unlike labels by load.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....instances.common.arrays import Bools, Floats, Ints
from .best_set import BestSet, slopes_of, terms_of
from .frontier import Frontier
from .frontier_labels_kernel import hope
from .value_table_kernel import Table, Units, fill

#: Sets that are returned at most, and the part of the greatest value that they have at least.
SETS, NEAR = 60, 0.998

#: By how many parts a value may be above the floor without being so, for rounding.
ROUNDING = 1e-9

#: States between two looks at the clock.
SLICE = 500


def best_sets_by_value(
    states: Frontier,
    price: Floats,
    load: Floats,
    limit: float,
    *,
    parts: int,
    floor: float,
    should_stop: Callable[[], bool],
) -> tuple[BestSet, list[tuple[Bools, float]]] | None:
    """Return the best set of a value above a floor within a load, and the loads of good sets.

    Parameters
    ----------
    price
        Shape (U,): of each unit, a whole number of parts, none below 0.
    load
        Shape (U,).
    limit
        Of Σ load + transfers.
    parts
        How many make 1.

    Returns
    -------
    tuple or None
        The best set; it and others that are nearly as good, with their loads. None if `should_stop`
        said so.

    Notes
    -----
    Time and memory grow with states × parts × the greatest value.
    """
    terms = terms_of(states, price, load, limit)
    slopes, most = slopes_of(states, terms, limit)
    if most <= floor:
        return BestSet(floor, None, np.inf, ()), []
    units = Units(np.rint(terms.price * parts).astype(np.int64), terms.load, terms.allowed)
    table = Table(
        np.empty((states.size, int(most * parts) + 2)), np.empty((states.size, 2), np.int64)
    )
    table.load[0, 0] = 0.0
    table.span[0] = 0
    hopes = hope(False, states.backward, terms, slopes[0]) * parts
    slack = 1e-9 * parts * float(np.abs(terms.price).sum())
    bounds = limit, floor * parts - slack, slopes[0] * parts
    for first in range(1, states.size, SLICE):
        if should_stop():
            return None
        places = first, min(first + SLICE, states.size)
        fill(states.forward, units, bounds, hopes, table, places)
    low, high = table.span[-1].tolist()
    ends, least = [], np.inf
    for b in range(high, low - 1, -1):
        if table.load[-1, b] < least:
            least = float(table.load[-1, b])
            ends.append((b, least))
    ends = [(b, one) for b, one in ends if b > floor * parts + ROUNDING]
    if not ends:
        return BestSet(floor, None, np.inf, ()), []
    greatest = ends[0][0]
    near = [end for end in ends[:SETS] if end[0] >= NEAR * greatest]
    sets = [(_trace(states, units, table, b), one) for b, one in near]
    steps = tuple((one, b / parts) for b, one in reversed(ends))
    members, its_load = sets[0]
    return BestSet(greatest / parts, members, its_load, steps), sets


def _trace(states: Frontier, units: Units, table: Table, value: int) -> Bools:
    """Return the set of the least load of a value; shape (U,)."""
    ptr, source, taken, cost = states.forward
    members = np.zeros(len(states.order), np.bool_)
    x = states.size - 1
    while x:
        for j in range(int(ptr[x]), int(ptr[x + 1])):
            unit, before, more = int(taken[j]), int(source[j]), float(cost[j])
            if unit >= 0:
                more += float(units.load[unit])
            rest = value - (int(units.value[unit]) if unit >= 0 else 0)
            low, high = table.span[before]
            if (
                low <= rest <= high
                and (unit < 0 or units.allowed[unit])
                and table.load[before, rest] + more == table.load[x, value]
            ):
                break
        if unit >= 0:
            members[states.order[unit]] = True
        x, value = before, rest
    return members


def whole(price: Floats, order: Ints, parts: int) -> Floats:
    """Return prices in whole parts, none below 0, with the sums along an order rounded."""
    ends = np.rint(np.cumsum(np.maximum(0.0, price[order])) * parts)
    found = np.empty(len(price))
    found[order] = np.diff(np.concatenate([[0.0], ends])) / parts
    return found
