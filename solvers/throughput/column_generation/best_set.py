"""Pricing: the most valuable set of units within a load, and a bound on its value.

*By load* (`best_set`): labels (value, load) are set along the states of a frontier, in alternating
directions, at ever finer resolutions of the load. *By value* (`best_set_by_value`): as any prices
are valid, they are rounded to multiples of 1 / parts, while loads are not. Then the table of the
least load by state and value is exact, unlike labels by load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from .frontier import Frontier
from .labels_kernel import (
    FrontierLabels,
    Sweep,
    Terms,
    UnitTerms,
    ValueTable,
    extend,
    fill,
    fresh_buckets,
    hope,
)

#: States between two polls of the clock.
STATES_PER_CALL = 500

T = TypeVar("T", bound=np.generic)

#: First resolution of loads, in parts of the limit; factor to the next finer one; and the number of
#: resolutions tried.
COARSE, FINER, RESOLUTIONS = 500, 4, 6

#: Part of the range from floor to bound that a good set's value must reach (and all of the bound
#: except the part (1 − GOOD)²); number of sets that are examined.
GOOD, LOOKS = 0.9, 100

#: Relative distances from the best slope (value per load) of further slopes at which completions
#: are bounded; steps of the search for the best slope; rounding of sums, relative to all prices.
SLOPES, SECTIONS, ROUNDING = (0.1, 0.5), 12, 1e-12

#: Most labels of one direction, of 24 bytes each.
LABELS = 16_000_000

#: Labels visited between two polls of the clock: some 0.05 s.
SLICE = 4_000_000


@dataclass(frozen=True, eq=False)
class BestSet:
    """Result of pricing: a bound on the value of every set within a load, and a set."""

    bound: float  # no set within the load has a greater value
    members: Bools | None  # (U,): a set of value above the floor; None if there is none
    # its load, except nets that the frontier gave up; `inf` if there is none. If it exceeds the
    # limit, the value of the set is `bound`.
    load: float
    # pairs (load, value), both increasing: a set of a load below that of a pair has at most the
    # value of the pair before it, or that of the floor if it is the first
    steps: tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class SetQuery:
    """Query for a set of units: prices and loads of units, limits on value and load."""

    price: Floats  # price, load: (U,): by unit; units above the load limit are excluded
    load: Floats
    limit: float  # Σ load + transfers must be at most this; only Σ load if transfers have a price
    floor: float = 0.0  # at least 0: only sets of greater value are of interest
    enough: float = np.inf  # value at which a set is good enough, however far from the bound
    # value lost per unit of transfer time; None if transfers are load instead
    transfer_price: float | None = None


class LabelScratch:
    """Arrays for the labels of both directions, reused in each search, as fresh ones are slow."""

    def __init__(self) -> None:
        size = 1 << 16
        self.arrays = [
            (np.empty(size), np.empty(size), np.empty(size, np.int64)) for _direction in range(2)
        ]


def best_set(
    states: Frontier,
    query: SetQuery,
    true_load: Callable[[Bools], float],
    scratch: LabelScratch,
    *,
    rough: bool = False,
    should_stop: Callable[[], bool],
) -> BestSet | None:
    """Return a bound on the value of every set within a load limit, and a set of great value.

    None if stopped. Time and memory grow with states × resolution.

    Labels are set in alternating directions, each time finer; those of one direction tell which
    labels of the other cannot lead above the floor. It ends when nothing is above the floor, with a
    set that is within the load and nearly as good as the bound, or at the finest resolution (if
    `rough`, the first). `true_load` charges all nets of a set; it is used for exact frontiers.
    """
    limit, floor = query.limit, query.floor
    terms = terms_of(states, query.price, query.load, limit, query.transfer_price)
    load_of = true_load if states.exact else partial(_charged, states, terms)
    slopes, most = slopes_of(states, terms, limit)
    if most <= floor:
        return BestSet(floor, None, np.inf, ())
    bound, members, its_load = np.inf, None, np.inf
    steps: tuple[tuple[float, float], ...] = ()
    rest: FrontierLabels | None = None
    forward = False
    for finer in range(1 if rough else RESOLUTIONS):
        wanted = COARSE * FINER**finer
        arcs = states.forward if forward else states.backward
        sweep = Sweep(forward, arcs, terms, limit, floor)
        hopes = _hopes(states, terms, slopes, forward)
        labels = _extend(sweep, wanted, hopes, rest, scratch, should_stop)
        if labels is None and rest is None and not should_stop():
            few = min(wanted, max(8, LABELS // len(arcs[1])))
            labels = _extend(sweep, few, hopes, rest, scratch, should_stop)
        if labels is None and should_stop():
            return None
        if labels is None:
            break
        whole = labels.last(forward)
        if len(whole) == 0 or labels.value[whole[-1]] <= floor:
            return BestSet(floor, None, np.inf, ())
        bound = float(labels.value[whole[-1]])
        steps = tuple(zip(labels.used[whole].tolist(), labels.value[whole].tolist(), strict=True))
        members = _trace(labels, whole[-1], states.order, forward)
        its_load = load_of(members)
        if its_load <= limit:
            return BestSet(bound, members, its_load, steps)
        for k in reversed(whole[-LOOKS:-1]):
            near = bound - (1 - GOOD) * min(bound - floor, (1 - GOOD) * bound)
            if labels.value[k] < min(near, query.enough):
                break
            lesser = _trace(labels, k, states.order, forward)
            if (lesser_load := load_of(lesser)) <= limit:
                return BestSet(bound, lesser, lesser_load, steps)
        rest, forward = labels, not forward
    return BestSet(bound, members, its_load, steps)


def terms_of(
    states: Frontier,
    price: Floats,
    load: Floats,
    limit: float,
    transfer_price: float | None = None,
) -> Terms:
    """Return the value and load that units and transfers add to a set, as `SetQuery` says."""
    ordered = load[states.order]
    allowed = ordered <= limit
    return Terms(
        price=price[states.order],
        load=np.where(allowed, ordered, 0.0),
        allowed=allowed,
        charge=1.0 if transfer_price is None else 0.0,
        transfer_price=transfer_price or 0.0,
    )


def _charged(states: Frontier, terms: Terms, members: Bools) -> float:
    """Return the load of a set as the frontier charges it."""
    ptr, after, taken, cost = states.backward
    paid, x = 0.0, 0
    for place, unit in enumerate(states.order.tolist()):
        wanted = place if members[unit] else -1
        step = next(j for j in range(ptr[x], ptr[x + 1]) if taken[j] == wanted)
        paid += float(cost[step])
        x = int(after[step])
    return terms.charge * paid + float(terms.load[members[states.order]].sum())


def slopes_of(states: Frontier, terms: Terms, limit: float) -> tuple[Floats, float]:
    """Return Lagrange multipliers of the load, and the least bound on the value by one of them.

    For any s ≥ 0, a set within the load is worth at most s · limit plus the greatest value of any
    set after subtracting s times its load. This bound is convex in s; its minimum is sought.
    """
    price, load = terms.price, terms.load

    def bound(slope: float) -> float:
        return float(hope(True, states.forward, terms, slope)[-1] + slope * limit)

    low, high = 0.0, 2 * float(np.abs(price).sum()) / (float(load.sum()) or 1.0)
    slope, least = 0.0, bound(0.0)
    for _ in range(SECTIONS):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        at_left, at_right = bound(left), bound(right)
        for at, value in ((left, at_left), (right, at_right)):
            if value < least:
                slope, least = at, value
        low, high = (low, right) if at_left < at_right else (left, high)
    slack = ROUNDING * float(np.abs(price).sum())
    parts = [1.0, *(1 + sign * part for part in SLOPES for sign in (-1, 1)), 0.0]
    return slope * np.array(parts), least + slack


def _hopes(states: Frontier, terms: Terms, slopes: Floats, forward: bool) -> tuple[Floats, Floats]:
    """Return the slopes, and bounds on the value still to come, by state and slope: (S, R)."""
    arcs = states.backward if forward else states.forward
    slack = ROUNDING * float(np.abs(terms.price).sum())
    found = [hope(not forward, arcs, terms, slope) + slack for slope in slopes]
    return slopes, np.ascontiguousarray(np.array(found).T)


def _extend(
    sweep: Sweep,
    buckets: int,
    hopes: tuple[Floats, Floats],
    rest: FrontierLabels | None,
    scratch: LabelScratch,
    should_stop: Callable[[], bool],
) -> FrontierLabels | None:
    """Return the labels of all states; None if there are too many, or if stopped."""
    forward, total = sweep.forward, len(sweep.arcs[0]) - 1
    begin, count = np.zeros(total, np.int64), np.zeros(total, np.int64)
    value, used, origin = scratch.arrays[forward]
    value[0] = used[0] = 0.0
    count[0 if forward else -1] = 1
    labels = FrontierLabels(begin, count, value, used, origin)
    state = np.array([1, 1, 0])
    other = (rest is not None, rest or labels)
    merged = fresh_buckets(buckets)
    while not extend(sweep, merged, hopes, other, state, labels, SLICE):
        if should_stop() or (state[2] and len(labels.value) >= LABELS):
            return None
        if state[2]:
            value, used, origin = scratch.arrays[forward]
            grown = _doubled(value), _doubled(used), _doubled(origin)
            scratch.arrays[forward] = grown
            labels = FrontierLabels(begin, count, *grown)
    return labels


def _trace(labels: FrontierLabels, at: int, order: Ints, forward: bool) -> Bools:
    """Return the set of a label of the last state, shape (U,)."""
    members = np.zeros(len(order), np.bool_)
    for unit in reversed(order) if forward else order:
        came = int(labels.origin[at])
        at, members[unit] = came >> 1, came & 1
    return members


def _doubled(array: NDArray[T]) -> NDArray[T]:
    return np.concatenate([array, np.empty_like(array)])


def best_set_by_value(
    states: Frontier,
    price: Floats,
    load: Floats,
    limit: float,
    *,
    parts: int,
    floor: float,
    should_stop: Callable[[], bool],
) -> BestSet | None:
    """Return the best set of value above a floor within a load limit; None if stopped.

    Prices, shape (U,), are nonnegative multiples of 1 / `parts`; the limit is on compute plus
    transfers. Time and memory grow with states × parts × the greatest value.
    """
    terms = terms_of(states, price, load, limit)
    slopes, most = slopes_of(states, terms, limit)
    if most <= floor:
        return BestSet(floor, None, np.inf, ())
    units = UnitTerms(np.rint(terms.price * parts).astype(np.int64), terms.load, terms.allowed)
    table = ValueTable(
        np.empty((states.size, int(most * parts) + 2)), np.empty((states.size, 2), np.int64)
    )
    table.load[0, 0] = 0.0
    table.span[0] = 0
    hopes = hope(False, states.backward, terms, slopes[0]) * parts
    slack = 1e-9 * parts * float(np.abs(terms.price).sum())
    bounds = limit, floor * parts - slack, slopes[0] * parts
    for first in range(1, states.size, STATES_PER_CALL):
        if should_stop():
            return None
        places = first, min(first + STATES_PER_CALL, states.size)
        fill(states.forward, units, bounds, hopes, table, places)
    low, high = table.span[-1].tolist()
    ends, least = [], np.inf
    for b in range(high, low - 1, -1):
        if table.load[-1, b] < least:
            least = float(table.load[-1, b])
            ends.append((b, least))
    ends = [(b, one) for b, one in ends if b > floor * parts + ROUNDING * parts]
    if not ends:
        return BestSet(floor, None, np.inf, ())
    greatest, its_load = ends[0]
    members = _trace_value(states, units, table, greatest)
    steps = tuple((one, b / parts) for b, one in reversed(ends))
    return BestSet(greatest / parts, members, its_load, steps)


def _trace_value(states: Frontier, units: UnitTerms, table: ValueTable, value: int) -> Bools:
    """Return the set of least load with a value, shape (U,)."""
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
    """Return prices as nonnegative multiples of 1 / parts, by rounding sums along an order."""
    ends = np.rint(np.cumsum(np.maximum(0.0, price[order])) * parts)
    found = np.empty(len(price))
    found[order] = np.diff(np.concatenate([[0.0], ends])) / parts
    return found
