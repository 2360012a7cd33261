"""The least of a sum of costs among the values whose bytes fit, by elimination of variables.

A front is what can be reached in costs and bytes, shape (k, 2): the cheapest first, and each holds
less than those before it. What costs the target or more, or does not fit, is in none: costs and
bytes are never below 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Floats
from .elimination import Factor

#: The front of what neither costs nor holds anything.
_NOTHING = np.zeros((1, 2))


@dataclass(frozen=True)
class _Fronts:
    """A front for each values of some variables."""

    scope: tuple[int, ...]
    fronts: dict[tuple[int, ...], Floats]


def least_that_fits(
    counts: Sequence[int], factors: Iterable[tuple[Factor, int]], limits: tuple[float, float],
    most: int,
) -> float | None:  # fmt: skip
    """Return the least cost of what holds at most so many bytes; None if that is too much work.

    Parameters
    ----------
    counts
        How many values each variable has.
    factors
        Costs (0) and bytes (1).
    limits
        The target, which is returned if nothing that fits costs less, and the bytes that fit.
    most
        Pairs of cost and bytes that are added up, at most.
    """
    live = [_singles(factor, side, limits) for factor, side in factors]
    work = 0
    for _ in counts:
        named = {u for one in live for u in one.scope}
        if not named:
            break
        v = min(named, key=lambda u: (_cells(u, counts, live), u))
        mine = [one for one in live if v in one.scope]
        live = [one for one in live if v not in one.scope]
        scope = tuple(sorted({u for one in mine for u in one.scope} - {v}))
        fronts = {}
        for cell in itertools.product(*(range(counts[u]) for u in scope)):
            at = dict(zip(scope, cell, strict=True))
            parts: list[Floats] = []
            for value in range(counts[v]):
                at[v] = value
                front = _NOTHING
                for one in mine:
                    other = one.fronts[tuple(at[u] for u in one.scope)]
                    work += max(1, len(front) * len(other))
                    if work > most:
                        return None
                    front = _sum(front, other, limits)
                parts.append(front)
            fronts[cell] = _front(np.concatenate(parts), limits)
        live.append(_Fronts(scope, fronts))
    total = _NOTHING
    for one in live:
        work += len(total) * len(one.fronts[()])
        if work > most:
            return None
        total = _sum(total, one.fronts[()], limits)
    return float(total[0, 0]) if len(total) else limits[0]


def _singles(factor: Factor, side: int, limits: tuple[float, float]) -> _Fronts:
    """Return a factor as fronts of one pair each."""
    found = {}
    for cell, value in np.ndenumerate(factor.table):
        pair = np.zeros((1, 2))
        pair[0, side] = value
        found[cell] = _front(pair, limits)
    return _Fronts(factor.scope, found)


def _cells(v: int, counts: Sequence[int], live: Sequence[_Fronts]) -> int:
    around = {u for one in live if v in one.scope for u in one.scope}
    return math.prod(counts[u] for u in around)


def _sum(one: Floats, other: Floats, limits: tuple[float, float]) -> Floats:
    return _front((one[:, None] + other[None]).reshape(-1, 2), limits)


def _front(pairs: Floats, limits: tuple[float, float]) -> Floats:
    """Return those that fit, cost less than the target, and that none is better than in both."""
    target, room = limits
    pairs = pairs[(pairs[:, 0] < target) & (pairs[:, 1] <= room)]
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    before = np.minimum.accumulate(np.append(np.inf, pairs[:, 1]))[:-1]
    return np.asarray(pairs[pairs[:, 1] < before], np.float64)
