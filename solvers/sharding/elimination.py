"""Elimination: the optimum of a sharding without a limit of memory, and bounds with one."""

from __future__ import annotations

import numpy as np
import psutil

from ...formulations.sharding.costs import ShardingCosts, sharding_costs
from ...formulations.sharding.evidence import MARGIN, evidence
from ...formulations.sharding.network import (
    CostNetwork,
    Reduced,
    cost_network,
    reduce_network,
)
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ...instances.common.arrays import Ints
from ...instances.formats.certificate import ELIMINATED
from ..core.search import Search, Stoppable
from .bucket_elimination import Order, eliminate, elimination_order
from .least_memory import is_too_small

#: Part of the memory that is free now which the tables may take, eleven bytes an entry.
MEMORY_SHARE, ENTRY_BYTES = 0.5, 11
#: Entries of all tables up to which elimination is a matter of a minute.
MOST_ENTRIES = 2_000_000_000


def elimination(task: Task[Sharding], search: Search[Solution]) -> None:
    """Find the optimum by elimination; refuse if its tables would be too large.

    With a limit of memory this is the optimum if it keeps it, else a bound.
    """
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    with search.phase("elimination"):
        chosen = cheapest(costs, search)
    if chosen is None:
        return
    search.offer(TensorSharding(costs.signature(chosen)))
    bound = costs.objective(chosen)
    bound -= MARGIN * abs(bound)
    search.raise_bound(bound, ELIMINATED, evidence(costs, bound))


def cheapest(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Return the choices of least cost, memory aside; None if that is too much, with a note."""
    network = cost_network(costs)
    reduced = reduce_network(network)
    order = elimination_order(network)
    if is_too_large(order, MOST_ENTRIES):
        size = f"{order.entries} entries, the largest table {order.largest}"
        search.note(f"elimination: its tables would have {size}: too many")
        return None
    return _eliminated(network, reduced, order, search)


def cheapest_of_few(costs: ShardingCosts, search: Stoppable, most: int) -> Ints | None:
    """Return the choices of least cost; None if the tables would have too many entries."""
    network = cost_network(costs)
    reduced = reduce_network(network)
    order = elimination_order(network, most)
    return None if is_too_large(order, most) else _eliminated(network, reduced, order, search)


def is_too_large(order: Order, most: int) -> bool:
    """Whether the tables have more entries, or take more memory than there is to spare."""
    room = psutil.virtual_memory().available * MEMORY_SHARE / ENTRY_BYTES
    return order.largest > room or order.entries > most


def _eliminated(
    network: CostNetwork, reduced: Reduced, order: Order, search: Stoppable
) -> Ints | None:
    found = eliminate(network, order, search.should_stop)
    if found is None:
        return None
    _, picked = found
    values = np.array([one[k] for one, k in zip(network.values, picked, strict=True)], np.int64)
    return reduced.restore(values)[: network.operators]
