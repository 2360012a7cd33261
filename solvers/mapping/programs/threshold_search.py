"""The least threshold that a costly test does not refute, over values the objective can take."""

from __future__ import annotations

from collections.abc import Callable

from ....formulations.mapping.bound import BISECTION_WIDTH, LowerBounds, threshold_bound
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.values import possible_values
from ....instances.common.arrays import Floats
from ..parameters import THRESHOLD_GROWTH, THRESHOLD_STEP
from ..search import MappingSearch

#: A test of a threshold: None where no mapping exists, something false where it is not decided.
Test = Callable[[MappingCosts, LowerBounds, float], object | None]


def threshold_search(mapping: MappingSearch, test: Test, origin: str, seconds: float) -> None:
    """Raise the bound to the least threshold that the test does not refute.

    Programs are the easier the lower the threshold: steps go upwards, each longer than the one
    before. Between the last two it is bisected; where stages have messages of one kind, over the
    values that the objective can have.
    """
    search, costs, least = mapping.search, mapping.costs, mapping.lower_bounds
    until = search.seconds + seconds

    def enough() -> bool:
        return search.seconds > until or search.should_stop()

    high = _steps(mapping, test, origin, enough)
    if enough():
        return
    values = possible_values(costs, mapping.bound_s, high)
    if values is None:
        bound = threshold_bound(costs, least, high, enough, test, mapping.bound_s)
        mapping.raise_bound(bound, origin)
    elif len(values):
        _bisect(mapping, test, origin, values, enough)


def _steps(mapping: MappingSearch, test: Test, origin: str, enough: Callable[[], bool]) -> float:
    """Raise the bound step by step; return a threshold found possible, or the incumbent's."""
    step, low, refuted = THRESHOLD_STEP, mapping.bound_s, True
    while not enough():
        high = low * (1 + step)
        if high >= mapping.objective_s * (1 - BISECTION_WIDTH):
            break
        found = test(mapping.costs, mapping.lower_bounds, high)
        if found:
            return high
        refuted = refuted and found is None
        if refuted:
            mapping.raise_bound(high, origin)
        low, step = high, step * THRESHOLD_GROWTH
    return mapping.objective_s * (1 + 1e-9)


def _bisect(
    mapping: MappingSearch, test: Test, origin: str, values: Floats, enough: Callable[[], bool]
) -> None:
    """Bisect over values, of which the last is possible, or the incumbent's.

    First towards the least that is found possible, for the mapping; then towards the largest that
    is refuted.
    """
    refuted, possible = -1, len(values) - 1
    doubts: list[int] = []
    mapping.raise_bound(float(values[0]), origin)
    upwards = True
    while not enough():
        low, high = (
            (max([refuted, *doubts]), possible) if upwards else (refuted, min([possible, *doubts]))
        )
        if high - low < 2:
            if not upwards:
                return
            upwards = False
            continue
        k = (low + high) // 2
        found = test(mapping.costs, mapping.lower_bounds, float(values[k]))
        if found is None:
            refuted, doubts = k, [d for d in doubts if d > k]
            mapping.raise_bound(float(values[k + 1]), origin)
        elif found:
            possible, doubts = k, [d for d in doubts if d < k]
        else:
            doubts.append(k)
