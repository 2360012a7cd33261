"""Baseline placements: greedy filling, a single device, and METIS, which balances compute alone."""

from __future__ import annotations

from itertools import chain

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from ...instances import InputError, Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search

#: METIS takes whole numbers: weights are scaled so that their sum is about this.
WEIGHT_SUM = 10_000_000


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


def single_device(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the whole workload on one device of each kind."""
    for kind in np.unique(task.costs.kind_of):
        device = int(np.argmax(task.costs.kind_of == kind))
        order = (device,) if task.problem.relayed else ()
        search.offer(Placement(np.full(task.workload.n, device), order))


def metis(task: Task[Throughput], search: Search[Solution]) -> None:
    """Split the units into one part per accelerator, balanced by compute, by METIS.

    Nets become cliques whose edges share the net's weight. What runs on no accelerator, and
    CPU cores, METIS does not know.

    Raises
    ------
    InputError
        If pymetis is not installed.

    References
    ----------
    Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
    Graphs", SIAM J. Sci. Comput. 20(1), 1998.
    """
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "method metis: pymetis is not installed; in Stagecut's folder: "
            "pip install -c constraints.txt '.[baselines]'"
        ) from None
    costs = task.costs
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    if not accelerators:
        return  # rules leave it none
    graph = hypergraph(task)
    kind = int(costs.kind_of[accelerators[0]])
    time = graph.compute[kind].sum(axis=0)
    finite = np.where(np.isinf(time), 0.0, time)
    weights = _whole(finite)
    neighbours, edge_weights = _cliques(graph, kind)
    starts = np.cumsum([0, *map(len, neighbours)])
    with search.phase("solve"):
        _, parts = pymetis.part_graph(
            len(accelerators),
            pymetis.CSRAdjacency(starts.tolist(), list(chain.from_iterable(neighbours))),
            vweights=weights.tolist(),
            eweights=_whole(np.array(list(chain.from_iterable(edge_weights)))).tolist(),
            options=pymetis.Options(seed=search.limits.seed),
        )
    search.offer(Placement(graph.expand(np.array(accelerators)[np.array(parts)])))


def _cliques(graph: Hypergraph, kind: int) -> tuple[list[list[int]], list[list[float]]]:
    between: dict[tuple[int, int], float] = {}
    for e, pins in enumerate(graph.pins):
        share = float(graph.weight[kind, :, e].sum()) / (len(pins) - 1)
        for a in pins:
            for b in pins:
                if a != b:
                    between[a, b] = between.get((a, b), 0.0) + share
    neighbours: list[list[int]] = [[] for _ in range(graph.size)]
    weights: list[list[float]] = [[] for _ in range(graph.size)]
    for (a, b), weight in sorted(between.items()):
        neighbours[a].append(b)
        weights[a].append(weight)
    return neighbours, weights


def _whole(values: Floats) -> Ints:
    total = float(values.sum())
    return np.maximum(1, np.round(values * (WEIGHT_SUM / total if total else 0.0))).astype(int)
