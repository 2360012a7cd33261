"""A price for memory: plans that fit, and a bound, by message passing at each price."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.evidence import evidence
from ...formulations.sharding.memory import priced, with_views
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Ints
from ...instances.formats.certificate import PRICED
from ..core.search import Search
from .blend import blend
from .messages import approach

#: By how much rounding of sums may make a bound too high, relatively.
ROUNDING = 1e-9

#: Prices that are tried, at most.
STEPS = 24

#: The first price, as part of one at which all memory costs as much as a plan at least.
NEXT_TO_NONE = 1e-9

#: A price's plan is sought to this gap.
ENOUGH = 1e-5


@dataclass(frozen=True, eq=False)
class _Line:
    """What a plan costs at any price: cost + price · (held − room)."""

    chosen: Ints
    cost: float
    held: float


def priced_memory(costs: ShardingCosts, search: Search[Solution]) -> float:
    """Offer plans that fit and raise the bound, by prices of memory; (9) of `memory.py`.

    Returns
    -------
    float
        The price of the best bound; 0 without.
    """
    prices = _Prices(costs, search)
    with search.phase("priced memory"):
        _best_price(prices)
    return max(prices.proved, key=prices.proved.__getitem__, default=0.0)


@dataclass(frozen=True, eq=False)
class _Prices:
    """What plans at prices are sought with, who is told, and the bound of each price."""

    costs: ShardingCosts
    search: Search[Solution]
    proved: dict[float, float] = field(default_factory=dict)

    @property
    def room(self) -> float:
        """Bytes of a device."""
        assert self.costs.problem.memory_bytes is not None
        return self.costs.problem.memory_bytes

    def line(self, price: float, start: _Line | None) -> _Line | None:
        """Offer the plan of a price and raise the bound; None if the search has to stop."""
        asked = priced(self.costs, price)
        known = None if start is None else with_views(self.costs, start.chosen)
        *_, (bound, chosen, _) = approach(asked, self.search, known, ENOUGH)
        scale = abs(bound) + price * self.room
        proved = bound - price * self.room - ROUNDING * scale
        proof = {**evidence(self.costs, proved), "price": price}
        self.search.raise_bound(proved, PRICED, proof)
        self.proved[price] = proved
        if chosen is None:
            return None
        signature = asked.signature(chosen)
        self.search.offer(TensorSharding(signature))
        plain = self.costs.chosen(signature)
        assert plain is not None
        cost = self.costs.objective(plain)
        counted = asked.objective(with_views(self.costs, plain))
        line = _Line(plain, cost, (counted - cost) / price)
        return None if self.search.should_stop() else line

    def offer_blend(self, low: _Line, high: _Line) -> None:
        """Offer a plan of parts of two."""
        mixed = blend(self.costs, low.chosen, high.chosen, self.room)
        if mixed is not None:
            self.search.offer(TensorSharding(self.costs.signature(mixed)))


def _best_price(prices: _Prices) -> None:
    """Raise the price until the plan fits; then take those where the lines of plans cross.

    The lines are those of the last plan that fits and of the last that does not: what is best at
    any price between is not above where they cross.
    """
    room = prices.room
    free = max(prices.search.bound, 0.0) / room if room > 0 else 0.0
    low = prices.line(free * NEXT_TO_NONE, None) if free > 0 else None
    if low is None or low.held <= room:
        return
    price, high, steps = free, low, 0
    while high.held > room and steps < STEPS:
        found = prices.line(price, high)
        if found is None:
            return
        low, high = (found, found) if found.held > room else (low, found)
        price, steps = 10 * price, steps + 1
    while low.held > room >= high.held and steps < STEPS:
        price = (high.cost - low.cost) / (low.held - high.held)
        if price <= 0:
            break
        found = prices.line(price, high)
        crossing = (high.cost + price * high.held) * (1 - ENOUGH)
        if found is None or found.cost + price * found.held >= crossing:
            break
        low, high = (found, high) if found.held > room else (low, found)
        steps += 1
    prices.offer_blend(low, high)
