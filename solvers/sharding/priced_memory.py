"""A price for memory: plans that fit, and a bound, by message passing at each price."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import priced, priced_bytes
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Ints
from ..core.search import Search
from .messages import approach

#: By how much rounding of sums may make a bound too high, relatively.
ROUNDING = 1e-9

#: Prices that are tried, at most.
STEPS = 24

#: A price's plan is sought to this gap.
ENOUGH = 1e-5


@dataclass(frozen=True, eq=False)
class _Line:
    """What a plan costs at any price: cost + price · (held − room)."""

    chosen: Ints
    cost: float
    held: float
    fits: bool


def priced_memory(costs: ShardingCosts, search: Search[Solution]) -> None:
    """Offer cheap shardings for several prices, and raise the bound by each; (9) of `memory.py`.

    Without a price first. Then at such ones that a byte costs ever more, until what is counted of
    the plan fits; then where the lines of the last plan that fits and of the last that does not
    cross, which the bound at the best price is not above. At last dearer ones, if no plan fits yet.
    """
    room = costs.problem.memory_bytes
    assert room is not None
    with search.phase("priced memory"):
        low = _at(costs, 0.0, room, None, search)
        if low is None or low.fits or room <= 0:
            return
        price, high, steps = low.cost / room, low, 0
        while high.held > room and steps < STEPS:
            found = _at(costs, price, room, high, search)
            if found is None:
                return
            low, high = (found, found) if found.held > room else (low, found)
            price, steps = 10 * price, steps + 1
        last = price / 10
        while high.held < low.held and steps < STEPS:
            price = (high.cost - low.cost) / (low.held - high.held)
            found = _at(costs, price, room, high, search)
            if found is None:
                return
            if found.cost + price * found.held >= (high.cost + price * high.held) * (1 - ENOUGH):
                break
            low, high = (found, high) if found.held > room else (low, found)
            steps += 1
        while search.best is None and steps < STEPS:
            if _at(costs, last, room, high, search) is None:
                return
            last, steps = 2 * last, steps + 1


def _at(
    costs: ShardingCosts, price: float, room: float, start: _Line | None, search: Search[Solution]
) -> _Line | None:
    """Offer the plan of a price and raise the bound; None if the search has to stop."""
    bound, chosen = -math.inf, None if start is None else start.chosen
    for bound, chosen in approach(priced(costs, price), search, chosen, ENOUGH):  # noqa: B007
        if search.should_stop():
            break
    scale = abs(bound) + price * room
    search.raise_bound(bound - price * room - ROUNDING * scale, "priced memory")
    if chosen is None:
        return None
    plan = TensorSharding(costs.signature(chosen))
    search.offer(plan)
    line = _Line(
        chosen,
        costs.objective(chosen),
        priced_bytes(costs, chosen),
        math.isfinite(search.value(plan)),
    )
    return None if search.should_stop() else line
