"""Shardings within a limit of memory: Lagrangian prices, and elimination over cost and bytes.

*Prices.* At each price of memory message passing gives a plan and a bound; the next price is where
the Lagrangians of a plan that fits and one that does not are equal. These two plans are blended
into a third: parts of the plan that fits replace those of the other until it fits, too.

*Elimination over cost and bytes.* Where elimination keeps the least cost for each
combination of the neighbours' values, this keeps the Pareto front of pairs of cost and bytes that
can still belong to a plan that fits and is cheaper than the best one known. That is exact, and
closes the gap that prices leave; but fronts may become too large. So choices that the best price
excludes are left out before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ...formulations.sharding.costs import CostNetwork, ShardingCosts, Term, cost_network
from ...formulations.sharding.memory import priced, with_views, without_costs, without_views
from ...formulations.sharding.relaxation import MARGIN, evidence
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Floats, Ints
from ...instances.formats.plan_json import FITTING, PRICED
from ..core.search import Search
from .elimination import elimination_order
from .messages import FIRST, approach, choices_left

#: Largest number of sums of pairs of cost and bytes, and of entries of tables.
MOST = 300_000

#: Cost, bytes, and their choices: a variable with its value, or two of these.
Point = tuple[float, float, tuple[object, object]]


class _TooManyError(Exception):
    """Fronts of cost and bytes have too many pairs."""


class _CostAndBytes:
    """A network with two numbers, cost and bytes, for each variable and pair of variables."""

    def __init__(self, paid: CostNetwork, held: CostNetwork) -> None:
        count, first = paid.operators, len(paid.cost)
        self.tables: dict[tuple[int, ...], list[Floats]] = {}
        for side, network in enumerate((paid, held)):
            for scope, table in itertools.chain(
                (((v,), cost) for v, cost in enumerate(network.cost)), network.pairs.items()
            ):
                named = tuple(v if side == 0 or v < count else v - count + first for v in scope)
                both = self.tables.setdefault(named, [np.zeros(table.shape) for _ in range(2)])
                both[side] = both[side] + table
        pairs = {(s[0], s[1]): both[0] for s, both in self.tables.items() if len(s) == 2}
        none = [np.zeros(len(one)) for one in (*paid.cost, *held.cost[count:])]
        self.network = CostNetwork(none, pairs, count)


#: Largest relative error of sums of costs or bytes by rounding; and what the whole memory costs at
#: the first price, relative to the bound.
ROUNDING = 1e-9

#: Largest number of prices.
STEPS = 24


@dataclass(frozen=True, eq=False)
class _LagrangianLine:
    """The Lagrangian of a plan as a line: cost + price · (held − room)."""

    chosen: Ints
    cost: float
    held: float


@dataclass(frozen=True, eq=False)
class _Prices:
    """The Lagrangian search over prices of memory, with the bound of each price."""

    costs: ShardingCosts
    search: Search[Solution]
    proved: dict[float, float] = field(default_factory=dict)

    @property
    def room(self) -> float:
        """Bytes of a device."""
        assert self.costs.problem.memory_bytes is not None
        return self.costs.problem.memory_bytes

    def line(self, price: float, start: _LagrangianLine | None) -> _LagrangianLine | None:
        """Plan at a price, offer the plan and raise the bound; None if the search has to stop."""
        asked = priced(self.costs, price)
        known = None if start is None else with_views(self.costs, start.chosen)
        *_, (bound, chosen) = approach(asked, self.search, known, FIRST)
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
        line = _LagrangianLine(plain, cost, (counted - cost) / price)
        return None if self.search.should_stop() else line

    def offer_blend(self, low: _LagrangianLine, high: _LagrangianLine) -> None:
        """Offer a plan that consists of parts of two others, if it fits."""
        mixed = blend(self.costs, low.chosen, high.chosen, self.room)
        if mixed is not None:
            self.search.offer(TensorSharding(self.costs.signature(mixed)))


def priced_memory(costs: ShardingCosts, search: Search[Solution]) -> float:
    """Offer plans that fit and raise the bound by prices of memory.

    See (9) of `formulations.sharding.memory`. Returns the price of the best bound, 0 without.
    """
    prices = _Prices(costs, search)
    with search.phase("priced memory"):
        _best_price(prices)
    return max(prices.proved, key=prices.proved.__getitem__, default=0.0)


def _best_price(prices: _Prices) -> None:
    """Raise the price until the plan fits, then try prices where the lines of plans cross.

    These are the lines of the last plan that fits and of the last that does not; where they cross,
    a best plan has at most that Lagrangian.
    """
    room = prices.room
    free = max(prices.search.bound, 0.0) / room if room > 0 else 0.0
    low = prices.line(free * ROUNDING, None) if free > 0 else None
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
        crossing = (high.cost + price * high.held) * (1 - FIRST)
        if found is None or found.cost + price * found.held >= crossing:
            break
        low, high = (found, high) if found.held > room else (low, found)
        steps += 1
    prices.offer_blend(low, high)


def blend(costs: ShardingCosts, large: Ints, small: Ints, room: float) -> Ints | None:
    """Return choices that hold at most `room` bytes, None if `small` holds more.

    The operators in which `large`, which costs less, and `small` differ fall into parts that share
    no tensor, so that each part can be of either. Parts of `small` replace those of `large` by
    ascending cost per byte saved until all fits; then those that are not needed are taken back, the
    most expensive first.
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
    """Return the cost per byte saved by a part; `inf` if it saves none."""
    _, dearer, saved = part
    return dearer / saved if saved > 0 else float("inf")


