"""The model from below of the value of prices: a small linear program over the sets seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from ....formulations.linear_program import SolverError, run_here
from ....formulations.throughput.certificate import Prices
from ....instances.common.arrays import Bools, Floats


@dataclass(frozen=True, eq=False)
class Column:
    """A set that a device of a kind can hold within the load, except for what labels lost.

    Parameters
    ----------
    kind
        Of the device.
    members
        Shape (U,).
    load, share, transfer
        Its load as the frontier counts it, the part of the device's memory that it takes, its
        transfer time as part of the target.
    """

    kind: int
    members: Bools
    load: float
    share: float
    transfer: float


@dataclass(frozen=True, eq=False)
class Trial:
    """Prices that the model finds best, the value it promises there, and the value by kind."""

    prices: Prices
    promised: float
    by_kind: Floats


class PriceModel:
    """min Σ_k n_k V_k  s.t.  V_k ≥ Σ_{v∈S} π_v + μ_k (1 − share) + ν_k (1 − transfer/T), in a box.

    The sum of the unit prices is fixed, as (*) does not change when all prices are scaled.

    Parameters
    ----------
    count
        Shape (K,): devices of each kind; 0 for kinds that are not priced.
    memory_bound, transfer_priced
        Shape (K,): whether the kind has a memory and a transfer price.
    start
        Prices whose sum the unit prices keep.
    """

    def __init__(
        self, count: Floats, memory_bound: Bools, transfer_priced: Bools, start: Prices
    ) -> None:
        units, total = len(start.unit), start.total
        self._units, self._kinds, self._total = units, len(count), total
        self._memory_bound, self._transfer_priced = memory_bound, transfer_priced
        lp = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1)):
            assert lp.setOptionValue(option, value) == highspy.HighsStatus.kOk
        size = units + 3 * self._kinds
        cost = np.concatenate([np.zeros(units), count, np.zeros(2 * self._kinds)])
        lower = np.concatenate([np.full(units, -highspy.kHighsInf), np.zeros(3 * self._kinds)])
        upper = np.concatenate(
            [
                np.full(units + self._kinds, highspy.kHighsInf),
                np.where(memory_bound, highspy.kHighsInf, 0.0),
                np.where(transfer_priced, highspy.kHighsInf, 0.0),
            ]
        )
        none = np.zeros(0, np.int32)
        lp.addCols(size, cost, lower, upper, 0, none, none, np.zeros(0))
        lp.addRow(total, total, units, np.arange(units, dtype=np.int32), np.ones(units))
        self._lp = lp
        for k in range(self._kinds):  # the empty set
            self.add([Column(k, np.zeros(units, np.bool_), 0.0, 0.0, 0.0)])

    def add(self, columns: Sequence[Column]) -> None:
        """Let the model know these sets."""
        for column in columns:
            taken = np.flatnonzero(column.members).astype(np.int32)
            index, value = [taken], [-np.ones(len(taken))]
            at = self._units + column.kind
            index.append(np.array([at], np.int32))
            value.append(np.ones(1))
            for j, active, spare in (
                (1, self._memory_bound[column.kind], 1 - column.share),
                (2, self._transfer_priced[column.kind], 1 - column.transfer),
            ):
                if active:
                    index.append(np.array([at + j * self._kinds], np.int32))
                    value.append(np.array([-spare]))
            row, entry = np.concatenate(index), np.concatenate(value)
            self._lp.addRow(0.0, highspy.kHighsInf, len(row), row, entry)

    def solve(
        self, centre: Prices, radius: float, seconds: float, least: float = -np.inf
    ) -> Trial | None:
        """Return the best prices in a box around `centre`, no unit's below `least`.

        None if time runs out.

        Raises
        ------
        SolverError
            If HiGHS fails.
        """
        units, kinds = self._units, self._kinds
        around = np.concatenate([centre.unit, centre.memory, centre.transfer])
        reach = radius * (np.abs(around) + 0.2 * self._total / units)
        lower, upper = around - reach, around + reach
        lower[:units] = np.maximum(least, lower[:units])
        lower[units:] = np.maximum(0.0, lower[units:])
        upper[units : units + kinds][~self._memory_bound] = 0.0
        upper[units + kinds :][~self._transfer_priced] = 0.0
        index = np.concatenate([np.arange(units), np.arange(units + kinds, units + 3 * kinds)])
        self._lp.changeColsBounds(len(index), index.astype(np.int32), lower, upper)
        if np.isfinite(seconds):
            self._lp.setOptionValue("time_limit", self._lp.getRunTime() + seconds)
        if (status := run_here(self._lp)) == highspy.HighsModelStatus.kTimeLimit:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"HiGHS ended with {self._lp.modelStatusToString(status)!r}")
        found = np.array(self._lp.getSolution().col_value)
        prices = Prices(
            unit=found[:units],
            memory=np.maximum(0.0, found[units + kinds : units + 2 * kinds]),
            transfer=np.maximum(0.0, found[units + 2 * kinds :]),
        )
        promised = float(self._lp.getInfo().objective_function_value)
        return Trial(prices, promised, found[units : units + kinds])
