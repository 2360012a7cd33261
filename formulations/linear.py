"""Mixed-integer linear programs as arrays, and a builder of them with named rows.

Programs that are built often, or are large, are stated so: without Pyomo, which takes a second to
import and a hundred times longer for each row. A block of rows has a name; the module that adds it
says the equation beside the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..instances.common.arrays import Bools, Floats, Ints

if TYPE_CHECKING:  # SciPy takes a fifth of a second to import, which much does not need
    from scipy.sparse import csc_array


@dataclass(frozen=True, eq=False)
class Linear:
    """A mixed-integer linear program: min (or max) cost·x + offset, lower ≤ A x ≤ upper."""

    cost: Floats  # cost, column_lower, column_upper: (n,)
    column_lower: Floats
    column_upper: Floats
    integer: Bools  # (n,): whether a column must be a whole number
    matrix: csc_array[np.float64]  # (m, n), by columns
    row_lower: Floats  # row_lower, row_upper: (m,); `-inf` and `inf` where open
    row_upper: Floats
    offset: float = 0.0  # constant term of the objective
    maximise: bool = False  # sense of the objective
    # name of each row, such as ``full[3]``; empty for a program that Pyomo stated
    row_names: tuple[str, ...] = ()


class LinearBuilder:
    """Columns and rows as they come; columns are whole numbers from 0 unless said otherwise."""

    def __init__(self) -> None:
        self.upper = np.zeros(0)
        self._parts: list[Ints] = []
        self._at: list[Ints] = []
        self._column: list[Ints] = []
        self._factor: list[Floats] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._names: list[str] = []

    def columns(
        self, shape: int | tuple[int, ...], most: float | Ints | Floats = 1.0, *, whole: bool = True
    ) -> Ints:
        """Add columns of 0 … `most`; return their numbers in this shape."""
        upper = np.full(shape, most, np.float64).ravel()
        numbers = np.arange(len(self.upper), len(self.upper) + len(upper))
        self.upper = np.concatenate([self.upper, upper])
        if not whole:
            self._parts.append(numbers)
        return numbers.reshape(shape)

    def row(
        self,
        name: str,
        columns: Ints | Sequence[int],
        factors: Floats | Sequence[float] | float,
        low: float,
        high: float,
    ) -> None:
        """Add the row low ≤ Σ factors · columns ≤ high; one factor holds for all columns."""
        entries = np.asarray(columns, np.int64)
        self._at.append(np.full(len(entries), len(self._low)))
        self._column.append(entries)
        self._factor.append(
            np.full(len(entries), factors)
            if isinstance(factors, float)
            else np.asarray(factors, np.float64)
        )
        self._low.append(low)
        self._high.append(high)
        self._names.append(name)

    def build(self, cost: Floats | None = None) -> Linear:
        """Return the program, a minimisation; without `cost`, shape (n,), of nothing."""
        from scipy.sparse import csc_array

        where = (np.concatenate(self._at), np.concatenate(self._column))
        shape = (len(self._low), len(self.upper))
        whole = np.ones(len(self.upper), np.bool_)
        for numbers in self._parts:
            whole[numbers] = False
        return Linear(
            cost=np.zeros(len(self.upper)) if cost is None else cost,
            column_lower=np.zeros(len(self.upper)),
            column_upper=self.upper.copy(),
            integer=whole,
            matrix=csc_array((np.concatenate(self._factor), where), shape=shape),
            row_lower=np.array(self._low),
            row_upper=np.array(self._high),
            row_names=tuple(self._names),
        )
