"""METIS: a graph partitioner as baseline. It balances compute and cuts few bytes, no more."""

from __future__ import annotations

from itertools import chain

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...instances import InputError, Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints
from ..core.search import Search

#: METIS takes whole numbers: weights are scaled so that their sum is about this.
WEIGHT_SUM = 10_000_000


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
