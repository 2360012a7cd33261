"""The cheapest sharding that fits: elimination by cost and bytes at once.

Where elimination keeps the least cost of a variable for its neighbours' values, this keeps every
pair of cost and bytes that no other is better than in both, and that can still belong to a plan
that fits and is cheaper than the best one known. That is exact, and closes what prices leave open;
but pairs may become too many, and choices that the best price leaves out are left out first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.evidence import MARGIN, evidence
from ...formulations.sharding.memory import priced, without_costs
from ...formulations.sharding.network import CostNetwork, cost_network
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Solution, TensorSharding
from ...instances.common.arrays import Floats
from ...instances.formats.certificate import FITTING
from ..core.search import Search
from .elimination import elimination_order
from .messages import choices_left

#: Pairs of cost and bytes that are added up, and entries of tables, at most.
MOST = 300_000

#: How much more than the memory a plan may hold, relatively, for rounding.
SLACK = 1e-9

#: Cost, bytes, and what they are of: a variable with its value, or two of these.
Point = tuple[float, float, tuple[object, object]]


class _TooManyError(Exception):
    """More pairs than are tried."""


def fitting(costs: ShardingCosts, search: Search[Solution], price: float) -> None:
    """Offer the best plan that fits, and prove that it is; do nothing if that is too much.

    Parameters
    ----------
    price
        Of a byte, any: the better its bound (9), the fewer choices are left.
    """
    room = costs.problem.memory_bytes
    assert room is not None
    worth = price * room * (1 + SLACK)
    left = choices_left(priced(costs, price), search, search.objective + worth)
    paid = cost_network(priced(costs, 0.0).only(left))
    held = cost_network(priced(without_costs(costs), 1.0).only(left))
    try:
        found = _cheapest(_Both(paid, held), search.objective, float(room_of(room)), search)
    except _TooManyError:
        return
    if found is not None:
        values = dict(_values(found[2]))
        chosen = [int(k[values[v]]) for v, k in enumerate(left)]
        search.offer(TensorSharding(priced(costs, 0.0).signature(np.array(chosen))))
    if search.best is not None:
        bound = search.objective - MARGIN * abs(search.objective)
        proof = {**evidence(costs, bound), "price": price}
        search.raise_bound(bound, FITTING, proof)


class _Both:
    """Costs and bytes as one network: of each variable and pair of variables, two numbers."""

    def __init__(self, paid: CostNetwork, held: CostNetwork) -> None:
        count, first = paid.operators, len(paid.values)
        self.values = [*paid.values, *held.values[count:]]
        self.tables: dict[tuple[int, ...], list[Floats]] = {}
        for side, network in enumerate((paid, held)):
            for scope, table in itertools.chain(
                (((v,), cost) for v, cost in enumerate(network.cost)), network.pairs.items()
            ):
                named = tuple(v if side == 0 or v < count else v - count + first for v in scope)
                both = self.tables.setdefault(named, [np.zeros(table.shape) for _ in range(2)])
                both[side] = both[side] + table
        pairs = {(s[0], s[1]): both[0] for s, both in self.tables.items() if len(s) == 2}
        none = [np.zeros(len(one)) for one in self.values]
        self.network = CostNetwork(self.values, none, pairs, count)


def _cheapest(both: _Both, below: float, room: float, search: Search[Solution]) -> Point | None:
    """Return the cheapest that takes at most `room`, and costs less than `below`; None without."""
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
        for cell in itertools.product(*(range(len(both.values[u])) for u in around)):
            at = dict(zip(around, cell, strict=True))
            points: list[Point] = []
            for value in range(len(both.values[v])):
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
    """Return those that none is better than in both, the cheapest first."""
    found: list[Point] = []
    least = np.inf
    for point in sorted((p for p in points if p[0] < below and p[1] <= room), key=lambda p: p[:2]):
        if point[1] < least:
            found.append(point)
            least = point[1]
    return found


def _values(of: tuple[object, ...]) -> Iterator[tuple[int, int]]:
    """Yield the variables and values that a point is of."""
    waiting: list[object] = [of]
    while waiting:
        match waiting.pop():
            case (int(variable), int(value)):
                yield variable, value
            case (one, other):
                waiting += (one, other)
