"""Column generation: dual prices that prove that no split has a max-load below a target.

The dual of `formulations.throughput.set_partitioning`: minimise f(π) = Σ_k n_k V_k(π) for a fixed
Σ_v π_v; the target is impossible as soon as f(π) < Σ_v π_v. As f is convex and piecewise linear,
and each best set a subgradient, a linear program over the sets seen so far models f from below;
its solutions are restricted to a box around the best prices so far (boxstep).

If a target is near the bound by work alone, prices close to the work prove it, and others lead far
astray: the box starts as small as that gap. If sets are priced by value, trials lie between the
model's prices and the best so far.

References
----------
R. E. Marsten, W. W. Hogan, J. W. Blankenship, "The boxstep method for large-scale optimization",
Operations Research 23, 1975.
P. Wentges, "Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming",
International Transactions in Operational Research 4, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import highspy
import numpy as np

from ....formulations.linear import SolverError, run_here
from ....formulations.throughput.certificate import PROOF_MARGIN, Prices
from ....instances.common.arrays import Bools, Floats
from ...core.search import Clock
from .best_set import BestSet, SetQuery, best_set, best_set_by_value, whole
from .pricing_problem import PricingProblem


@dataclass(frozen=True, eq=False)
class Column:
    """Column of the program: a set of units on a device of a kind, with its load as charged."""

    kind: int  # kind of the device
    members: Bools  # (U,)
    # load, share, transfer: its load as the frontier charges it; the part of the device's memory
    # that it takes; its transfer time relative to the target
    load: float
    share: float
    transfer: float


@dataclass(frozen=True, eq=False)
class Trial:
    """Best prices by the model, with the model's value of f there, in total and by kind."""

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
        """Add rows for sets to the model."""
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
        """Return the best prices in a box around `centre`, with no unit's price below `least`.

        None if time is up, SolverError if HiGHS fails.
        """
        units, kinds = self._units, self._kinds
        around = np.concatenate([centre.unit, centre.memory, centre.transfer])
        reach = radius * (np.abs(around) + SMALL * self._total / units)
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


Outcome = Literal["proved", "stalled", "stopped"]

#: Part of the promised gain that a serious step attains.
SERIOUS = 0.1

#: Part of the way to the model's prices that a step goes if sets are sought by value.
TOWARDS = 0.4

#: Columns, at least, that one search for prices passes on to the next.
MOST_COLUMNS = 500

#: Greatest first radius of the box, relative to the prices plus a part of their mean; that part;
#: least and greatest radius.
RADIUS, SMALL, LEAST_RADIUS, MOST_RADIUS = 0.05, 0.2, 1e-3, 2.0


@dataclass
class DualState:
    """State of the search for prices, which `boxstep` updates."""

    prices: Prices  # the best so far
    # first, radius: first and present radius of the box, relative to the prices
    first: float = RADIUS
    columns: list[Column] = field(default_factory=list)  # sets seen so far, of any load
    radius: float = field(init=False)
    pricings: int = 0  # number of pricings so far

    def __post_init__(self) -> None:
        self.first = self.radius = min(RADIUS, max(LEAST_RADIUS, self.first))


@dataclass(frozen=True, eq=False)
class _Priced:
    """Value of f at some prices, in total and by kind, and the sets found."""

    value: float
    by_kind: Floats
    found: tuple[BestSet, ...]
    columns: tuple[Column, ...]


def boxstep(
    state: DualState,
    pricing: PricingProblem,
    target: float,
    on_proof: Callable[[float, Prices], None],
    search: Clock,
    pricings: int,
) -> Outcome:
    """Search for prices that prove that every split has a max-load of at least `target`.

    It starts from the prices and columns in `state`, updates them, and makes at most `pricings`
    pricings. `on_proof` gets each bound proved on the way, with its prices. *Stalled*: the prices
    are nearly optimal, and do not prove the target.
    """
    last, least = state.pricings + pricings, 0.0 if pricing.parts else -np.inf

    def should_stop() -> bool:
        return state.pricings >= last or search.should_stop()

    limit = target * (1 + PROOF_MARGIN)
    state.prices = _rounded(state.prices, pricing)
    state.columns = _fit(state, limit)
    model = PriceModel(pricing.count, pricing.memory_bound, pricing.transfer_priced, state.prices)
    model.add(state.columns)

    def price(
        prices: Prices, floors: Floats, worse: float = np.inf, *, rough: bool = False
    ) -> _Priced | None:
        enough = np.full(len(floors), np.inf)
        if len(floors) == 1:  # less proves the target, and `worse` is no step
            fees = prices.memory + prices.transfer
            goal = prices.goal / pricing.count - fees
            floors = np.maximum(floors, goal - PROOF_MARGIN * np.abs(goal))
            enough = worse / pricing.count - fees
        limits = target, floors, enough
        priced = _price(pricing, prices, limits, search.should_stop, rough=rough)
        state.pricings += 1
        if priced is not None:
            columns = [c for c in priced.columns if not rough or c.load <= limit]
            model.add(columns)
            state.columns += columns
            _report(pricing, prices, priced, floors, target, on_proof)
        return priced

    if not state.columns and price(state.prices, np.zeros(len(pricing.count)), rough=True) is None:
        return "stopped"
    centre = price(state.prices, _worth(state.columns, state.prices, len(pricing.count)))
    if centre is None:
        return "stopped"
    value, misses = centre.value, 0
    while value >= state.prices.goal:
        if should_stop():
            return "stopped"
        trial = model.solve(state.prices, state.radius, search.seconds_left, least)
        if trial is None:
            return "stopped"
        trial = _nearer(trial, state, pricing)
        hoped = value - trial.promised
        if hoped * MOST_RADIUS / state.radius < value - state.prices.goal:
            state.radius = state.first
            return "stalled"
        priced = price(trial.prices, _floors(trial), value)
        if priced is None:
            return "stopped"
        if priced.value < trial.prices.goal:
            state.prices = trial.prices
            break
        gained = value - priced.value
        if gained >= SERIOUS * hoped:
            state.prices, value = trial.prices, priced.value
            if gained >= 0.5 * hoped:
                state.radius = min(MOST_RADIUS, 1.5 * state.radius)
            misses = 0
        else:
            excess = -gained / hoped
            misses += excess > 0
            if excess > 3 or (misses >= 3 and excess > 1):
                state.radius /= min(excess, 4.0)
                misses = 0
            if state.radius < LEAST_RADIUS:
                state.radius = state.first
    return "proved"


