"""Branch and bound that proves what it says: for small programs with numbers of all sizes.

HiGHS solves the relaxations, and is not believed: a node is closed by propagation (`tighten`), by
its multipliers (`safe_bound`), or, once all whole numbers are fixed, in rational numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ....formulations.linear import Linear
from ....instances.common.arrays import Floats
from .relaxation import Relaxation, dual_bound, evaluate, refuted, relax
from .tighten import entries_of, tighten

#: By which share of its terms a row of a solution may be broken: rounding of sums.
ROW_SLACK = 1e-12

#: Distance from a whole number up to which a column of a relaxation counts as whole.
WHOLE = 1e-6


@dataclass(frozen=True, eq=False)
class _Node:
    """A box of the columns; `program` is what is left of the program in it."""

    program: Linear
    relaxation: Relaxation


def check(
    linear: Linear,
    target: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    nodes: int = 2000,
) -> bool | None:
    """Whether it is proved that no solution has an objective below `target`.

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
    bool or None
        True: proved. False: a solution below the target was met, whose rows hold to 1e-12 of their
        terms. None: given up.

    Raises
    ------
    ValueError
        If the program maximises.
    """
    if math.isinf(target) and target > 0:
        linear = replace(linear, cost=np.zeros(len(linear.cost)), offset=0.0)
    boxes = [(linear.column_lower, linear.column_upper)]
    undecided = False
    for _ in range(nodes):
        if not boxes:
            return None if undecided else True
        if should_stop():
            return None
        lower, upper = boxes.pop()
        node = _node(linear, lower, upper, target)
        if node is None:
            continue
        verdict = _decided(linear, node, target)
        if verdict is False:
            return False
        if verdict is None and not _branch(node, boxes):
            undecided = True
    return None


def _node(linear: Linear, lower: Floats, upper: Floats, target: float) -> _Node | None:
    """Return what is left of the program in a box, or None if nothing below the target is."""
    program = tighten(replace(linear, column_lower=lower, column_upper=upper), target, exact=True)
    return None if program is None else _Node(program, relax(program))


def _decided(linear: Linear, node: _Node, target: float) -> bool | None:
    """Return True if a box is proved to hold nothing below the target, False if something is."""
    program, found = node.program, node.relaxation
    if found.multipliers is not None:
        if found.x is None and refuted(program, found.multipliers):
            return True
        if found.x is not None and dual_bound(program, found.multipliers) >= target:
            return True
    if found.x is None:
        return None
    x = np.where(linear.integer, np.round(found.x), found.x)
    if (np.abs(x - found.x) > WHOLE).any():
        return None
    x = np.clip(x, program.column_lower, program.column_upper)
    if _solves(linear, x, target):
        return False
    fixed = bool((program.column_lower == program.column_upper)[linear.integer].all())
    if fixed:
        return _decided_exactly(linear, node, target)
    held = _node(
        linear,
        np.where(linear.integer, x, linear.column_lower),
        np.where(linear.integer, x, linear.column_upper),
        target,
    )
    if held is not None and _decided(linear, held, target) is False:
        return False
    return None


def _decided_exactly(linear: Linear, node: _Node, target: float) -> bool | None:
    """Like `_decided`, where only continuous columns are left."""
    exact = evaluate(node.program, node.relaxation)
    if exact is None:
        return None
    if exact.bound is not None and exact.bound >= target:
        return True
    if exact.x is not None:
        x = np.array([float(value) for value in exact.x])
        if _solves(linear, x, target):
            return False
    return None


def _solves(linear: Linear, x: Floats, target: float) -> bool:
    """Whether a point keeps the rows, to `ROW_SLACK`, and the box, and is below the target."""
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


def _branch(node: _Node, boxes: list[tuple[Floats, Floats]]) -> bool:
    """Split the box of a node at the most fractional column; False if there is nothing to split.

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
