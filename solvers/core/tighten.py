"""Presolve of an integer program in safe arithmetic, to remove numbers beyond solvers' tolerances.

A solver keeps rows to about 1e-6, whatever their entries are: a column with an entry of 1e8 can be
worth 100 while the solver takes it for 0. But if only solutions up to some objective matter, the
rows leave such columns little or no range, and without them the program has ordinary numbers.

Bounds of columns follow from the least and greatest values of rows over the box (activities), all
rounded outwards, so they hold for the exact numbers of the program. Sums of integers count as
exact, so rows of ±1 give bounds without rounding.

Notes
-----
A row such as y ≥ x_v − x_u, with y ≤ ½ from elsewhere and x integer, implies x_v ≤ x_u: the
continuous column y leaves the row (`_rounded`). If no other row keeps y above its lower bound, it
is fixed there (`_settled`), and leaves the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csc_array

from ...formulations.linear import Linear
from ...instances.common.arrays import Bools, Floats, Ints

#: Twice the unit roundoff: k additions and a product err by less than (k + 1) EPS times the sum of
#: absolute values, itself computed in floating point.
EPS = 2.0**-52

#: Integers up to this magnitude add up exactly.
EXACT = 2.0**52

#: Rounds of propagation, and the share by which the range of a continuous column must shrink for
#: another round.
ROUNDS, WORTH = 20, 0.1


@dataclass(frozen=True, eq=False)
class RowEntries:
    """The nonzero entries of a matrix one by one, and the sides of its rows."""

    row: Ints  # row, column, value: (N,)
    column: Ints
    value: Floats
    lower: Floats  # lower, upper: (m,): sides of the rows
    upper: Floats

    def keep(self, which: Bools) -> RowEntries:
        """Return the entries that a mask, shape (N,), selects, in the same rows."""
        return RowEntries(
            self.row[which], self.column[which], self.value[which], self.lower, self.upper
        )


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of terms by row, each with a bound on its rounding error."""

    term: Floats  # (N,): may be infinite
    open: Ints  # (m,): number of infinite terms
    # total, error: (m,): sum of the finite terms; the true sum differs by at most `error`
    total: Floats
    error: Floats


#: Share of a row's largest step by which dropping a small entry may change the row; the same for
#: continuous columns whose range is below `NARROW`, as HiGHS's own tolerance covers that.
SMALL, NARROW = 1e-9, 1e-7

#: Rows whose entries are all smaller are scaled up: solvers drop entries below 1e-9.
TINY_ROW = 2.0**-10

#: Share of the cutoff by which solutions that are kept may exceed it.
CUTOFF_SLACK = 1e-9


def tighten(linear: Linear, cutoff: float = math.inf, *, exact: bool = False) -> Linear | None:
    """Return a program with the same solutions up to a cutoff, but smaller numbers; None if none.

    Bounds are propagated through rows and cutoff, in at most 20 rounds of O(entries). Then fixed
    columns leave the rows, rows of integers get integer sides, entries too small for a solver are
    dropped and their rows relaxed (unless `exact`), and redundant rows are dropped.

    Every solution of the program with an objective up to `cutoff` (and 1e-9 of it more) is one of
    the new program, except that continuous columns which no row holds back move to their better
    bound: for each solution there is one with the same integers and no higher objective. Solutions
    of the new program keep the old rows but for dropped entries, and may exceed the cutoff. A lower
    bound on the new program is one on the old program, up to the cutoff.
    """
    entries = entries_of(linear)
    box = propagate(
        _with_cutoff(entries, linear, cutoff),
        linear.column_lower,
        linear.column_upper,
        linear.integer,
    )
    if box is None:
        return None
    lower, upper = box
    entries = _opened(entries, lower, upper)
    entries = _rounded(entries, lower, upper, linear.integer)
    if (entries.lower > entries.upper).any():
        return None
    if not exact:
        narrow = ~linear.integer & (upper - lower < NARROW)
        small = narrow[entries.column] & _negligible(NARROW, entries, lower, upper)
        entries = _without(entries, lower, upper, small)
    lower, upper = _settled(entries, linear, lower, upper)
    entries = _without(entries, lower, upper, (lower == upper)[entries.column])
    if not exact:
        entries = _without(entries, lower, upper, _negligible(SMALL, entries, lower, upper))
    return _assembled(linear, entries, lower, upper)