def _nearer(trial: Trial, state: DualState, pricing: PricingProblem) -> Trial:
    """Return a trial between its prices and the best so far, if sets are sought by value."""
    if not pricing.parts:
        return trial
    unit = TOWARDS * trial.prices.unit + (1 - TOWARDS) * state.prices.unit
    return replace(trial, prices=_rounded(replace(trial.prices, unit=unit), pricing))


def _rounded(prices: Prices, pricing: PricingProblem) -> Prices:
    """Return prices rounded to multiples of 1 / parts, if sets are sought by value."""
    if not pricing.parts:
        return prices
    return replace(prices, unit=whole(prices.unit, pricing.states[0].order, pricing.parts))


def _floors(trial: Trial) -> Floats:
    """Return, by kind, the value above which a set is a cut that the model lacks."""
    return np.maximum(0.0, trial.by_kind - trial.prices.memory - trial.prices.transfer)


def _fit(state: DualState, limit: float) -> list[Column]:
    """Return the columns within a load, only the most valuable ones if there are many."""
    fitting = [c for c in state.columns if c.load <= limit]
    fitting.sort(key=lambda c: -_value(c, state.prices))
    return fitting[: max(MOST_COLUMNS, 2 * len(state.prices.unit))]


def _value(column: Column, prices: Prices) -> float:
    """Return the value of a set, less the prices of its memory and transfers."""
    k = column.kind
    fees = prices.memory[k] * column.share + prices.transfer[k] * column.transfer
    return float(prices.unit[column.members].sum()) - float(fees)


def _worth(columns: list[Column], prices: Prices, kinds: int) -> Floats:
    """Return, by kind, the greatest value of a known set."""
    best = np.zeros(kinds)
    for column in columns:
        best[column.kind] = max(best[column.kind], _value(column, prices))
    return best


def _price(
    pricing: PricingProblem,
    prices: Prices,
    limits: tuple[float, Floats, Floats],
    should_stop: Callable[[], bool],
    *,
    rough: bool,
) -> _Priced | None:
    """Price the sets of each kind; `limits` are the target, and floor and enough by kind."""
    target, floors, enough = limits
    limit = target * (1 + PROOF_MARGIN)
    found, columns = [], []
    for k, states in enumerate(pricing.states):
        if pricing.count[k] == 0:
            found.append(BestSet(0.0, None, np.inf, ()))
            continue
        if pricing.parts:
            best = best_set_by_value(
                states,
                prices.unit,
                pricing.load[k],
                limit,
                parts=pricing.parts,
                floor=float(floors[k]),
                should_stop=should_stop,
            )
        else:
            charged = pricing.transfer_priced[k]
            best = best_set(
                states,
                SetQuery(
                    price=prices.unit - prices.memory[k] * pricing.share[k],
                    load=pricing.load[k],
                    limit=limit,
                    floor=float(floors[k]),
                    enough=float(enough[k]),
                    transfer_price=float(prices.transfer[k]) / target if charged else None,
                ),
                partial(pricing.load_of, k),
                pricing.scratch,
                rough=rough,
                should_stop=should_stop,
            )
        if best is None:
            return None
        found.append(best)
        if best.members is not None:
            transfer = pricing.transfer_of(k, best.members)
            share = float(pricing.share[k][best.members].sum())
            columns.append(Column(k, best.members, best.load, share, transfer / target))
    fixed = prices.memory + prices.transfer
    by_kind = fixed + np.array([best.bound for best in found])
    return _Priced(float(pricing.count @ by_kind), by_kind, tuple(found), tuple(columns))


def _report(
    pricing: PricingProblem,
    prices: Prices,
    priced: _Priced,
    floors: Floats,
    target: float,
    on_proof: Callable[[float, Prices], None],
) -> None:
    """Report the largest max-load, up to `target`, below which the prices exclude all splits.

    That is the load of the first set that violates (*).
    """
    events = sorted(
        (load, k, value) for k, best in enumerate(priced.found) for load, value in best.steps
    )
    best_of = floors.copy()
    fixed = float(pricing.count @ (prices.memory + prices.transfer))
    proved = target
    for load, k, value in [(0.0, 0, 0.0), *events]:
        best_of[k] = max(best_of[k], value)
        if fixed + pricing.count @ best_of >= prices.goal:
            proved = min(target, load * (1 - 2 * PROOF_MARGIN))
            break
    if proved > 0:
        scale = proved / target
        on_proof(proved, Prices(prices.unit, prices.memory, prices.transfer * scale))
