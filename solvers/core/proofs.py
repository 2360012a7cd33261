"""Proofs of bounds on integer programs in safe arithmetic, as HiGHS's claims are no proofs.

First, the linear relaxation (`relax`, `dual_bound`, `refuted`). HiGHS's simplex gives a point and
multipliers of the rows, neither of which proves anything by itself. But for any multipliers y, with
side_i the lower side of row i where y_i > 0 and its upper side where y_i < 0,

    cost·x ≥ Σ_i y_i side_i + Σ_j min_{x_j in its box} (c_j − yᵀA_j) x_j

holds for every x within rows and box. The right side, computed with all rounding against it, is
therefore a lower bound, however poor the multipliers are. The program's numbers count as exact.

Second, branch and bound (`check`) proves or refutes a bound on a small integer program: it closes a
node by propagation (`tighten`) or by multipliers.

References
----------
Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming",
Mathematical Programming 99 (2004).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

import highspy
import numpy as np

from ...formulations.linear import Linear, run_here
from ...instances.common.arrays import Floats
from .highs import load
from .tighten import EPS, entries_of, tighten

#: Largest violation of a row, relative to the sum of its terms' absolute values: rounding of sums.
ROW_SLACK = 1e-12

#: Distance from an integer within which a column of a relaxation counts as integral.
WHOLE = 1e-6

#: Upper bound on the total loss in products that underflow.
UNDERFLOW = 1e-300

#: Multipliers smaller than this count as 0, so that products stay above `UNDERFLOW`.
LEAST_MULTIPLIER = 1e-100

#: Simplex iterations after which a relaxation is given up.
PIVOTS = 50_000


@dataclass(frozen=True, eq=False)
class LpRelaxation:
    """HiGHS's answer to the relaxation of a program: a point and row multipliers."""

    x: Floats | None  # (n,): an optimal point; None if there is none
    # (m,): duals of an optimal basis, or a dual ray if the rows contradict each other; None if
    # HiGHS has neither
    multipliers: Floats | None


def relax(linear: Linear) -> LpRelaxation:
    """Solve the relaxation of a minimisation; SolverError if HiGHS fails."""
    highs = load(
        replace(linear, offset=0.0, integer=np.zeros(len(linear.cost), np.bool_)),
        {
            "presolve": "off",
            "solver": "simplex",
            "primal_feasibility_tolerance": 1e-9,
            "dual_feasibility_tolerance": 1e-9,
            "simplex_iteration_limit": PIVOTS,
        },
    )
    status = run_here(highs)
    x = multipliers = None
    if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
        solution = highs.getSolution()
        x = np.array(solution.col_value, dtype=np.float64)
        multipliers = np.array(solution.row_dual, dtype=np.float64)
    elif status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = highs.getDualRay()
        multipliers = np.array(ray, dtype=np.float64) if has_ray else None
    return LpRelaxation(x, multipliers)


def dual_bound(linear: Linear, multipliers: Floats) -> float:
    """Return a lower bound on cost·x + offset over all x within the rows and the box.

    Integer columns count as continuous. Multipliers, shape (m,), are costs per unit of each row,
    like HiGHS's `row_dual`: any of them prove a bound; those of an optimal solution of the
    relaxation prove its objective. If an unbounded column has a reduced cost of the wrong sign, all
    multipliers are scaled down until its sign is right; if its own cost has the wrong sign, too,
    the bound is `-inf`.
    """
    y = _usable(linear, multipliers)
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = _reduced_costs(linear, y)
        short = np.where(np.isinf(linear.column_upper) & (low < 0), -low, 0.0)
        over = np.where(np.isinf(linear.column_lower) & (high > 0), high, 0.0)
        excess = np.maximum(short, over)
        if excess.any():
            cost = np.where(short > 0, linear.cost, -linear.cost)[excess > 0].clip(0.0)
            share = float((cost / (cost + excess[excess > 0])).min())
            y = _usable(linear, y * (share * (1 - (len(y) + 8) * EPS)))
            low, high = _reduced_costs(linear, y)
        terms = np.concatenate([_at_sides(linear, y), _least_in_box(linear, low, high)])
    if not np.isfinite(terms).all():
        return -math.inf
    total = math.fsum([linear.offset, *terms.tolist()])
    error = EPS * math.fsum(np.abs(terms).tolist()) + UNDERFLOW
    return math.nextafter(total - error, -math.inf)


