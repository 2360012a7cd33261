"""Local search for the max-load from random starts: single-unit moves, first improvement.

A move is priced by the outputs of the nodes that it affects, including over links between devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import (
    Hypergraph,
    colour_units,
    hypergraph,
    pipeline_units,
)
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Floats, Ints, rows
from ..core.search import Search
from ..core.swaps import swap_devices
from .descent_kernel import move_units


class UnitFlows(NamedTuple):
    """Compute and transfer times by device: U units, n nodes with outputs to others, D devices."""

    compute: Floats  # (D, 2, U)
    memory: Floats
    capacity: Floats
    source: Ints  # (n,) unit of each node
    side: Ints  # (n,)
    target_start: Ints  # (n+1,) other units that read its output
    target: Ints
    of_start: Ints  # (U+1,) nodes in each unit, or read by it
    of: Ints
    transfer: Floats  # (D, n)
    link: Ints  # (D, D)
    message: Floats  # (L, n)
    gpipe: bool
    overlap: bool


#: Restarts if neither a time limit nor a node limit is given.
DEFAULT_RESTARTS = 10


def local_search(task: Task[Throughput], search: Search[Solution]) -> None:
    """Descend from random placements by moving one unit at a time, until a limit.

    A move is taken if it lowers the objective, or keeps it and lowers the sum of squared loads.
    `limits.nodes` counts restarts. Contiguity is not enforced: if it is asked for, only those local
    optima count that happen to be contiguous.
    """
    _restart(task, search, descend=True)


def random_best(task: Task[Throughput], search: Search[Solution]) -> None:
    """Try random placements until a limit; `limits.nodes` counts them."""
    _restart(task, search, descend=False)


def _restart(task: Task[Throughput], search: Search[Solution], *, descend: bool) -> None:
    contiguous = task.problem.split == "contiguous" and task.problem.cpu_split == "contiguous"
    graph = hypergraph(task, pipeline_units(task) if contiguous else colour_units(task))
    flows = unit_flows(task, graph) if descend else None
    rng = np.random.default_rng(search.limits.seed)
    rounds = search.limits.nodes
    if rounds is None and search.limits.seconds is None:
        rounds = DEFAULT_RESTARTS
    done = 0
    with search.phase("solve"):
        while not search.should_stop():
            if rounds is not None and done >= rounds:
                search.stop_for("nodes")
                return
            where = _random_placement(task, graph, rng)
            if flows is not None:
                move_units(flows, where, rng.permutation(graph.size))
            search.offer(Placement(graph.expand(where)))
            done += 1


def _random_placement(task: Task[Throughput], graph: Hypergraph, rng: np.random.Generator) -> Ints:
    """Place each unit on a random device that supports it and has room, if there is one."""
    kind = task.costs.kind_of
    room = task.costs.capacity_bytes[kind].copy()
    able = np.isfinite(graph.compute.sum(axis=1))[kind]  # (D, U)
    where = np.zeros(graph.size, dtype=np.int64)
    for unit in rng.permutation(graph.size).tolist():
        fits = np.flatnonzero(able[:, unit] & (room >= graph.memory_bytes[unit]))
        where[unit] = rng.choice(fits if len(fits) else np.arange(len(kind)))
        room[where[unit]] -= graph.memory_bytes[unit]
    return where


def unit_flows(task: Task[Throughput], graph: Hypergraph) -> UnitFlows:
    """Return a task's compute and transfer times as arrays for the descent kernel."""
    costs, unit = task.linked_costs, graph.unit_of.tolist()
    feeds = [
        sorted({unit[v] for v in successors} - {unit[u]})
        for u, successors in enumerate(task.workload.successors)
    ]
    nodes = [u for u, targets in enumerate(feeds) if targets]
    of_unit: list[list[int]] = [[] for _ in range(graph.size)]
    for i, u in enumerate(nodes):
        for v in (unit[u], *feeds[u]):
            of_unit[v].append(i)
    kind, devices = costs.kind_of, len(costs.kind_of)
    links = costs.messages
    return UnitFlows(
        np.ascontiguousarray(graph.compute[kind]),
        np.array(graph.memory_bytes),
        np.array(costs.capacity_bytes[kind]),
        np.array([unit[u] for u in nodes], np.int64),
        task.workload.backward[nodes].astype(np.int64),
        *rows([feeds[u] for u in nodes]),
        *rows(of_unit),
        np.ascontiguousarray(costs.transfer[kind][:, nodes]),
        np.full((devices, devices), -1) if links is None else np.array(links.link),
        np.ascontiguousarray(np.zeros((0, len(nodes))) if links is None else links.time[:, nodes]),
        task.problem.pipeline == "gpipe",
        task.problem.overlap,
    )


def improve_linked(task: Task[Throughput], search: Search[Solution]) -> None:
    """Swap alike devices of the best plan, then move its units, while that improves it.

    Without links between devices nothing is done.
    """
    swap_devices(task, search)
    if task.cluster.links and isinstance(search.best, Placement) and not search.should_stop():
        graph = hypergraph(task)
        where = np.array(graph.restrict(search.best.device))
        heaviest_first = np.argsort(-graph.compute.sum(axis=1).min(axis=0))
        move_units(unit_flows(task, graph), where, heaviest_first)
        search.offer(Placement(graph.expand(where)))
