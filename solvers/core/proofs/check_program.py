"""Branch and bound in safe arithmetic: proves or refutes a bound on a small integer program.

HiGHS solves the relaxations, and is not believed: a node is closed by propagation (`tighten`), by
its multipliers, or, once all whole numbers are fixed, in rational numbers (both `relaxation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

import numpy as np

from ....formulations.linear import Linear
from ....instances.common.arrays import Floats
from .relaxation import LpRelaxation, dual_bound, evaluate, refuted, relax
from .tighten import entries_of, tighten

#: By which share of its terms a row of a solution may be broken: rounding of sums.
ROW_SLACK = 1e-12

#: Distance from a whole number up to which a column of a relaxation counts as whole.
WHOLE = 1e-6


class ProofOutcome(Enum):
    """What a check found of the claim that no solution has an objective below a target."""

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
    nodes: int = 2000,
) -> ProofOutcome:
    """Prove or refute that no solution has an objective below `target`.

    Parameters
    ----------
    linear
        A minimisation. Its numbers are taken at their word.
    target
        In the unit of the objective; `inf` asks whether there is any solution at all.
    nodes
        Relaxations after which the search gives up.

    Returns
    -------
    ProofOutcome
        Undecided if it gave up at a limit, or where numbers are too large for rational arithmetic.

    Raises
    ------
    ValueError
        If the program maximises.
    """
    if math.isinf(target) and target > 0:
        linear = replace(linear, cost=np.zeros(len(linear.cost)), offset=0.0)
    boxes = [(linear.column_lower, linear.column_upper)]
    complete = True
    for _ in range(nodes):
        if not boxes:
            return ProofOutcome.PROVED if complete else ProofOutcome.UNDECIDED
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
    return ProofOutcome.UNDECIDED


def _node(linear: Linear, lower: Floats, upper: Floats, target: float) -> _Box | None:
    """Return the node of a box; None if the box holds nothing below the target."""
    program = tighten(replace(linear, column_lower=lower, column_upper=upper), target, exact=True)
    return None if program is None else _Box(program, relax(program))


def _check_node(linear: Linear, node: _Box, target: float) -> ProofOutcome:
    """Check the claim within a box by its relaxation, rounded and exact."""
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
    fixed = bool((program.column_lower == program.column_upper)[linear.integer].all())
    if fixed:
        return _check_exactly(linear, node, target)
    rounded = _node(
        linear,
        np.where(linear.integer, x, linear.column_lower),
        np.where(linear.integer, x, linear.column_upper),
        target,
    )
    if rounded is not None and _check_node(linear, rounded, target) is ProofOutcome.REFUTED:
        return ProofOutcome.REFUTED
    return ProofOutcome.UNDECIDED


def _check_exactly(linear: Linear, node: _Box, target: float) -> ProofOutcome:
    """Check the claim in rational numbers, where only continuous columns are free."""
    exact = evaluate(node.program, node.relaxation)
    if exact is None:
        return ProofOutcome.UNDECIDED
    if exact.bound is not None and exact.bound >= target:
        return ProofOutcome.PROVED
    if exact.x is not None:
        x = np.array([float(value) for value in exact.x])
        if _solves(linear, x, target):
            return ProofOutcome.REFUTED
    return ProofOutcome.UNDECIDED


def _solves(linear: Linear, x: Floats, target: float) -> bool:
    """Return whether a point keeps rows, to `ROW_SLACK`, and box, and is below the target."""
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
    """Split the box of a node at the most fractional column; False if nothing can be split.

    The part nearest to the relaxation comes next.
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
