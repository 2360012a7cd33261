"""Local search from random starts for the max-load: single-unit moves, first improvement.

A move is priced by the outputs of the nodes that it touches, over links between devices too.
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
from ...instances.common.kernel import inner, kernel
from ..core.search import Search
from ..core.swaps import swap_devices


class UnitFlows(NamedTuple):
    """Computing and transfer times by device; U units, n nodes that feed others, D devices."""

    compute: Floats  # (D, 2, U)
    memory: Floats
    capacity: Floats
    source: Ints  # (n,) unit of a node
    side: Ints  # (n,)
    target_start: Ints  # (n+1,) other units that it feeds
    target: Ints
    of_start: Ints  # (U+1,) nodes in or read by each unit
    of: Ints
    transfer: Floats  # (D, n)
    link: Ints  # (D, D)
    message: Floats  # (L, n)
    gpipe: bool
    overlap: bool


#: Restarts where neither a time limit nor a node limit is given.
DEFAULT_RESTARTS = 10


def local_search(task: Task[Throughput], search: Search[Solution]) -> None:
    """Descend from random placements by moving one unit at a time, until a limit.

    A move is taken if it lowers the objective, or keeps it and lowers the sum of squared loads.
    `limits.nodes` counts restarts. Contiguity is not looked for: under such a split only those
    local optima count that happen to keep it.
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
                _move_units(flows, where, rng.permutation(graph.size))
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
    """Return the arrays of a task."""
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
    """Exchange alike devices of the best plan, then move units of it, while that helps.

    Nothing happens without links between devices.
    """
    swap_devices(task, search)
    if task.cluster.links and isinstance(search.best, Placement) and not search.should_stop():
        graph = hypergraph(task)
        where = np.array(graph.restrict(search.best.device))
        heaviest_first = np.argsort(-graph.compute.sum(axis=1).min(axis=0))
        _move_units(unit_flows(task, graph), where, heaviest_first)
        search.offer(Placement(graph.expand(where)))


@inner
def _value(work, moved, gpipe, overlap):
    """Return the objective and the sum of squared loads.

    `work` and `moved` are compute and transfer times of each device, forward and backward; shape
    (D, 2).
    """
    forward, backward, total, squares = 0.0, 0.0, 0.0, 0.0
    for d in range(len(work)):
        if overlap:
            fw, bw = max(work[d, 0], moved[d, 0]), max(work[d, 1], moved[d, 1])
            load = max(work[d, 0] + work[d, 1], moved[d, 0] + moved[d, 1])
        else:
            fw, bw = work[d, 0] + moved[d, 0], work[d, 1] + moved[d, 1]
            load = fw + bw
        forward, backward = max(forward, fw), max(backward, bw)
        total = max(total, load)
        squares += load * load
    return (forward + backward if gpipe else total), squares


@inner
def _add_flow(g, where, i, sign, moved, entered):
    """Add what the output of node i costs to the transfer times, (D, 2), `sign` times."""
    a, side = where[g.source[i]], g.side[i]
    first, last = g.target_start[i], g.target_start[i + 1]
    for j in range(first, last):
        entered[where[g.target[j]]] = False
    through_host = False
    for j in range(first, last):
        b = where[g.target[j]]
        if b == a or entered[b]:
            continue
        entered[b] = True
        link = g.link[a, b]
        if link >= 0:
            moved[a, side] += sign * g.message[link, i]
            moved[b, side] += sign * g.message[link, i]
        else:
            through_host = True
            moved[b, side] += sign * g.transfer[b, i]
    if through_host:
        moved[a, side] += sign * g.transfer[a, i]


@inner
def _move(g, where, v, b, work, moved, entered):
    """Move unit v to device b, in compute and transfer times too, (D, 2)."""
    for r in range(g.of_start[v], g.of_start[v + 1]):
        _add_flow(g, where, g.of[r], -1.0, moved, entered)
    for side in range(2):
        work[where[v], side] -= g.compute[where[v], side, v]
        work[b, side] += g.compute[b, side, v]
    where[v] = b
    for r in range(g.of_start[v], g.of_start[v + 1]):
        _add_flow(g, where, g.of[r], 1.0, moved, entered)


@kernel
def _move_units(g, where, order):
    """Move units of `where` while that helps; first improvement, in the given order."""
    devices = len(g.capacity)
    work, moved = np.zeros((devices, 2)), np.zeros((devices, 2))
    used, entered = np.zeros(devices), np.zeros(devices, np.bool_)
    for v in range(len(where)):
        used[where[v]] += g.memory[v]
        for side in range(2):
            work[where[v], side] += g.compute[where[v], side, v]
    for i in range(len(g.source)):
        _add_flow(g, where, i, 1.0, moved, entered)
    best, squares = _value(work, moved, g.gpipe, g.overlap)
    improved = True
    while improved:
        improved = False
        for v in order:
            for b in range(devices):
                a = where[v]
                if b == a or used[b] + g.memory[v] > g.capacity[b]:
                    continue
                if g.compute[a, 0, v] == np.inf or g.compute[b, 0, v] == np.inf:
                    continue
                _move(g, where, v, b, work, moved, entered)
                value, power = _value(work, moved, g.gpipe, g.overlap)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= g.memory[v]
                    used[b] += g.memory[v]
                    best, squares = value, power
                    improved = True
                else:
                    _move(g, where, v, a, work, moved, entered)