def refuted(linear: Linear, multipliers: Floats) -> bool:
    """Return whether row multipliers prove that no x satisfies the rows and the box (Farkas).

    Multipliers, shape (m,), are for example HiGHS's dual ray.
    """
    nothing = replace(linear, cost=np.zeros(len(linear.cost)), offset=0.0)
    return dual_bound(nothing, multipliers) > 0


def _usable(linear: Linear, multipliers: Floats) -> Floats:
    """Return the multipliers, 0 where they are too small or their side is infinite."""
    y = np.where(np.abs(multipliers) >= LEAST_MULTIPLIER, multipliers, 0.0)  # also where NaN
    side = np.where(y > 0, linear.row_lower, linear.row_upper)
    return np.where(np.isfinite(y) & np.isfinite(side), y, 0.0)


def _reduced_costs(linear: Linear, y: Floats) -> tuple[Floats, Floats]:
    """Return lower and upper bounds on the reduced costs c − yᵀA, by column."""
    by_row = linear.matrix.T
    size = abs(by_row) @ np.abs(y)
    entries = np.diff(linear.matrix.indptr)
    reduced = linear.cost - by_row @ y
    error = (entries + 3) * EPS * (np.abs(linear.cost) + size) + UNDERFLOW
    # Exact where no row contributes.
    error = np.where((abs(by_row) @ (y != 0).astype(np.float64)) > 0, error, 0.0)
    return reduced - error, reduced + error


def _at_sides(linear: Linear, y: Floats) -> Floats:
    side = np.where(y > 0, linear.row_lower, linear.row_upper)
    return np.where(y != 0, side, 0.0) * y


def _least_in_box(linear: Linear, low: Floats, high: Floats) -> Floats:
    """Return, by column, the minimum of d·x over d in [low, high] and x in the box.

    It is attained at corners. An infinite end counts, as −inf, where d may have the wrong sign.
    """
    least = np.full(len(low), np.inf)
    for end, wrong in ((linear.column_lower, high > 0), (linear.column_upper, low < 0)):
        closed = np.isfinite(end)
        corner = np.where(closed, end, 0.0)
        at_end = np.minimum(low * corner, high * corner)
        least = np.minimum(least, np.where(closed, at_end, np.where(wrong, -np.inf, np.inf)))
    return np.where(np.isposinf(least), 0.0, least)  # both ends open, d = 0


class ProofOutcome(Enum):
    """Outcome of a check of the claim that no solution has an objective below a target."""

    PROVED = "proved"
    REFUTED = "refuted"  # by a solution below the target, whose rows hold to `ROW_SLACK`
    UNDECIDED = "undecided"


@dataclass(frozen=True, eq=False)
class _Box:
    """A node of the search: the program tightened to a box of the columns, and its relaxation."""

    program: Linear
    relaxation: LpRelaxation


