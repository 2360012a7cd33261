"""Large-neighbourhood search within the compact program: a few slots free, the rest as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np

from ...formulations.linear import Linear
from ...formulations.throughput.compact import Compact
from ...instances import Solution
from ...instances.common.arrays import Floats, Ints
from ..core.compiled_model import Compiled
from ..core.highs import run_highs
from ..core.search import Search

#: Limits of one neighbourhood: nodes, and seconds unless the search is limited by nodes.
NODES = 100
SECONDS = 2.0
#: Share of the time left that all neighbourhoods may take.
SHARE = 0.2


def improve_slots(
    stated: Compact,
    compiled: Compiled,
    linear: Linear,
    search: Search[Solution],
    start: Floats,
    offer: Callable[[Floats], None],
) -> Floats:
    """Re-optimise the most loaded slot with one or two others until none helps; return the last.

    All rules stay, so this serves every split, pipeline and cluster.

    Parameters
    ----------
    start
        Values of the whole-number columns, NaN elsewhere; so is what is returned.
    offer
        Called with the values of each better solution.
    """
    columns = {key: compiled.column(var) for key, var in stated.model.x.items()}
    unit, slot, column = np.array(
        [(v, d, j) for (v, d), j in columns.items() if j is not None], dtype=np.int64
    ).T
    by_nodes = search.limits.nodes is not None
    ends = search.seconds + (math.inf if by_nodes else SHARE * search.seconds_left)
    x, improved = start, True
    while improved:
        improved = False
        at = np.full(stated.graph.size, -1)
        chosen = x[column] > 0.5
        at[unit[chosen]] = slot[chosen]
        loads = _loads(stated, at)
        worst = int(loads.argmax())
        others = [d for d in np.argsort(loads, kind="stable").tolist() if d != worst]
        for freed in (*combinations(others, 1), *combinations(others, 2)):
            left = ends - search.seconds
            if search.should_stop() or left <= 0:
                return x
            slots = (worst, *freed)
            free = np.isin(at[unit], slots) & np.isin(slot, slots)
            keep = column[~free]
            lower, upper = linear.column_lower.copy(), linear.column_upper.copy()
            lower[keep] = upper[keep] = np.round(x[keep])
            outcome = run_highs(
                replace(linear, column_lower=lower, column_upper=upper),
                search,
                start=x,
                gap=1e-4,
                options={"mip_max_nodes": NODES},
                seconds=left if by_nodes else min(SECONDS, left),
            )
            if outcome.x is None:
                continue
            before = search.objective
            offer(outcome.x)
            # The program's own objective is noise where it was stated for a much worse plan.
            if search.objective < before * (1 - 1e-6):
                improved = True
                # Whole numbers only: the rest, rounded, may miss a row by more than the tolerance.
                x = np.where(linear.integer, outcome.x, np.nan)
                break
    return x


def _loads(stated: Compact, at: Ints) -> Floats:
    """Load of each slot, compute and transfers added up; shape (slots,)."""
    graph = stated.graph
    loads = np.zeros(len(stated.slots))
    for d, s in enumerate(stated.slots):
        loads[d] = graph.compute[s.kind].sum(axis=0)[at == d].sum()
        weight = graph.weight[s.kind].sum(axis=0)
        for e, pins in enumerate(graph.pins):
            inside = sum(at[v] == d for v in pins)
            if 0 < inside < len(pins):
                loads[d] += weight[e]
    return loads
