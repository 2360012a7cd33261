"""Greedy: a first plan in no time, and a baseline."""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.search import Search


def greedy(task: Task[Throughput], search: Search[Solution]) -> None:
    """Fill one accelerator after the other in topological order, up to an even share each.

    What fits on no accelerator goes to the CPU core that has least to do. Several shares are
    tried, from the even one up, because an even one may not fit into the memories.
    """
    graph = hypergraph(task, pipeline_units(task))
    order = topological_units(graph)
    for stretch in (1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 1e9):
        placement = _fill(task, graph, order, stretch)
        if placement is not None:
            search.offer(Placement(graph.expand(placement)))
        if search.should_stop():  # asked last: a first plan even where the time is up
            return


def topological_units(graph: Hypergraph) -> list[int]:
    """Return the units in topological order of the pipeline edges, lowest number first."""
    import networkx as nx

    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(graph.size))
    order.add_edges_from(graph.edges.tolist())
    return list(nx.lexicographical_topological_sort(order))


def _fill(
    task: Task[Throughput], graph: Hypergraph, order: list[int], stretch: float
) -> Ints | None:
    costs = task.costs
    time = graph.compute.sum(axis=1)  # (K, U)
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    cores = [d for d, k in enumerate(costs.kind_of.tolist()) if costs.host[k]]
    finite = np.where(np.isinf(time), 0.0, time)
    share = stretch * finite[costs.kind_of[accelerators]].sum(axis=1) / max(1, len(accelerators))
    load = np.zeros(len(costs.kind_of))
    used = np.zeros(len(costs.kind_of))
    placement = np.zeros(graph.size, dtype=np.int64)
    at = 0
    for unit in order:
        size = graph.memory_bytes[unit]
        fitting = [
            i
            for i in range(at, len(accelerators))
            if np.isfinite(time[costs.kind_of[accelerators[i]], unit])
            and used[accelerators[i]] + size <= costs.capacity_bytes[costs.kind_of[accelerators[i]]]
        ]
        under = [
            i
            for i in fitting
            if load[accelerators[i]] + time[costs.kind_of[accelerators[i]], unit] <= share[i]
        ]
        able = [d for d in cores if np.isfinite(time[costs.kind_of[d], unit])]
        if under:
            at = under[0]
            device = accelerators[at]
        elif fitting:
            device = accelerators[fitting[-1]]
        elif able:
            device = min(able, key=lambda d: load[d])
        else:
            return None
        placement[unit] = device
        load[device] += time[costs.kind_of[device], unit]
        used[device] += size
    return placement