def _with_cutoff(entries: RowEntries, linear: Linear, cutoff: float) -> RowEntries:
    """Return the entries with the row cost·x + offset ≤ cutoff added."""
    column = np.flatnonzero(linear.cost)
    if not math.isfinite(cutoff):
        return entries
    slack = CUTOFF_SLACK * abs(cutoff) + 4 * EPS * (abs(cutoff) + abs(linear.offset))
    return RowEntries(
        row=np.append(entries.row, np.full(len(column), len(entries.lower))),
        column=np.append(entries.column, column),
        value=np.append(entries.value, linear.cost[column]),
        lower=np.append(entries.lower, -np.inf),
        upper=np.append(entries.upper, cutoff - linear.offset + slack),
    )


def _opened(entries: RowEntries, lower: Floats, upper: Floats) -> RowEntries:
    """Return the rows with the sides that the box implies set to infinity."""
    least, most = activity(entries, lower, upper)
    above = (most.open == 0) & (most.total + most.error <= entries.upper)
    below = (least.open == 0) & (least.total - least.error >= entries.lower)
    return replace(
        entries,
        lower=np.where(below, -np.inf, entries.lower),
        upper=np.where(above, np.inf, entries.upper),
    )


def _rounded(entries: RowEntries, lower: Floats, upper: Floats, integer: Bools) -> RowEntries:
    """Return the rows reduced to their integer part, with rounded sides, where that is equivalent.

    Let a row be w(x) + r(x), with w of integer columns with integer entries. Then
    w(x) ≥ ⌈L − max r⌉; if the right side plus min r is at least L, this implies the row, and r
    leaves it. Upper sides are alike. Rows with two sides change only if both can.
    """
    whole = integer[entries.column] & (entries.value == np.rint(entries.value))
    least, most = activity(entries.keep(~whole), lower, upper)
    closed = (least.open == 0) & (most.open == 0)
    low = np.ceil(entries.lower - most.total - _error(most, entries.lower))
    high = np.floor(entries.upper - least.total + _error(least, entries.upper))
    enough = closed & (low + least.total - _error(least, low) >= entries.lower)
    enough &= high + most.total + _error(most, high) <= entries.upper
    rest = np.bincount(entries.row[~whole], minlength=len(low)) > 0
    enough |= ~rest
    changed = replace(
        entries,
        lower=np.where(enough, low, entries.lower),
        upper=np.where(enough, high, entries.upper),
    )
    return changed.keep(whole | ~enough[entries.row])


def _error(sums: Sums, edge: Floats) -> Floats:
    """Return a bound on the rounding error of a sum and of its difference to a side."""
    finite = np.where(np.isfinite(edge), edge, 0.0)
    whole = (finite == np.rint(finite)) & (np.abs(finite) < EXACT)
    exact = (sums.error == 0) & (whole | (sums.total == 0))
    return np.where(exact, 0.0, sums.error + 4 * EPS * (np.abs(sums.total) + np.abs(finite)))


