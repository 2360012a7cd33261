"""A small linear program that grows: for column generation and cutting planes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from ...instances import StagecutError
from ...instances.model.arrays import Floats


@dataclass(frozen=True, eq=False)
class LpPoint:
    """An optimal solution: objective, values by column, duals by row (cost per unit of the row)."""

    objective: float
    x: Floats
    row_duals: Floats


class GrowingLp:
    """min cost·x subject to row_lower ≤ A x ≤ row_upper; each solve starts from the last basis.

    Parameters
    ----------
    row_lower, row_upper
        The first rows; `-inf` and `inf` where open.
    """

    def __init__(self, row_lower: Sequence[float] = (), row_upper: Sequence[float] = ()) -> None:
        self._highs = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1)):
            self._check(self._highs.setOptionValue(option, value))
        for low, up in zip(row_lower, row_upper, strict=True):
            self.add_row(low, up, (), ())

    def add_column(
        self,
        cost: float,
        rows: Iterable[int],
        values: Iterable[float],
        lower: float = 0.0,
        upper: float = math.inf,
    ) -> int:
        """Add a column with its entries in the rows so far; return its number."""
        index, value = np.array(list(rows), np.int32), np.array(list(values), np.float64)
        self._check(self._highs.addCol(cost, lower, upper, len(index), index, value))
        return int(self._highs.getNumCol()) - 1

    def add_row(
        self, lower: float, upper: float, columns: Iterable[int], values: Iterable[float]
    ) -> int:
        """Add a row with its entries in the columns so far; return its number."""
        index, value = np.array(list(columns), np.int32), np.array(list(values), np.float64)
        self._check(self._highs.addRow(lower, upper, len(index), index, value))
        return int(self._highs.getNumRow()) - 1

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        """Change the bounds of a column."""
        self._check(self._highs.changeColBounds(column, lower, upper))

    def set_cost(self, column: int, cost: float) -> None:
        """Change the cost of a column."""
        self._check(self._highs.changeColCost(column, cost))

    def solve(self, seconds: float = math.inf) -> LpPoint | None:
        """Return an optimal solution, or None if there is none or time runs out.

        Raises
        ------
        StagecutError
            If the program is unbounded or HiGHS fails.
        """
        limit = self._highs.getRunTime() + seconds  # HiGHS's clock goes on from the last solve
        self._check(self._highs.setOptionValue("time_limit", min(limit, 1e9)))
        # In a thread, because HiGHS keeps its scheduler per thread: see `highs`.
        worker = threading.Thread(target=self._highs.run, name="HiGHS LP")
        worker.start()
        worker.join()
        status = self._highs.getModelStatus()
        ends = highspy.HighsModelStatus
        if status in (ends.kInfeasible, ends.kTimeLimit):
            return None
        if status not in (ends.kOptimal, ends.kModelEmpty):
            raise StagecutError(f"HiGHS ended with {self._highs.modelStatusToString(status)!r}")
        solution = self._highs.getSolution()
        return LpPoint(
            objective=float(self._highs.getInfo().objective_function_value),
            x=np.array(solution.col_value, dtype=np.float64),
            row_duals=np.array(solution.row_dual, dtype=np.float64),
        )

    @staticmethod
    def _check(status: highspy.HighsStatus) -> None:
        if status == highspy.HighsStatus.kError:
            raise StagecutError("HiGHS refuses a change of the linear program")
