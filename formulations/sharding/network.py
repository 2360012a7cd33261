"""Sharding as a sum of costs of one and of two variables, for elimination and local search.

The cost (1) of `costs.py` has terms over all readers of a tensor. With w_{T,b}, whether T is
converted to b, it is a sum over pairs:

    min  Σ_v cost_v(σ_v) + Σ_{T,b} ( w_{T,b} · conversion_T(made_T(σ), b)
                                     + Σ_{v reads T} (1 − w_{T,b}) · M_{T,b} · [σ_v needs b] )   (4)

M_{T,b} = max_a conversion_T(a, b): who needs b while T is not converted for all pays for a
conversion of its own, which is never cheaper. What a single operator needs has no w: its pair is
that of maker and reader. The minimum of (4) is that of (1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...instances.common.arrays import Bools, Floats
from .costs import ShardingCosts


@dataclass(eq=False)
class CostNetwork:
    """Variables with costs of their values and of pairs of values."""

    # of each variable: of each of its values, for operators of their choices, for others of 0 and 1
    cost: list[Floats]
    # for u < v: the cost of each value of u (rows) with each of v (columns)
    pairs: dict[tuple[int, int], Floats]
    operators: int  # the first so many variables are operators
    neighbours: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.neighbours = [set() for _ in self.cost]
        for u, v in self.pairs:
            self.neighbours[u].add(v)
            self.neighbours[v].add(u)

    def pair(self, u: int, v: int) -> Floats:
        """Return the costs of two neighbours, values of u as rows."""
        return self.pairs[u, v] if u < v else self.pairs[v, u].T


def cost_network(costs: ShardingCosts) -> CostNetwork:
    """Return the network of (4)."""
    own = [choices.cost.copy() for choices in costs.choices]
    pairs: dict[tuple[int, int], Floats] = {}

    def add(u: int, v: int, table: Floats) -> None:
        if u > v:
            u, v, table = v, u, table.T
        pairs[u, v] = pairs[u, v] + table if (u, v) in pairs else table

    for term in costs.terms:
        maker = term.maker
        needs: dict[int, dict[int, Bools]] = {}  # by property, by operator: which choices need it
        for use in term.uses:
            for b in np.unique(use.needs).tolist():
                by = needs.setdefault(b, {})
                wants = use.needs == b
                by[use.operator] = by[use.operator] | wants if use.operator in by else wants
        for b, by in needs.items():
            price = term.cost[term.makes, b]
            dearest = float(price.max())
            if dearest == 0:
                continue
            if len(by) == 1:
                ((v, wants),) = by.items()
                add(maker, v, price[:, None] * wants[None, :])
                continue
            w = len(own)
            own.append(np.zeros(2))
            add(w, maker, np.stack([np.zeros(len(price)), price]))
            for v, wants in by.items():
                add(w, v, np.stack([dearest * wants, np.zeros(len(wants))]))
    return CostNetwork(own, pairs, len(costs.choices))
