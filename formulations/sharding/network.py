"""Sharding as a sum of costs of one and of two variables, for elimination and local search.

The cost (1) of `costs.py` has terms over all readers of a tensor. With w_{T,b}, whether T is
converted to b, it is a sum over pairs:

    min  Σ_v cost_v(σ_v) + Σ_{T,b} ( w_{T,b} · conversion_T(made_T(σ), b)
                                     + Σ_{v reads T} (1 − w_{T,b}) · M_{T,b} · [σ_v needs b] )   (4)

M_{T,b} = max_a conversion_T(a, b): who needs b while T is not converted for all pays for a
conversion of its own, which is never cheaper. What a single operator needs has no w: its pair is
that of maker and reader. The minimum of (4) is that of (1).

A value of a variable is left out if another is at least as good whatever the others are:

    cost(s) − cost(r) + Σ_u max_y ( pair_u(s, y) − pair_u(r, y) ) ≤ 0  ⇒  r is left out         (5)

(R. Goldstein, "Efficient rotamer elimination applied to protein side-chains", 1994.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from .costs import ShardingCosts

#: Comparisons of two values with all of a neighbour that one variable may take.
MOST_COMPARISONS = 20_000_000

#: What is left of a pair of costs, relative to the largest, for it to be a sum of two costs.
SEPARABLE = 1e-13


@dataclass(eq=False)
class CostNetwork:
    """Variables with costs of their values and of pairs of values."""

    # of each variable the values that are left, by their number: for operators choices, for others
    # 0 and 1
    values: list[Ints]
    cost: list[Floats]  # of each variable: of each of its values
    # for u < v: the cost of each value of u (rows) with each of v (columns)
    pairs: dict[tuple[int, int], Floats]
    operators: int  # the first so many variables are operators
    neighbours: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.neighbours = [set() for _ in self.values]
        for u, v in self.pairs:
            self.neighbours[u].add(v)
            self.neighbours[v].add(u)

    def pair(self, u: int, v: int) -> Floats:
        """Return the costs of two neighbours, values of u as rows."""
        return self.pairs[u, v] if u < v else self.pairs[v, u].T

    def keep(self, v: int, kept: Bools | Ints) -> None:
        """Leave only some values of a variable."""
        self.values[v], self.cost[v] = self.values[v][kept], self.cost[v][kept]
        for u in self.neighbours[v]:
            if u < v:
                self.pairs[u, v] = self.pairs[u, v][:, kept]
            else:
                self.pairs[v, u] = self.pairs[v, u][kept]

    def drop_pair(self, u: int, v: int) -> None:
        """Forget the costs of two neighbours."""
        del self.pairs[min(u, v), max(u, v)]
        self.neighbours[u].discard(v)
        self.neighbours[v].discard(u)


def cost_network(costs: ShardingCosts) -> CostNetwork:
    """Return the network of (4)."""
    values = [np.arange(len(choices.cost)) for choices in costs.choices]
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
            w = len(values)
            values.append(np.arange(2))
            own.append(np.zeros(2))
            add(w, maker, np.stack([np.zeros(len(price)), price]))
            for v, wants in by.items():
                add(w, v, np.stack([dearest * wants, np.zeros(len(wants))]))
    return CostNetwork(values, own, pairs, len(costs.choices))


def reduce_network(network: CostNetwork) -> None:
    """Leave values out by (5), in place, until nothing more goes.

    Pairs whose costs are sums of one cost each are no pairs: they go, too.
    """
    waiting = set(range(len(network.values)))
    while waiting:
        v = min(waiting)
        waiting.discard(v)
        around = set(network.neighbours[v])
        kept = _undominated(network, v)
        if not kept.all():
            network.keep(v, kept)
            waiting |= around | {v}
            continue
        for u in sorted(around):
            if _part(network, v, u):
                waiting |= {u, v}


def _part(network: CostNetwork, v: int, u: int) -> bool:
    """Split the pair of v and u into costs of each alone, if it is such a sum."""
    table = network.pair(v, u)
    rows, columns = table[:, :1], table[:1] - table[0, 0]
    scale = float(np.abs(table).max(initial=0.0))
    if (np.abs(table - rows - columns) > SEPARABLE * scale).any():
        return False
    network.cost[v] = network.cost[v] + rows[:, 0]
    network.cost[u] = network.cost[u] + columns[0]
    network.drop_pair(v, u)
    return True


def _undominated(network: CostNetwork, v: int) -> Bools:
    """Return which values of a variable are left by (5)."""
    cost, count = network.cost[v], len(network.cost[v])
    kept = np.ones(count, np.bool_)
    others = sorted(network.neighbours[v])
    work = count * count * sum(len(network.values[u]) for u in others)
    if count == 1 or work > MOST_COMPARISONS:
        return kept
    worse = cost[:, None] - cost[None, :]  # s as rows, r as columns
    for u in others:
        table = network.pair(v, u)
        worse = worse + (table[:, None, :] - table[None, :, :]).max(axis=2)
    falls = worse <= 0.0
    np.fill_diagonal(falls, False)
    for r in range(count - 1, -1, -1):  # of equal ones the first stays
        if (falls[:, r] & kept).any():
            kept[r] = False
    return kept
