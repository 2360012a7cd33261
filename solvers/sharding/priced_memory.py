"""A price for the memory of parameters: plans that fit, and a bound, by elimination.

What parameters take with gradients and optimizer state is a cost of single operators. For a price
of λ ≥ 0 a byte,

    min over shardings ( cost + λ · (bytes of parameters − M) )

is no more than the least cost of a sharding that fits, as that has at most M bytes of them.
Activations have no price: what they take only shows when a plan is judged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formulations.sharding.costs import ShardingCosts
from ...formulations.sharding.memory import own_bytes
from ...instances import Role, Solution, TensorSharding
from ..core.search import Search
from .elimination import cheapest

#: By how much rounding of sums may make a bound too high, relatively.
ROUNDING = 1e-9

#: Prices that are tried: powers of ten of the cost for all bytes of parameters, then by halves.
STEPS = 12


def priced_memory(costs: ShardingCosts, search: Search[Solution]) -> None:
    """Offer the cheapest shardings for several prices, and raise the bound by each."""
    room = costs.problem.memory_bytes
    assert room is not None
    operators = costs.program.operators
    own = {v: np.array(own_bytes(costs, v)) for v, o in enumerate(operators)
           if o.role is Role.PARAMETER}  # fmt: skip
    scale = sum(float(one.max()) for one in own.values())
    if not own or not scale or not search.bound > 0:
        return
    low, high = 0.0, search.bound / scale
    with search.phase("priced memory"):
        for _ in range(STEPS):
            price = high if low == 0.0 else (low * high) ** 0.5
            priced = tuple(
                replace(c, cost=c.cost + price * own[v]) if v in own else c
                for v, c in enumerate(costs.choices)
            )
            chosen = cheapest(replace(costs, choices=priced), search)
            if chosen is None or search.should_stop():
                return
            used = sum(float(one[chosen[v]]) for v, one in own.items())
            cost = costs.objective(chosen)
            bound = cost + price * (used - room)
            search.raise_bound(bound - ROUNDING * (abs(cost) + price * scale), "priced memory")
            search.offer(TensorSharding(costs.signature(chosen)))
            fits = search.value(TensorSharding(costs.signature(chosen))) < float("inf")
            if fits:
                high = price
                low = low or high / 1000
            elif low:
                low = price
            else:
                high *= 10
