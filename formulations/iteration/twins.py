"""Twins: units that can change places. Exact, with its proof.

Units are twins if they have the same units before and behind them, cost the same on every kind of
device, take the same memory, and every net holds one of them alone, as part of nets that are equal
but for that, or all of them. Exchanging the stages of two twins changes neither times nor memory of
any stage. So some best plan has them in the order of their numbers, and an edge from each to the
next loses nothing. The experts of a layer are twins: 2^8 ideals become 9.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ...instances.common.arrays import Bools, Floats
from ..throughput.hypergraph import Hypergraph


def twins(
    graph: Hypergraph, resident: Floats, activation: Floats, named: Bools
) -> list[tuple[int, ...]]:
    """Return the classes of at least two twins, each increasing.

    Parameters
    ----------
    resident, activation
        Shape (U,): bytes of each unit.
    named
        Shape (U,): units that have no twins, because the user has a rule for them.
    """
    before: list[list[int]] = [[] for _ in range(graph.size)]
    behind: list[list[int]] = [[] for _ in range(graph.size)]
    for a, b in graph.edges.tolist():
        behind[a].append(b)
        before[b].append(a)
    nets: list[list[int]] = [[] for _ in range(graph.size)]
    for e, pins in enumerate(graph.pins):
        for u in pins:
            nets[u].append(e)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for u in np.flatnonzero(~named).tolist():
        costs = graph.compute[:, :, u].tobytes(), float(resident[u]), float(activation[u])
        alike[(*map(tuple, map(sorted, (before[u], behind[u]))), *costs)].append(u)
    found = []
    for group in alike.values():
        if len(group) > 1:
            exact: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for u in group:
                exact[_signature(graph, nets[u], u, frozenset(group))].append(u)
            found += [tuple(same) for same in exact.values() if len(same) == len(group)]
    return found


def _signature(
    graph: Hypergraph, nets: list[int], unit: int, group: frozenset[int]
) -> tuple[object, ...]:
    """Return what a unit's nets are, apart from the members of its group."""
    parts = []
    for e in nets:
        pins = frozenset(graph.pins[e])
        inside = pins & group
        alone = len(inside) == 1
        if not alone and inside != group:
            return (unit,)
        parts.append((tuple(sorted(pins - group)), alone, graph.weight[:, :, e].tobytes()))
    return tuple(sorted(parts))