def _settled(
    entries: RowEntries, linear: Linear, lower: Floats, upper: Floats
) -> tuple[Floats, Floats]:
    """Return the box with continuous columns fixed at their better bound, if no row opposes it.

    Moving them there violates no row and costs nothing.
    """
    held_up, held_down = np.zeros((2, len(lower)), np.bool_)
    has_lower = np.isfinite(entries.lower)[entries.row]
    has_upper = np.isfinite(entries.upper)[entries.row]
    rises = entries.value > 0
    held_up[entries.column[(rises & has_lower) | (~rises & has_upper)]] = True
    held_down[entries.column[(rises & has_upper) | (~rises & has_lower)]] = True
    falls = ~linear.integer & ~held_up & (linear.cost >= 0) & np.isfinite(lower)
    climbs = ~linear.integer & ~held_down & (linear.cost <= 0) & np.isfinite(upper) & ~falls
    return np.where(climbs, upper, lower), np.where(falls, lower, upper)


def _without(entries: RowEntries, lower: Floats, upper: Floats, gone: Bools) -> RowEntries:
    """Return the rows without some entries, relaxed by these entries' extreme values."""
    least, most = activity(entries.keep(gone), lower, upper)
    return replace(
        entries.keep(~gone),
        lower=entries.lower - most.total - _error(most, entries.lower),
        upper=entries.upper - least.total + _error(least, entries.upper),
    )


def _negligible(share: float, entries: RowEntries, lower: Floats, upper: Floats) -> Bools:
    """Return which entries change their row by less than a share of its largest step.

    A column's step is the change of the row if it rises by 1, or by its whole range if smaller.
    """
    size, extent = np.abs(entries.value), (upper - lower)[entries.column]
    largest = np.zeros(len(entries.lower))
    np.maximum.at(largest, entries.row, size * np.minimum(extent, 1.0))
    return np.asarray(size * extent < share * largest[entries.row])


def _assembled(linear: Linear, entries: RowEntries, lower: Floats, upper: Floats) -> Linear | None:
    """Return the program of the rows that are not redundant; None if one is violated."""
    largest = np.zeros(len(entries.lower))
    np.maximum.at(largest, entries.row, np.abs(entries.value))
    empty = largest == 0
    if (empty & ((entries.lower > 0) | (entries.upper < 0))).any():
        return None
    kept = ~empty & (np.isfinite(entries.lower) | np.isfinite(entries.upper))
    # By powers of 2, which is exact.
    scale = np.where((largest > 0) & (largest < TINY_ROW), largest, 1.0)
    scale = np.exp2(np.minimum(-np.floor(np.log2(scale)), 1000.0))
    number = np.cumsum(kept) - 1
    which = kept[entries.row]
    row = entries.row[which]
    value = entries.value[which] * scale[row]
    return replace(
        linear,
        column_lower=lower,
        column_upper=upper,
        matrix=csc_array(
            (value, (number[row], entries.column[which])),
            shape=(int(kept.sum()), len(linear.cost)),
        ),
        row_lower=(entries.lower * scale)[kept],
        row_upper=(entries.upper * scale)[kept],
    )


def entries_of(linear: Linear) -> RowEntries:
    """Return the entries of a program's matrix."""
    matrix = linear.matrix.tocoo()
    row, column = (np.asarray(index, dtype=np.int64) for index in matrix.coords)
    entries = RowEntries(row, column, matrix.data, linear.row_lower, linear.row_upper)
    return entries.keep(entries.value != 0)


def activity(entries: RowEntries, lower: Floats, upper: Floats) -> tuple[Sums, Sums]:
    """Return the least and the greatest value of each row over a box."""
    falls = entries.value < 0
    low, high = lower[entries.column], upper[entries.column]
    return (
        _sums(entries, np.where(falls, high, low)),
        _sums(entries, np.where(falls, low, high)),
    )


