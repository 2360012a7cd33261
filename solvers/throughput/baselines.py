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
    graph, relayed = hypergraph(task, pipeline_units(task)), task.problem.relayed
    order = topological_units(graph)
    for stretch in (1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 1e9):
        placement = _fill(task, graph, order, stretch)
        if placement is not None:
            stages = tuple(dict.fromkeys(placement[order].tolist())) if relayed else ()
            search.offer(Placement(graph.expand(placement), stages))
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
    kind = costs.kind_of.tolist()
    times = graph.compute.sum(axis=1)  # (K, U)
    accelerators = [d for d, k in enumerate(kind) if not costs.host[k]]
    cores = [d for d, k in enumerate(kind) if costs.host[k]]
    finite = np.where(np.isinf(times), 0.0, times).sum(axis=1)
    share = (stretch * finite / max(1, len(accelerators))).tolist()
    time, bytes_of, capacity = times.tolist(), graph.memory_bytes.tolist(), costs.capacity_bytes
    load, used = [0.0] * len(kind), [0.0] * len(kind)
    placement = np.zeros(graph.size, dtype=np.int64)
    at = 0
    for unit in order:
        device = -1
        for i in range(at, len(accelerators)):
            d = accelerators[i]
            k = kind[d]
            if time[k][unit] == np.inf or used[d] + bytes_of[unit] > capacity[k]:
                continue
            device = d
            if load[d] + time[k][unit] <= share[k]:
                at = i
                break
        if device < 0:
            able = [d for d in cores if time[kind[d]][unit] < np.inf]
            if not able:
                return None
            device = min(able, key=lambda d: load[d])
        placement[unit] = device
        load[device] += time[kind[device]][unit]
        used[device] += bytes_of[unit]
    return placement


def single_device(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the whole workload on one device of each kind."""
    for kind in np.unique(task.costs.kind_of):
        device = int(np.argmax(task.costs.kind_of == kind))
        order = (device,) if task.problem.relayed else ()
        search.offer(Placement(np.full(task.workload.n, device), order))


def metis(task: Task[Throughput], search: Search[Solution]) -> None:
    """Split the units into one part per accelerator, balanced by compute, by METIS.

    Nets become cliques whose edges share the net's weight. What runs on no accelerator, and CPU
    cores, METIS does not know. InputError if pymetis is not installed. Karypis and Kumar, "A Fast
    and High Quality Multilevel Scheme for Partitioning Irregular Graphs", SIAM J. Sci. Comput.
    20(1), 1998.
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
