"""Linear programs with duals, by HiGHS directly, as SciPy's interface takes 0.4 s to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..instances import StagecutError
from ..instances.common.arrays import Floats, Ints

if TYPE_CHECKING:
    import highspy


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
