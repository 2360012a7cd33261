"""Local search for max-load where links between devices matter: every move is priced as a whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints, rows
from ...instances.common.kernel import inner, kernel
from ..core.search import Search
from ..core.swaps import swap_devices
from .loads_kernel import value_of_loads


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
        descend(
            linked_loads(task, graph), where, np.argsort(-graph.compute.sum(axis=1).min(axis=0))
        )
        search.offer(Placement(graph.expand(where)))


@inner
def _value(g, where, entered):
    """Objective and sum of squared loads; `entered`, shape (D,), is room to work in."""
    devices = len(g.capacity)
    work, moved = np.zeros((devices, 2)), np.zeros((devices, 2))
    for v in range(len(where)):
        for side in range(2):
            work[where[v], side] += g.compute[where[v], side, v]
    entered[:] = -1
    for i in range(len(g.source)):
        a, side = where[g.source[i]], g.side[i]
        through_host = False
        for j in range(g.target_start[i], g.target_start[i + 1]):
            b = where[g.target[j]]
            if b == a or entered[b] == i:
                continue
            entered[b] = i
            link = g.link[a, b]
            if link >= 0:
                moved[a, side] += g.message[link, i]
                moved[b, side] += g.message[link, i]
            else:
                through_host = True
                moved[b, side] += g.transfer[b, i]
        if through_host:
            moved[a, side] += g.transfer[a, i]
    return value_of_loads(work, moved, g.gpipe, g.overlap)


@kernel
def descend(g, where, order):
    """Move units of `where` while that helps; first improvement, in the given order.

    O(U · D) moves a round, each priced in the size of the graph.
    """
    devices = len(g.capacity)
    used = np.zeros(devices)
    for v in range(len(where)):
        used[where[v]] += g.memory[v]
    entered = np.empty(devices, np.int64)
    best, squares = _value(g, where, entered)
    improved = True
    while improved:
        improved = False
        for v in order:
            a = where[v]
            for b in range(devices):
                if b == a or used[b] + g.memory[v] > g.capacity[b]:
                    continue
                if g.compute[b, 0, v] == np.inf:
                    continue
                where[v] = b
                value, power = _value(g, where, entered)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= g.memory[v]
                    used[b] += g.memory[v]
                    best, squares = value, power
                    improved = True
                    a = b
                else:
                    where[v] = a
