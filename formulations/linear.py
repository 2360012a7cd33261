"""Linear and mixed-integer programs as arrays: a builder with named rows, and optima with duals.

Programs that are large or built often are stated this way, without Pyomo, which takes a second to
import and a hundred times as long per row. Each block of rows has a name; the module that adds it
gives the equation beside the name. Programs without integer columns are solved here, by HiGHS
directly, as SciPy's interface takes 0.4 s to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..instances import StagecutError
from ..instances.common.arrays import Bools, Floats, Ints

if TYPE_CHECKING:  # SciPy takes 0.2 s to import, and few modules need it
    import highspy
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


class SolverError(StagecutError):
    """Failure of HiGHS that is not due to the program: no answer is known."""


class MatrixEntries(NamedTuple):
    """Nonzero entries of a matrix, no position twice."""

    row: Ints  # row, column: (entries,)
    column: Ints
    value: Floats  # (entries,)


class LinearOptimum(NamedTuple):
    """An optimum of a linear program."""

    value: float  # optimal objective
    x: Floats  # (n,)
    # (m,): gain of the objective per unit of a row's side; at most 0 at an upper side
    row_duals: Floats


def least_cost(
    cost: Floats,
    lower: Floats,
    entries: MatrixEntries,
    row_lower: Floats,
    row_upper: Floats,
    upper: Floats | None = None,
) -> LinearOptimum | None:
    """Return the optimum of min cost·x, row_lower ≤ A x ≤ row_upper, lower ≤ x ≤ upper.

    Bounds may be infinite, and `upper` is by default. None if the program is infeasible;
    SolverError if HiGHS can tell neither.
    """
    import highspy

    upper = np.full(len(cost), np.inf) if upper is None else upper
    by_row = np.argsort(entries.row, kind="stable")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, lower, upper
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    matrix = lp.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = len(cost), len(row_lower)
    ends = np.cumsum(np.bincount(entries.row, minlength=len(row_lower)))
    matrix.start_ = np.concatenate([[0], ends]).astype(np.int32)
    matrix.index_ = entries.column[by_row].astype(np.int32)
    matrix.value_ = entries.value[by_row]
    highs = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1)):
        highs.setOptionValue(option, value)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refuses a linear program")
    status, ends = run_here(highs), highspy.HighsModelStatus
    if status in (ends.kInfeasible, ends.kUnboundedOrInfeasible):
        return None
    if status != ends.kOptimal:
        raise SolverError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    found = highs.getSolution()
    return LinearOptimum(
        highs.getInfo().objective_function_value,
        np.array(found.col_value),
        np.array(found.row_dual),
    )


def run_here(highs: highspy.Highs) -> highspy.HighsModelStatus:
    """Solve a linear program in the caller's thread, whatever else used HiGHS there.

    HiGHS keeps one scheduler per thread and refuses to run with another number of threads than the
    first call asked for, which may have been the user's own. Returns an answer, or a limit of its
    own; SolverError for all else.
    """
    import highspy

    if highs.run() == highspy.HighsStatus.kError:
        highs.setOptionValue("threads", 0)  # as many as there are
        highs.run()
    status, ends = highs.getModelStatus(), highspy.HighsModelStatus
    if status in (
        ends.kNotset,
        ends.kLoadError,
        ends.kModelError,
        ends.kPresolveError,
        ends.kSolveError,
        ends.kPostsolveError,
        ends.kMemoryLimit,
    ):
        raise SolverError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    return status