def propagate(
    entries: RowEntries, lower: Floats, upper: Floats, integer: Bools
) -> tuple[Floats, Floats] | None:
    """Return the box after at most `ROUNDS` rounds of bound propagation; None if it is empty.

    Each row bounds each of its columns, given the bounds of the others; bounds of integer columns
    are rounded inwards.
    """
    lower = np.where(integer, np.ceil(lower), lower)
    upper = np.where(integer, np.floor(upper), upper)
    for _ in range(ROUNDS):
        least, most = activity(entries, lower, upper)
        if _contradicted(entries, least, most) or (lower > upper).any():
            return None
        new_lower, new_upper = _implied(entries, least, most, lower, upper)
        new_lower = np.where(integer, np.ceil(new_lower), new_lower)
        new_upper = np.where(integer, np.floor(new_upper), new_upper)
        if (new_lower > new_upper).any():
            return None
        with np.errstate(invalid="ignore"):
            shrunk = ~((new_upper - new_lower) > (1 - WORTH) * (upper - lower))
        changed = (new_lower > lower) | (new_upper < upper)
        opened = np.isfinite(new_lower) & np.isinf(lower) | np.isfinite(new_upper) & np.isinf(upper)
        again = bool((changed & (integer | shrunk | opened)).any())
        lower, upper = new_lower, new_upper
        if not again:
            break
    return lower, upper


def _sums(entries: RowEntries, at: Floats) -> Sums:
    """Return, by row, the sums of value · at, where `at`, shape (N,), is each entry's column."""
    rows = len(entries.lower)
    term = entries.value * at
    finite = np.isfinite(term)
    closed = np.where(finite, term, 0.0)
    size = np.bincount(entries.row, np.abs(closed), rows)
    number = np.bincount(entries.row, minlength=rows)
    whole = (at == 0) | ((entries.value == np.rint(entries.value)) & (at == np.rint(at)))
    exact = (np.bincount(entries.row, ~whole & finite, rows) == 0) & (size < EXACT)
    total: Floats = np.bincount(entries.row, closed, rows).astype(np.float64, copy=False)
    return Sums(
        term=term,
        open=np.bincount(entries.row, ~finite, rows).astype(np.int64),
        total=total,
        error=np.where(exact, 0.0, (number + 3) * EPS * size),
    )


def _contradicted(entries: RowEntries, least: Sums, most: Sums) -> bool:
    """Return whether some row cannot hold within the box."""
    above = (least.open == 0) & (least.total - least.error > entries.upper)
    below = (most.open == 0) & (most.total + most.error < entries.lower)
    return bool((above | below).any())


def _implied(
    entries: RowEntries, least: Sums, most: Sums, lower: Floats, upper: Floats
) -> tuple[Floats, Floats]:
    """Return the box cut by the bounds that each row implies."""
    lower, upper = lower.copy(), upper.copy()
    for side, sums, sign in ((entries.upper, least, 1.0), (entries.lower, most, -1.0)):
        which = _usable(entries, side, sums)
        row, column, value = entries.row[which], entries.column[which], entries.value[which]
        own = np.where(np.isfinite(sums.term[which]), sums.term[which], 0.0)
        total, edge = sums.total[row], side[row]
        rest = edge - (total - own)
        inexact = (sums.error[row] > 0) | (edge != np.rint(edge)) | (np.abs(edge) >= EXACT)
        inexact |= (own != np.rint(own)) | (np.abs(total) >= EXACT)
        size = np.abs(edge) + np.abs(total) + np.abs(own)
        error = np.where(inexact, sums.error[row] + 4 * EPS * size, 0.0)
        # sign · value · x ≤ sign · rest + error
        end = (rest + sign * error) / value
        unit = (np.abs(value) == 1) | (end == 0)
        above = value * sign > 0
        outwards = np.where(above, np.inf, -np.inf)
        end = np.where(unit, end, np.nextafter(end, outwards))
        np.minimum.at(upper, column[above], end[above])
        np.maximum.at(lower, column[~above], end[~above])
    return lower, upper


def _usable(entries: RowEntries, side: Floats, sums: Sums) -> Bools:
    """Return which entries' rows have the side and no other infinite term."""
    others = sums.open[entries.row] - ~np.isfinite(sums.term)
    usable: Bools = np.isfinite(side)[entries.row] & (others == 0)
    return usable
