"""Simulated annealing of splits: one unit at a time moves, whatever the frontier of the graph.

What is annealed is the 16-norm of the loads, which tells apart splits of one max-load. A step
takes time in the size of the nets of one unit, so millions of them fit into a second.
"""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ...instances.common.kernel import inner, kernel
from ..core.search import Clock, Search

#: Steps of the first run, for each unit and at most; runs grow up to so many times the first.
STEPS_PER_UNIT, STEPS, GROWTH = 500, 100_000, 64

#: First and last temperature, as parts of the start's max-load.
HOT, COLD = 0.02, 1e-5

#: Steps after which the loads are summed up anew, for rounding.
SLICE = 1 << 18


class Annealing:
    """Annealing from the best split known, for more and more steps while that brings nothing."""

    def __init__(self, task: Task[Throughput], graph: Hypergraph, search: Search[Solution]) -> None:
        self._task, self._graph, self._search = task, graph, search
        self._rng = np.random.default_rng(search.limits.seed)
        self._first = min(STEPS, STEPS_PER_UNIT * graph.size)
        self._steps = self._first

    def improve(self, clock: Clock) -> bool:
        """Return whether a better split was found before the clock says stop."""
        search = self._search
        assert isinstance(search.best, Placement)
        start = self._graph.restrict(search.best.device)
        seed = int(self._rng.integers(1 << 31))
        where = anneal(self._task, self._graph, start, self._steps, seed, clock)
        better = search.offer(Placement(self._graph.expand(where)))
        self._steps = self._first if better else min(2 * self._steps, GROWTH * self._first)
        return better


def anneal(
    task: Task[Throughput],
    graph: Hypergraph,
    start: Ints,
    steps: int,
    seed: int,
    clock: Clock,
) -> Ints:
    """Return the split of the least max-load met in so many steps from `start`; shape (U,).

    All splits that are met keep the memories, as the start must.
    """
    kind = task.costs.kind_of
    where, best = start.astype(np.int64), start.astype(np.int64)
    if len(kind) < 2 or not graph.size:
        return best
    room = room_of(task.costs.capacity_bytes)[kind]
    compute = np.ascontiguousarray(graph.compute.sum(axis=1)[kind])
    weight = np.ascontiguousarray(graph.weight.sum(axis=1)[kind])
    rng = np.random.default_rng(seed)
    least, scale, done = np.inf, 0.0, 0
    devices, nets = len(kind), len(graph.pins)
    while done < steps and not clock.should_stop():
        now = min(SLICE, steps - done)
        sums = np.zeros((nets, devices), np.int32), np.zeros(devices), np.zeros(devices)
        least, scale = _anneal(
            (where, best), least, scale, (compute, weight, graph.memory_bytes, room),
            graph.incidence, (done, steps), rng.random((now, 5)), sums,
        )  # fmt: skip
        done += now
    return best


@inner
def _norm(loads, scale):
    """Return the 16-norm of the loads."""
    total = 0.0
    for load in loads:
        x = load / scale
        x *= x
        x *= x
        x *= x
        total += x * x
    return scale * total**0.0625


@inner
def _largest(loads):
    """Return the largest load; `loads.max()` takes half a second to compile."""
    most = loads[0]
    for load in loads:
        most = max(most, load)
    return most


@kernel
def _anneal(splits, least, scale, costs, incidence, progress, draws, sums):
    """Anneal one split, keep the best in another; return the best max-load and the start's.

    `splits` are the two, shape (U,); `progress` the steps done and in all. Each row of `draws` is
    a step: random numbers from 0 to below 1; shape (steps, 5).
    `costs` are compute times, shape (D, U), weights, (D, E), memory, (U,), and room for it, (D,);
    `incidence` the fields of `Incidence`. `sums` are zeros: pins of each net on each device, and
    load and used memory of each device.
    """
    where, best = splits
    done, all_steps = progress
    compute, weight, memory, room = costs
    net_ptr, net_pins, unit_ptr, unit_nets = incidence
    devices, units = compute.shape
    inside, load, used = sums
    for v in range(units):
        load[where[v]] += compute[where[v], v]
        used[where[v]] += memory[v]
    for e in range(len(net_ptr) - 1):
        pins = net_ptr[e + 1] - net_ptr[e]
        for j in range(net_ptr[e], net_ptr[e + 1]):
            inside[e, where[net_pins[j]]] += 1
        for d in range(devices):
            if 0 < inside[e, d] < pins:
                load[d] += weight[d, e]
    if scale == 0.0:
        least = scale = _largest(load)
    if scale == 0.0:
        return least, scale
    value = _norm(load, scale)
    for i in range(len(draws)):
        v = int(draws[i, 0] * units)
        a, b = where[v], int(draws[i, 2] * devices)
        first, nets = unit_ptr[v], unit_ptr[v + 1] - unit_ptr[v]
        if draws[i, 1] < 0.9 and nets > 0:
            e = unit_nets[first + int(draws[i, 2] * nets)]
            pins = net_ptr[e + 1] - net_ptr[e]
            b = where[net_pins[net_ptr[e] + int(draws[i, 3] * pins)]]
        if a == b or compute[b, v] == np.inf or used[b] + memory[v] > room[b]:
            continue
        old_a, old_b = load[a], load[b]
        load[a] -= compute[a, v]
        load[b] += compute[b, v]
        for j in range(unit_ptr[v], unit_ptr[v + 1]):
            e = unit_nets[j]
            pins = net_ptr[e + 1] - net_ptr[e]
            if inside[e, a] == pins:
                load[a] += weight[a, e]
            elif inside[e, a] == 1:
                load[a] -= weight[a, e]
            if inside[e, b] == 0:
                load[b] += weight[b, e]
            elif inside[e, b] == pins - 1:
                load[b] -= weight[b, e]
        after = _norm(load, scale)
        heat = scale * HOT * (COLD / HOT) ** ((done + i) / all_steps)
        if after > value and draws[i, 4] >= np.exp((value - after) / heat):
            load[a], load[b] = old_a, old_b
            continue
        value = after
        where[v] = b
        used[a] -= memory[v]
        used[b] += memory[v]
        for j in range(unit_ptr[v], unit_ptr[v + 1]):
            inside[unit_nets[j], a] -= 1
            inside[unit_nets[j], b] += 1
        most = _largest(load)
        if most < least * (1 - 1e-12):
            least = most
            for u in range(units):  # `best[:] = where` takes two seconds to compile
                best[u] = where[u]
    return least, scale