def _parts(terms: Iterable[Term], one: Ints, other: Ints) -> list[Ints]:
    """Return the operators in which two shardings differ, by components that share tensors."""
    import networkx as nx

    differs = one != other
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(np.flatnonzero(differs).tolist())
    for term in terms:
        around = (term.maker, *(use.operator for use in term.uses))
        nx.add_path(graph, [v for v in around if differs[v]])
    return [np.array(sorted(members)) for members in nx.connected_components(graph)]


def _changed(costs: ShardingCosts, operators: Ints, before: Ints, after: Ints) -> float:
    """Return by how much the cost grows if operators change their choices."""
    inside = set(operators.tolist())
    grown = 0.0
    for v in inside:
        cost = costs.choices[v].cost
        grown += float(cost[after[v]] - cost[before[v]])
    for k in {k for v in inside for k in costs.terms_of[v]}:
        grown += costs.terms[k].value(after) - costs.terms[k].value(before)
    return grown


def least_cost_that_fits(
    costs: ShardingCosts, search: Search[Solution], price: float
) -> Ints | None:
    """Offer the plan of least cost that fits, raise the bound to that cost, and return its choices.

    None if fronts become too large, or no plan that fits costs less than the best one known. If the
    costs are a mixture of ends, the plan may take longer than its cost says. Any `price` of a byte
    is valid: the better its bound (9), the fewer choices are left.
    """
    room, least = costs.problem.memory_bytes, search.objective
    assert room is not None
    worth = price * room * (1 + ROUNDING)
    left = choices_left(priced(costs, price), search, least + worth)
    paid = cost_network(priced(costs, 0.0).only(left))
    held = cost_network(priced(without_costs(costs), 1.0).only(left))
    try:
        found = _cheapest(_CostAndBytes(paid, held), least, float(room_of(room)), search)
    except _TooManyError:
        return None
    chosen = None
    if found is not None:
        least, values = found[0], dict(_values(found[2]))
        picked = np.array([int(k[values[v]]) for v, k in enumerate(left)])
        signature = priced(costs, 0.0).signature(picked)
        search.offer(TensorSharding(signature))
        chosen = costs.chosen(signature)
    if search.best is not None:
        bound = least - MARGIN * abs(least)
        search.raise_bound(bound, FITTING, {**evidence(costs, bound), "price": price})
    return chosen


def _cheapest(
    both: _CostAndBytes, below: float, room: float, search: Search[Solution]
) -> Point | None:
    """Return the cheapest point of at most `room` bytes and cost below `below`; None without."""
    order = elimination_order(both.network, MOST)
    if order.entries > MOST:
        raise _TooManyError
    rank = {v: k for k, v in enumerate(order.variables)}
    buckets: dict[int, list[tuple[tuple[int, ...], list[Floats]]]] = {v: [] for v in rank}
    for scope, tables in both.tables.items():
        buckets[min(scope, key=rank.__getitem__)].append((scope, tables))
    made: dict[int, list[tuple[tuple[int, ...], dict[tuple[int, ...], list[Point]]]]] = {
        v: [] for v in rank
    }
    added = 0
    left: list[Point] = [(0.0, 0.0, ((), ()))]
    for v in order.variables:
        names = {u for scope, _ in (*buckets[v], *made[v]) for u in scope}
        around = tuple(sorted(names - {v}, key=rank.__getitem__))
        fronts: dict[tuple[int, ...], list[Point]] = {}
        for cell in itertools.product(*(range(len(both.network.cost[u])) for u in around)):
            at = dict(zip(around, cell, strict=True))
            points: list[Point] = []
            for value in range(len(both.network.cost[v])):
                at[v] = value
                own = [0.0, 0.0]
                for scope, tables in buckets[v]:
                    where = tuple(at[u] for u in scope)
                    own[0] += float(tables[0][where])
                    own[1] += float(tables[1][where])
                some: list[Point] = [(own[0], own[1], (v, value))]
                for scope, known in made[v]:
                    other = known[tuple(at[u] for u in scope)]
                    added += len(some) * len(other)
                    if added > MOST or search.should_stop():
                        raise _TooManyError
                    some = _best(_sums(some, other), below, room)
                points += some
            fronts[cell] = _best(points, below, room)
        if around:
            made[around[0]].append((around, fronts))
        else:
            left = _best(_sums(left, fronts[()]), below, room)
    return left[0] if left else None


def _sums(some: Iterable[Point], others: list[Point]) -> Iterator[Point]:
    for c, h, of in some:
        for d, k, which in others:
            yield c + d, h + k, (of, which)


def _best(points: Iterable[Point], below: float, room: float) -> list[Point]:
    """Return the Pareto front of points, the cheapest first."""
    found: list[Point] = []
    least = np.inf
    for point in sorted((p for p in points if p[0] < below and p[1] <= room), key=lambda p: p[:2]):
        if point[1] < least:
            found.append(point)
            least = point[1]
    return found


def _values(of: tuple[object, ...]) -> Iterator[tuple[int, int]]:
    """Yield the variables and values of a point."""
    waiting: list[object] = [of]
    while waiting:
        match waiting.pop():
            case (int(variable), int(value)):
                yield variable, value
            case (one, other):
                waiting += (one, other)
