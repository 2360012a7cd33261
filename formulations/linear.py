"""Mixed-integer linear programs as arrays, and a builder of them with named rows.

Programs that are large or built often are stated this way, without Pyomo, which takes a second to
import and a hundred times as long per row. Each block of rows has a name; the module that adds it
gives the equation beside the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..instances.common.arrays import Bools, Floats, Ints

if TYPE_CHECKING:  # SciPy takes 0.2 s to import, and few modules need it
    from scipy.sparse import csc_array


@dataclass(frozen=True, eq=False)
class Linear:
    """A mixed-integer linear program: min cost·x + offset, row_lower ≤ A x ≤ row_upper."""

    cost: Floats  # cost, column_lower, column_upper: (n,)
    column_lower: Floats
    column_upper: Floats
    integer: Bools  # (n,): whether a column must be integer
    matrix: csc_array[np.float64]  # (m, n), by columns
    row_lower: Floats  # row_lower, row_upper: (m,); `-inf` and `inf` for no side
    row_upper: Floats
    offset: float = 0.0  # constant term of the objective
    # name of each row, such as ``full[3]``; empty for a program that Pyomo stated
    row_names: tuple[str, ...] = ()


class LinearBuilder:
    """Builder of a program from columns and rows; columns are integer, from 0, by default."""

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
        """Add the row low ≤ Σ factors · columns ≤ high; a single factor holds for all columns."""
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
