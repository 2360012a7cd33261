"""Elimination of variables: the optimum of a sharding without a limit of memory, a bound with one.

Eliminating a variable replaces it, and all costs that depend on it, by a table of their least sum
for all values of its neighbours, which become neighbours of each other. The order is greedy, by the
smallest table; it is known, with the size of every table, before any is computed.

See R. Dechter, "Bucket elimination: a unifying framework for reasoning", 1999.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil

from ...formulations.sharding.costs import CostNetwork, ShardingCosts, cost_network, sharding_costs
from ...formulations.sharding.relaxation import MARGIN, evidence
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ...instances.common.arrays import Floats, Ints
from ...instances.formats.plan_json import ELIMINATED
from ..core.search import Clock, Search
from .mixtures import is_too_small, minimise_sums


@dataclass(frozen=True)
class EliminationOrder:
    """An order of elimination, with the number of entries of its tables."""

    variables: tuple[int, ...]  # first to last
    largest: int  # largest, entries: entries of the largest table, and of all tables
    entries: int


#: Bytes of free memory for each entry of the largest table: twice what an entry takes.
ENTRY_BYTES = 22

#: Entries of all tables up to which elimination takes about a minute.
MOST_ENTRIES = 2_000_000_000


def elimination(task: Task[Sharding], search: Search[Solution]) -> None:
    """Find the optimum by elimination, unless its tables would be too large.

    A limit of memory is ignored: the result is the optimum if it keeps the limit, else a bound.
    """
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    minimise_sums(costs, search, eliminate_all)


def eliminate_all(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Return the choices of least cost, where that is a sum, and raise the bound to their cost."""
    with search.phase("elimination"):
        chosen = cheapest(costs, search)
    if chosen is None:
        return None
    search.offer(TensorSharding(costs.signature(chosen)))
    bound = costs.objective(chosen)
    bound -= MARGIN * abs(bound)
    search.raise_bound(bound, ELIMINATED, evidence(costs, bound))
    return chosen


def cheapest(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Return the choices of least cost without memory; None if tables are too large."""
    network = cost_network(costs)
    order = elimination_order(network)
    if is_too_large(order, MOST_ENTRIES):
        size = f"{order.entries} entries, the largest table {order.largest}"
        search.note(f"elimination: its tables would have {size}: too many")
        return None
    return _eliminated(network, order, search)


def cheapest_of_few(costs: ShardingCosts, search: Clock, most: int) -> Ints | None:
    """Return the choices of least cost; None if the tables would have too many entries."""
    network = cost_network(costs)
    order = elimination_order(network, most)
    return None if is_too_large(order, most) else _eliminated(network, order, search)


def is_too_large(order: EliminationOrder, most: int) -> bool:
    """Whether the tables have more entries, or take more memory than there is to spare."""
    room = psutil.virtual_memory().available / ENTRY_BYTES
    return order.largest > room or order.entries > most


def _eliminated(network: CostNetwork, order: EliminationOrder, search: Clock) -> Ints | None:
    found = eliminate(network, order, search.should_stop)
    return None if found is None else found[: network.operators]


def elimination_order(network: CostNetwork, most: float = math.inf) -> EliminationOrder:
    """Return a greedy order by size of tables; one of more entries is left unfinished."""
    graph = [set(one) for one in network.neighbours]
    sizes = list(map(len, network.cost))

    def entries_of(v: int) -> int:
        return math.prod(sizes[u] for u in graph[v]) * sizes[v]

    current = [entries_of(v) for v in range(len(graph))]
    heap = [(size, v) for v, size in enumerate(current)]
    heapq.heapify(heap)
    done = [False] * len(graph)
    order, largest, entries = [], 0, 0
    while heap and entries <= most:
        size, v = heapq.heappop(heap)
        if done[v] or size != current[v]:
            continue
        done[v] = True
        order.append(v)
        largest, entries = max(largest, size), entries + size
        for u in graph[v]:
            graph[u].discard(v)
            graph[u] |= graph[v] - {u}
        for u in graph[v]:
            fresh = entries_of(u)
            if fresh != current[u]:
                current[u] = fresh
                heapq.heappush(heap, (fresh, u))
    return EliminationOrder(tuple(order), largest, entries)


def eliminate(
    network: CostNetwork, order: EliminationOrder, should_stop: Callable[[], bool]
) -> Ints | None:
    """Return the value of each variable at the least cost; None if it has to stop."""
    buckets: list[list[tuple[tuple[int, ...], Floats]]] = [[] for _ in network.cost]
    rank = {v: k for k, v in enumerate(order.variables)}
    for v, cost in enumerate(network.cost):
        buckets[v].append(((v,), cost))
    for (u, v), table in network.pairs.items():
        buckets[min(u, v, key=rank.__getitem__)].append(((u, v), table))
    best: dict[int, tuple[tuple[int, ...], Ints]] = {}
    for v in order.variables:
        if should_stop():
            return None
        scope = tuple(sorted({u for names, _ in buckets[v] for u in names} - {v}, key=rank.get))  # type: ignore[arg-type]
        axes = (*scope, v)
        joint = np.zeros(tuple(len(network.cost[u]) for u in axes))
        for names, table in buckets[v]:
            joint += _spread(table, names, axes)
        buckets[v] = []
        chosen = joint.argmin(axis=-1)
        best[v] = (scope, chosen.astype(np.int16))
        if scope:
            least = np.take_along_axis(joint, chosen[..., None], axis=-1)[..., 0]
            buckets[scope[0]].append((scope, least))
    picked = np.zeros(len(network.cost), np.int64)
    for v in reversed(order.variables):
        scope, chosen = best[v]
        picked[v] = chosen[tuple(picked[u] for u in scope)]
    return picked


def _spread(table: Floats, names: tuple[int, ...], axes: tuple[int, ...]) -> Floats:
    """Return a table with all these axes, of extent 1 where it does not depend on one."""
    place = sorted(range(len(names)), key=lambda k: axes.index(names[k]))
    shaped = table.transpose(place) if len(names) > 1 else table
    extents = iter(shaped.shape)
    return shaped.reshape([next(extents) if u in names else 1 for u in axes])
