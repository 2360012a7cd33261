"""Local search with restarts, and the best of random placements: baselines for max-load."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import (
    Hypergraph,
    colour_units,
    hypergraph,
    pipeline_units,
)
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ...instances.common.kernel import inner, kernel
from ..core.search import Search
from .linked_search import descend as linked_descend
from .linked_search import linked_loads
from .loads_kernel import value_of_loads

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
    arrays = () if task.cluster.links else _arrays(task, graph)
    linked = linked_loads(task, graph) if task.cluster.links else None
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
            if descend:
                order = rng.permutation(graph.size)
                if linked is not None:
                    linked_descend(linked, where, order)
                else:
                    _descend(where, order, *arrays)
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


def _arrays(task: Task[Throughput], graph: Hypergraph) -> tuple[Any, ...]:
    """The hypergraph by device, in the flat form that the kernel reads."""
    kind = task.costs.kind_of
    of_unit: list[list[int]] = [[] for _ in range(graph.size)]
    for e, pins in enumerate(graph.pins):
        for unit in pins:
            of_unit[unit].append(e)
    starts = np.cumsum([0, *map(len, of_unit)])
    nets = np.array([e for nets in of_unit for e in nets], dtype=np.int64)
    sizes = np.array([len(pins) for pins in graph.pins], dtype=np.int64)
    return (
        np.ascontiguousarray(graph.compute[kind]),
        graph.memory_bytes,
        task.costs.capacity_bytes[kind],
        np.ascontiguousarray(graph.weight[kind]),
        (starts, nets, sizes),
        task.problem.pipeline == "gpipe",
        task.problem.overlap,
    )


@inner
def _shift(unit, a, b, count, moved, weight, starts, nets, sizes):
    """Move `unit` from device a to b in the pin counts and transfer loads."""
    for i in range(starts[unit], starts[unit + 1]):
        e = nets[i]
        for d, step in ((a, -1), (b, 1)):
            before = 0 < count[e, d] < sizes[e]
            count[e, d] += step
            after = 0 < count[e, d] < sizes[e]
            if before != after:
                sign = 1.0 if after else -1.0
                moved[d, 0] += sign * weight[d, 0, e]
                moved[d, 1] += sign * weight[d, 1, e]


@kernel
def _descend(where, order, compute, memory, capacity, weight, incidence, gpipe, overlap):
    """Move units of `where` while that helps; first improvement, in the given order.

    `incidence` is the nets of units, as compressed rows, and the pins of each net.
    """
    starts, nets, sizes = incidence
    devices = len(capacity)
    work = np.zeros((devices, 2))
    moved = np.zeros((devices, 2))
    used = np.zeros(devices)
    count = np.zeros((len(sizes), devices), np.int64)
    for unit in range(len(where)):
        d = where[unit]
        work[d] += compute[d, :, unit]
        used[d] += memory[unit]
        for i in range(starts[unit], starts[unit + 1]):
            count[nets[i], d] += 1
    for e in range(len(sizes)):
        for d in range(devices):
            if 0 < count[e, d] < sizes[e]:
                moved[d] += weight[d, :, e]
    best, squares = value_of_loads(work, moved, gpipe, overlap)
    improved = True
    while improved:
        improved = False
        for unit in order:
            a = where[unit]
            for b in range(devices):
                if b == a or used[b] + memory[unit] > capacity[b]:
                    continue
                if math.isinf(compute[b, 0, unit]) or math.isinf(compute[a, 0, unit]):
                    continue
                work[a] -= compute[a, :, unit]
                work[b] += compute[b, :, unit]
                _shift(unit, a, b, count, moved, weight, starts, nets, sizes)
                value, power = value_of_loads(work, moved, gpipe, overlap)
                slack = 1e-12 * best
                if value < best - slack or (value <= best + slack and power < squares * (1 - 1e-9)):
                    used[a] -= memory[unit]
                    used[b] += memory[unit]
                    where[unit] = b
                    best, squares = value, power
                    improved = True
                    a = b
                else:
                    work[a] += compute[a, :, unit]
                    work[b] -= compute[b, :, unit]
                    _shift(unit, b, a, count, moved, weight, starts, nets, sizes)