def check(
    linear: Linear,
    target: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> ProofOutcome:
    """Prove or refute that no solution of a minimisation has an objective below `target`.

    The program's numbers count as exact. A target of `inf` asks whether any solution exists. The
    answer is undecided if `should_stop` ends the check, or if rounding would decide.
    """
    if math.isinf(target) and target > 0:
        linear = replace(linear, cost=np.zeros(len(linear.cost)), offset=0.0)
    boxes = [(linear.column_lower, linear.column_upper)]
    complete = True
    while boxes:
        if should_stop():
            return ProofOutcome.UNDECIDED
        lower, upper = boxes.pop()
        node = _node(linear, lower, upper, target)
        if node is None:
            continue
        outcome = _check_node(linear, node, target)
        if outcome is ProofOutcome.REFUTED:
            return outcome
        if outcome is ProofOutcome.UNDECIDED and not _branch(node, boxes):
            complete = False
    return ProofOutcome.PROVED if complete else ProofOutcome.UNDECIDED


def _node(linear: Linear, lower: Floats, upper: Floats, target: float) -> _Box | None:
    """Return the node of a box; None if the box has no solution below the target."""
    program = tighten(replace(linear, column_lower=lower, column_upper=upper), target, exact=True)
    return None if program is None else _Box(program, relax(program))


def _check_node(linear: Linear, node: _Box, target: float) -> ProofOutcome:
    """Check the claim within a box by its relaxation, and by rounding the relaxation's point."""
    program, found = node.program, node.relaxation
    if found.multipliers is not None:
        if found.x is None and refuted(program, found.multipliers):
            return ProofOutcome.PROVED
        if found.x is not None and dual_bound(program, found.multipliers) >= target:
            return ProofOutcome.PROVED
    if found.x is None:
        return ProofOutcome.UNDECIDED
    x = np.where(linear.integer, np.round(found.x), found.x)
    if (np.abs(x - found.x) > WHOLE).any():
        return ProofOutcome.UNDECIDED
    x = np.clip(x, program.column_lower, program.column_upper)
    if _solves(linear, x, target):
        return ProofOutcome.REFUTED
    if (program.column_lower == program.column_upper)[linear.integer].all():
        return ProofOutcome.UNDECIDED
    rounded = _node(
        linear,
        np.where(linear.integer, x, linear.column_lower),
        np.where(linear.integer, x, linear.column_upper),
        target,
    )
    if rounded is not None and _check_node(linear, rounded, target) is ProofOutcome.REFUTED:
        return ProofOutcome.REFUTED
    return ProofOutcome.UNDECIDED


def _solves(linear: Linear, x: Floats, target: float) -> bool:
    """Return whether a point is a solution below the target, with rows kept to `ROW_SLACK`."""
    if (x < linear.column_lower).any() or (x > linear.column_upper).any():
        return False
    entries = entries_of(linear)
    term = entries.value * x[entries.column]
    value = np.bincount(entries.row, term, len(entries.lower))
    size = np.bincount(entries.row, np.abs(term), len(entries.lower))
    low, high = entries.lower, entries.upper
    if (value < low - ROW_SLACK * np.maximum(size, np.abs(low))).any():
        return False
    if (value > high + ROW_SLACK * np.maximum(size, np.abs(high))).any():
        return False
    terms = zip(linear.cost.tolist(), x.tolist(), strict=True)
    objective = sum((Fraction(c) * Fraction(v) for c, v in terms if c), Fraction(linear.offset))
    return objective < target


def _branch(node: _Box, boxes: list[tuple[Floats, Floats]]) -> bool:
    """Split a node's box at the most fractional column; return False if nothing can be split.

    The part nearest to the relaxation's point is searched first.
    """
    program = node.program
    lower, upper = program.column_lower, program.column_upper
    free = np.flatnonzero(program.integer & (lower < upper))
    if not len(free):
        return False
    if node.relaxation.x is None:
        ends = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper, 0.0))
        middle = np.where(np.isfinite(lower) & np.isfinite(upper), (lower + upper) / 2, ends)
        x = np.floor(middle)
    else:
        x = np.clip(node.relaxation.x, lower, upper)
    distance = np.abs(x - np.round(x))[free]
    j = int(free[distance.argmax()])
    value = float(x[j])
    if distance.max() > WHOLE:
        parts = [(lower[j], math.floor(value)), (math.ceil(value), upper[j])]
        parts.sort(key=lambda part: min(abs(end - value) for end in part), reverse=True)
    else:
        here = float(np.round(value))
        parts = [(lower[j], here - 1), (here + 1, upper[j]), (here, here)]
    for low, high in parts:
        if low <= high:
            new_lower, new_upper = lower.copy(), upper.copy()
            new_lower[j], new_upper[j] = low, high
            boxes.append((new_lower, new_upper))
    return True
