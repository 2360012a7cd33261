"""A bound and a plan for graphs that are a series of regions; near-linear in their size.

Where every region is small both come from the same recursion, and often they meet.
"""

from __future__ import annotations

import numpy as np

from ....formulations.latency.graph import LatencyGraph
from ....formulations.task import Task
from ....instances import CallPlacement, Latency, Solution
from ....instances.common.arrays import Ints
from ...core.search import Search
from ..label_dp.dp import explain
from .options import Region, regions_of
from .recursion import call_of_units, solve_series
from .regions import Series, series_of

#: A bound is lowered by this much, relatively: rounding in sums of times.
MARGIN = 1e-9
SERIES_BOUND = "series of regions"
#: Steps of the search for the best price of memory, up or down or to a smaller factor.
STEPS = 12


def solve_by_series(task: Task[Latency], search: Search[Solution], graph: LatencyGraph) -> None:
    """Raise the bound, and offer a plan with one call per accelerator if they are of one kind."""
    series = series_of(task, graph, search.objective)
    accelerators = int(graph.count.sum())
    lower, upper = [], []
    for i in range(len(series.regions)):
        if search.should_stop():
            return
        for_bound, for_plan = regions_of(series, i)
        lower.append(for_bound)
        upper.append(for_plan)
    calls = min(task.problem.calls * accelerators, graph.size)
    bound = solve_series(series, lower, calls).value
    if np.isinf(bound):
        search.prove_infeasible(explain(task))
        return
    search.raise_bound(bound * (1 - MARGIN), SERIES_BOUND)
    if len(graph.kinds) == 1:
        solved = solve_series(series, upper, min(accelerators, graph.size))
        if np.isfinite(solved.value):
            search.offer(_plan(series, call_of_units(series, upper, solved)))
    if task.problem.calls > 1:
        _price_memory(series, lower, calls, search)


def _price_memory(
    series: Series, regions: list[Region], calls: int, search: Search[Solution]
) -> None:
    """Raise the bound by a price on memory.

    The recursion gives each call a whole accelerator. In a plan their bytes add up to no more than
    there are, so for any price λ its latency is at least the least of latency + λ·bytes, less λ
    times all there are. That is concave in λ: up and down by factors that become smaller.
    """
    graph = series.graph
    total = float(graph.count @ graph.capacity_bytes) * (1 + MARGIN)
    if not 0 < total < np.inf or search.bound <= 0:
        return

    def bound(price: float) -> float:
        found = solve_series(series, regions, calls, price).value - price * total
        search.raise_bound(found - MARGIN * (found + 2 * price * total), SERIES_BOUND)
        return found

    price, factor = search.bound / total, 8.0
    best = bound(price)
    for _ in range(STEPS):
        if search.should_stop():
            return
        for other in (price * factor, price / factor):
            value = bound(other)
            if value > best:
                best, price = value, other
                break
        else:
            factor = factor**0.5


def _plan(series: Series, call: Ints) -> CallPlacement:
    """Return the plan of the units' calls; units set aside join a call that surrounds them."""
    graph = series.graph
    on_path = np.append(call[series.path], [-1])
    for u in series.aside.tolist():
        before, after = (on_path[place] for place in (series.up[u], series.down[u]))
        if before >= 0 and before == after:
            call[u] = before
    of_node = call[graph.unit_of]
    device = graph.pool.copy()
    first = int(np.flatnonzero(series.task.costs.kind_of == graph.kinds[0])[0])
    device[of_node >= 0] = first + of_node[of_node >= 0]
    return CallPlacement(device, np.where(of_node >= 0, 0, -1))
