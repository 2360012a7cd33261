"""Elimination: the optimum of a sharding without a limit of memory, and bounds with one."""

from __future__ import annotations

import numpy as np
import psutil

from ...formulations.sharding.costs import ShardingCosts, sharding_costs
from ...formulations.sharding.network import cost_network, reduce_network
from ...formulations.task import Task
from ...instances import Sharding, Solution, TensorSharding
from ...instances.common.arrays import Ints
from ..core.search import Search
from .bucket_elimination import eliminate, elimination_order
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
    search.raise_bound(costs.objective(chosen), "elimination")


def cheapest(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Return the choices of least cost, memory aside; None if that is too much, with a note."""
    network = cost_network(costs)
    reduced = reduce_network(network)
    order = elimination_order(network)
    room = psutil.virtual_memory().available * MEMORY_SHARE / ENTRY_BYTES
    size = f"{order.entries} entries, the largest table {order.largest}"
    if order.largest > room or order.entries > MOST_ENTRIES:
        search.note(f"elimination: its tables would have {size}: too many")
        return None
    found = eliminate(network, order, search.should_stop)
    if found is None:
        return None
    _, picked = found
    values = np.array([one[k] for one, k in zip(network.values, picked, strict=True)], np.int64)
    return reduced.restore(values)[: network.operators]
