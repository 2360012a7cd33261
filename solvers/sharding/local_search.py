"""Local search for sharding: elimination over a part of the program at a time, the rest fixed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...formulations.sharding.costs import CostNetwork, ShardingCosts, cost_network, sharding_costs
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search
from .baselines import first_plans
from .elimination import eliminate, elimination_order
from .mixtures import is_too_small

#: Variables of a part, entries that its tables may have, and parts that may fail in a row.
PART, ENTRIES, FAILURES = 60, 2_000_000, 60


def local_search(task: Task[Sharding], search: Search[Solution]) -> None:
    """Improve the best of the rules' plans part by part until many parts in a row bring nothing."""
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    with search.phase("first plans"):
        first_plans(costs, search)
    with search.phase("local search"):
        improve(costs, search)


def improve(costs: ShardingCosts, search: Search[Solution], weights: Floats | None = None) -> None:
    """Improve the incumbent part by part until `FAILURES` parts in a row bring nothing.

    A part is optimised for the sum of all costs, or for the mixture of ends with these weights.
    """
    if not isinstance(search.best, TensorSharding):
        return
    network = cost_network(costs if weights is None else costs.mixed(weights))
    rng = np.random.default_rng(search.limits.seed)
    chosen = costs.chosen(search.best.signature)
    assert chosen is not None
    value, failures, rounds = costs.objective(chosen), 0, 0
    while failures < FAILURES and not search.should_stop():
        if search.out_of_nodes(rounds):
            break
        rounds += 1
        part = _part(network, int(rng.integers(network.operators)))
        better = _replanned(network, part, chosen, search)
        failures += 1
        if better is None or (better == chosen).all():
            continue
        objective = costs.objective(better)
        if objective < value * (1 - 1e-12):
            chosen, value, failures = better, objective, 0
    search.offer(TensorSharding(costs.signature(chosen)))


def _part(network: CostNetwork, centre: int) -> list[int]:
    """Return the `PART` variables nearest to one in the network."""
    found, queue = {centre}, [centre]
    for v in queue:
        for u in sorted(network.neighbours[v]):
            if u not in found and len(found) < PART:
                found.add(u)
                queue.append(u)
    return sorted(found)


def _replanned(
    network: CostNetwork, part: Iterable[int], chosen: Ints, search: Search[Solution]
) -> Ints | None:
    """Return the choices with one part at its optimum; None if its tables are too large."""
    value = _values(network, chosen)
    inside = {v: k for k, v in enumerate(part)}
    own = [network.cost[v].copy() for v in inside]
    pairs = {}
    for v, k in inside.items():
        for u in network.neighbours[v]:
            if u in inside:
                if v < u:
                    pairs[k, inside[u]] = network.pair(v, u)
            else:
                own[k] = own[k] + network.pair(v, u)[:, value[u]]
    operators = sum(v < network.operators for v in inside)
    small = CostNetwork(own, pairs, operators)
    order = elimination_order(small)
    if order.entries > ENTRIES:
        return None
    best = eliminate(small, order, search.should_stop)
    if best is None:
        return None
    after = chosen.copy()
    for v, k in inside.items():
        if v < network.operators:
            after[v] = best[k]
    return after


def _values(network: CostNetwork, chosen: Ints) -> Ints:
    """Return the values of all variables, conversions included, at least cost for the choices."""
    value = np.zeros(len(network.cost), np.int64)
    value[: network.operators] = chosen
    for w in range(network.operators, len(network.cost)):
        cost = network.cost[w].copy()
        for u in network.neighbours[w]:
            cost = cost + network.pair(w, u)[:, value[u]]
        value[w] = int(cost.argmin())
    return value
