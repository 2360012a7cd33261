"""Local search for max-load where links between devices matter: every move is priced as a whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints, rows
from ..core.search import Search
from ..core.swaps import swap_devices
from .descent_kernel import move_linked_units


class LinkedLoads(NamedTuple):
    """What loads are summed up from; U units, n nodes that feed other units, D devices."""

    compute: Floats  # (D, 2, U)
    memory: Floats
    capacity: Floats
    source: Ints  # (n,) unit of a node
    side: Ints  # (n,)
    target_start: Ints  # (n+1,) other units that it feeds
    target: Ints
    transfer: Floats  # (D, n)
    link: Ints  # (D, D)
    message: Floats  # (L, n)
    gpipe: bool
    overlap: bool


def linked_loads(task: Task[Throughput], graph: Hypergraph) -> LinkedLoads:
    """Return the arrays of a task with links."""
    costs, unit = task.linked_costs, graph.unit_of.tolist()
    assert costs.messages is not None
    feeds = [
        sorted({unit[v] for v in successors} - {unit[u]})
        for u, successors in enumerate(task.workload.successors)
    ]
    nodes = [u for u, targets in enumerate(feeds) if targets]
    kind = costs.kind_of
    return LinkedLoads(
        np.ascontiguousarray(graph.compute[kind]),
        np.array(graph.memory_bytes),
        np.array(costs.capacity_bytes[kind]),
        np.array([unit[u] for u in nodes], np.int64),
        task.workload.backward[nodes].astype(np.int64),
        *rows([feeds[u] for u in nodes]),
        np.ascontiguousarray(costs.transfer[kind][:, nodes]),
        np.array(costs.messages.link),
        np.ascontiguousarray(costs.messages.time[:, nodes]),
        task.problem.pipeline == "gpipe",
        task.problem.overlap,
    )


def improve_linked(task: Task[Throughput], search: Search[Solution]) -> None:
    """Exchange alike devices of the best plan, then move units of it, while that helps.

    Nothing happens without links between devices.
    """
    swap_devices(task, search)
    if task.cluster.links and isinstance(search.best, Placement) and not search.should_stop():
        graph = hypergraph(task)
        where = np.array(graph.restrict(search.best.device))
        move_linked_units(
            linked_loads(task, graph), where, np.argsort(-graph.compute.sum(axis=1).min(axis=0))
        )
        search.offer(Placement(graph.expand(where)))
