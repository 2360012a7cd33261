"""Least and greatest values of rows over a box, and the bounds of columns that follow from them.

Everything is rounded outwards: what is said holds for the numbers of the program as they are. A sum
of whole numbers counts as exact, so that rows of ±1 give bounds without noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.linear import Linear
from ....instances.common.arrays import Bools, Floats, Ints
from .safe_bound import EPS

#: Whole numbers up to here add up exactly.
EXACT = 2.0**52

#: Rounds of propagation, and by which share the range of a continuous column must shrink for
#: another round.
ROUNDS, WORTH = 20, 0.1


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a matrix one by one, none of them 0, and the sides of its rows.

    Parameters
    ----------
    row, column, value
        Shape (N,).
    lower, upper
        Shape (m,): sides of the rows.
    """

    row: Ints
    column: Ints
    value: Floats
    lower: Floats
    upper: Floats

    def keep(self, which: Bools) -> Entries:
        """Return the entries marked, shape (N,), in the same rows."""
        return Entries(
            self.row[which], self.column[which], self.value[which], self.lower, self.upper
        )


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of terms by row, with what rounding they may hold.

    Parameters
    ----------
    term
        Shape (N,): may be infinite.
    open
        Shape (m,): number of infinite terms.
    total, error
        Shape (m,): of the finite terms; the true sum differs by `error` at most.
    """

    term: Floats
    open: Ints
    total: Floats
    error: Floats


def entries_of(linear: Linear) -> Entries:
    """Return the entries of a program's matrix."""
    matrix = linear.matrix.tocoo()
    row, column = (np.asarray(index, dtype=np.int64) for index in matrix.coords)
    entries = Entries(row, column, matrix.data, linear.row_lower, linear.row_upper)
    return entries.keep(entries.value != 0)


def activity(entries: Entries, lower: Floats, upper: Floats) -> tuple[Sums, Sums]:
    """Return the least and the greatest value of each row over a box."""
    falls = entries.value < 0
    low, high = lower[entries.column], upper[entries.column]
    return (
        _sums(entries, np.where(falls, high, low)),
        _sums(entries, np.where(falls, low, high)),
    )


def propagate(
    entries: Entries, lower: Floats, upper: Floats, integer: Bools
) -> tuple[Floats, Floats] | None:
    """Return the box that the rows leave of a box, or None if they leave nothing.

    Each row bounds each of its columns, given the bounds of the others; bounds of whole-number
    columns are rounded inwards. Ends after `ROUNDS` rounds at the latest.

    Parameters
    ----------
    lower, upper
        Shape (n,): the box; not changed.
    integer
        Shape (n,).
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


def _sums(entries: Entries, at: Floats) -> Sums:
    """Return the sums of value · at by row."""
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


def _contradicted(entries: Entries, least: Sums, most: Sums) -> bool:
    """Whether some row cannot hold."""
    above = (least.open == 0) & (least.total - least.error > entries.upper)
    below = (most.open == 0) & (most.total + most.error < entries.lower)
    return bool((above | below).any())


def _implied(
    entries: Entries, least: Sums, most: Sums, lower: Floats, upper: Floats
) -> tuple[Floats, Floats]:
    """Return the box that each row leaves to each column, whole or not."""
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


def _usable(entries: Entries, side: Floats, sums: Sums) -> Bools:
    """Return the entries whose row has the side and no infinite term but perhaps theirs."""
    others = sums.open[entries.row] - ~np.isfinite(sums.term)
    usable: Bools = np.isfinite(side)[entries.row] & (others == 0)
    return usable
