"""The least of a sum of costs of a few variables each, by elimination one after the other."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Floats


@dataclass(frozen=True, eq=False)
class Factor:
    """A cost of some variables.

    Parameters
    ----------
    scope
        Numbers of the variables, which differ.
    table
        An axis for each.
    """

    scope: tuple[int, ...]
    table: Floats


def least_sum(counts: list[int], factors: list[Factor], most: int) -> float | None:
    """Return the least of the sum of all factors; None if its tables have more entries than `most`.

    Parameters
    ----------
    counts
        How many values each variable has.
    """
    several = {v for v, count in enumerate(counts) if count > 1}
    numbers, live = itertools.count(), {}
    of: dict[int, set[int]] = {v: set() for v in several}
    total, entries = [], 0

    def add(factor: Factor) -> None:
        if not factor.scope:
            total.append(float(factor.table))
            return
        number = next(numbers)
        live[number] = factor
        for v in factor.scope:
            of[v].add(number)

    for factor in factors:
        scope = tuple(v for v in factor.scope if v in several)
        add(Factor(scope, factor.table.reshape([counts[v] for v in scope])))
    sizes = {v: _size(v, counts, of, live) for v in several if of[v]}
    while sizes:
        v = min(sizes, key=lambda u: (sizes[u], u))
        entries += sizes.pop(v)
        if entries > most:
            return None
        gone = of.pop(v)
        mine = [live.pop(number) for number in sorted(gone)]
        scope = tuple(sorted({u for factor in mine for u in factor.scope} - {v}))
        joint = np.zeros([counts[u] for u in (*scope, v)])
        for factor in mine:
            joint += _spread(factor, (*scope, v))
        for u in scope:
            of[u] -= gone
        add(Factor(scope, joint.min(axis=-1)))
        sizes |= {u: _size(u, counts, of, live) for u in scope}
    return math.fsum(total)


def _size(v: int, counts: list[int], of: dict[int, set[int]], live: dict[int, Factor]) -> int:
    """Return the entries of the table by which a variable is eliminated."""
    return math.prod(counts[u] for u in {u for number in of[v] for u in live[number].scope} | {v})


def _spread(factor: Factor, axes: tuple[int, ...]) -> Floats:
    """Return a factor's table with all these axes, of extent 1 where it does not depend on one."""
    order = sorted(range(len(factor.scope)), key=lambda k: axes.index(factor.scope[k]))
    table = factor.table.transpose(order)
    extents = iter(table.shape)
    return table.reshape([next(extents) if u in factor.scope else 1 for u in axes])
