"""Columns and rows of an integer program as they come."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from ..instances.arrays import Floats, Ints
from .mapping_counts import Rows


class RowBuilder:
    """Columns and rows as they come; all columns are whole numbers."""

    def __init__(self, columns: int = 0) -> None:
        self.upper = np.ones(columns)
        self._at: list[Ints] = []
        self._column: list[Ints] = []
        self._factor: list[Floats] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def columns(self, count: int, most: float = 1.0) -> Ints:
        """Add columns of 0 … `most`; return their numbers."""
        begin = len(self.upper)
        self.upper = np.concatenate([self.upper, np.full(count, most)])
        return np.arange(begin, begin + count)

    def row(self, columns: Ints, factors: Floats, low: float, high: float) -> None:
        """Add a row."""
        self._at.append(np.full(len(columns), len(self._low)))
        self._column.append(columns)
        self._factor.append(factors)
        self._low.append(low)
        self._high.append(high)

    def table(
        self, at: Ints, columns: Ints, factors: Floats, high: float, low: float = -np.inf
    ) -> None:
        """Add rows 0 … max(at), entry by entry, all with the same sides."""
        count = int(at.max()) + 1
        self._at.append(at + len(self._low))
        self._column.append(columns)
        self._factor.append(factors)
        self._low += [low] * count
        self._high += [high] * count

    def rows(self) -> Rows:
        """Return the program, without costs."""
        total = len(self.upper)
        entries = np.concatenate(self._factor)
        where = (np.concatenate(self._at), np.concatenate(self._column))
        return Rows(
            csr_array((entries, where), shape=(len(self._low), total)),
            np.array(self._low),
            np.array(self._high),
            self.upper,
            np.ones(total, np.bool_),
            np.zeros(total),
        )
