"""A price for memory: plans that fit, and a bound, by message passing at each price.

Two shardings become one that fits: parts of the dearer one in the one that holds too much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ...formulations.sharding.costs import ShardingCosts, Term
from ...formulations.sharding.evidence import evidence
from ...formulations.sharding.memory import priced, with_views, without_costs, without_views
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Ints
from ...instances.formats.certificate import PRICED
from ..core.search import Search
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


def blend(costs: ShardingCosts, large: Ints, small: Ints, room: float) -> Ints | None:
    """Return choices that hold at most `room` bytes, None if `small` holds more.

    Where the two differ they fall into parts that share no tensor, so that each can be taken from
    either. Those of `small` are taken by what a byte less costs, until the rest fits; then those
    that need not be are given back, the dearest first.

    Parameters
    ----------
    large, small
        Choices of each operator; `large` holds more, and costs less.
    """
    bytes_of, costs_of = priced(without_costs(costs), 1.0), priced(costs, 0.0)
    large, small = with_views(costs, large), with_views(costs, small)
    parts = []
    for operators in _parts(bytes_of.terms, large, small):
        after = large.copy()
        after[operators] = small[operators]
        dearer = _changed(costs_of, operators, large, after)
        saved = -_changed(bytes_of, operators, large, after)
        parts.append((operators, dearer, saved))
    held = bytes_of.objective(large)
    taken = []
    for operators, dearer, saved in sorted(parts, key=_price):
        if held > room or dearer <= 0:
            held -= saved
            taken.append((operators, dearer, saved))
    if held > room:
        return None
    mixed = large.copy()
    for operators, dearer, saved in sorted(taken, key=lambda part: -part[1]):
        if dearer > 0 and held + saved <= room:
            held += saved
        else:
            mixed[operators] = small[operators]
    return without_views(costs, mixed)


def _price(part: tuple[Ints, float, float]) -> float:
    """Return what a byte less costs with a part, in order after all that save some."""
    _, dearer, saved = part
    return dearer / saved if saved > 0 else float("inf")


def _parts(terms: Iterable[Term], one: Ints, other: Ints) -> list[Ints]:
    """Return the operators of which two shardings differ, those that share a tensor together."""
    head = list(range(len(one)))

    def find(v: int) -> int:
        while head[v] != v:
            head[v] = head[head[v]]
            v = head[v]
        return v

    differs = one != other
    for term in terms:
        around = [v for v in (term.maker, *(use.operator for use in term.uses)) if differs[v]]
        for v in around[1:]:
            head[find(v)] = find(around[0])
    found: dict[int, list[int]] = {}
    for v in np.flatnonzero(differs).tolist():
        found.setdefault(find(v), []).append(v)
    return [np.array(members) for members in found.values()]


def _changed(costs: ShardingCosts, operators: Ints, before: Ints, after: Ints) -> float:
    """Return by how much the costs grow if operators choose otherwise."""
    inside = set(operators.tolist())
    grown = 0.0
    for v in inside:
        cost = costs.choices[v].cost
        grown += float(cost[after[v]] - cost[before[v]])
    for k in {k for v in inside for k in costs.terms_of[v]}:
        grown += costs.terms[k].value(after) - costs.terms[k].value(before)
    return grown
