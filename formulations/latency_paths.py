"""The path-interval bound on latency.

Take a path P = v_1 … v_L of units. A call is convex, so it meets P in an interval, and what
follows on P starts after the call has ended. Hence

    T ≥ Σ load(S) over the calls S that meet P + Σ q_v over the units v of P on CPUs.

With L(a, b) = the least load of a call that meets P in v_a … v_b, and at most x calls left,

    D[i][x] = min( q_{v_i} + D[i+1][x],  min_{j ≥ i} L(i, j) + D[j+1][x−1] ),   D[L+1][x] = 0

D[1][Σ q·k] bounds the latency from below, and D[i][x] the time from the moment when v_1 … v_{i−1}
have finished and x calls are left.

L(a, b) is bounded by a minimum cut: forced into the call are the units on paths from v_a to v_b,
forced out all of P beyond the interval, the ancestors of v_{a−1} and the descendants of v_{b+1}.
Of unlike accelerators the best one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from ..instances.arrays import Floats, Ints
from .hypergraph import hypergraph
from .latency import LatencyGraph
from .mincut import INSIDE, OUTSIDE, UNDECIDED, least_load
from .task import Task

#: Largest number of path positions for which all intervals are cut, not only those that matter.
ALL_INTERVALS = 300


@dataclass(frozen=True, eq=False)
class PathBound:
    """Bounds along one path of length L, with x = 0 … X calls left.

    Parameters
    ----------
    path
        Shape (L,): units.
    load
        Shape (L, L): lower bounds on L(a, b); `inf` where no call can meet the path so.
    rest
        Shape (L+1, X+1): D[i][x], counted from 0.
    """

    path: Ints
    load: Floats
    rest: Floats

    @property
    def value(self) -> float:
        """Lower bound on the latency."""
        return float(self.rest[0, -1])


@dataclass(frozen=True, eq=False)
class CutData:
    """What the minimum cuts read, in arrays; K kinds, U units, E nets."""

    compute: Floats
    weight: Floats
    pin_start: Ints
    pins: Ints
    net_start: Ints
    nets: Ints
    memory: Floats
    capacity: Floats


def cut_data(task: Task, graph: LatencyGraph) -> CutData:
    """Return the nets of the units for the minimum cuts."""
    nets = hypergraph(task, graph.unit_of)
    pin_start = np.concatenate([[0], np.cumsum([len(pins) for pins in nets.pins])])
    pins = np.array([u for unit in nets.pins for u in unit], dtype=np.int64)
    of_unit: list[list[int]] = [[] for _ in range(graph.size)]
    for e, units in enumerate(nets.pins):
        for u in units:
            of_unit[u].append(e)
    kinds = list(graph.kinds)
    return CutData(
        compute=graph.unit_compute,
        weight=np.ascontiguousarray(nets.weight.sum(axis=1)[kinds]),
        pin_start=pin_start.astype(np.int64),
        pins=pins,
        net_start=np.concatenate([[0], np.cumsum([len(e) for e in of_unit])]).astype(np.int64),
        nets=np.array([e for unit in of_unit for e in unit], dtype=np.int64),
        memory=graph.unit_memory,
        capacity=graph.capacity_bytes * (1 + 1e-9),
    )


def heavy_paths(graph: LatencyGraph, count: int = 3) -> list[Ints]:
    """Return paths along which much must happen: `count` by p + c/2, one by q; no path twice.

    After each, the weights of its units are cut to a tenth, so that the next one differs.
    """
    least = graph.compute.min(axis=0, initial=np.inf)
    cheap = np.where(np.isfinite(least), least, graph.cpu)
    cheap = np.where(np.isfinite(cheap), cheap, 0.0)
    if len(graph.kinds):
        cheap = cheap + graph.transfer.min(axis=0) / 2
    weight = np.bincount(graph.unit_of, weights=cheap, minlength=graph.size)
    cpu = np.where(np.isfinite(graph.cpu), graph.cpu, cheap)
    paths: list[Ints] = []
    for i in range(count + 1):
        if i == count:
            weight = np.bincount(graph.unit_of, weights=cpu, minlength=graph.size)
        path = _heaviest(graph, weight)
        if not any(np.array_equal(path, other) for other in paths):
            paths.append(path)
        weight = weight.copy()
        weight[path] *= 0.1
    return paths


def _heaviest(graph: LatencyGraph, weight: Floats) -> Ints:
    total = weight.copy()
    towards = np.full(graph.size, -1)
    for u in reversed(range(graph.size)):
        for v in graph.successors[u]:
            if weight[u] + total[v] > total[u] or towards[u] < 0:
                total[u] = weight[u] + total[v]
                towards[u] = v
    starts = [u for u in range(graph.size) if not graph.predecessors[u]]
    at = max(starts, key=lambda u: (total[u], -u))
    path = [at]
    while towards[at] >= 0:
        at = int(towards[at])
        path.append(at)
    return np.array(path, dtype=np.int64)


def path_cpu(task: Task, graph: LatencyGraph, path: Ints) -> Floats:
    """Return shape (L,): the least time from entering each unit of a path to leaving it, on CPUs.

    In a contracted colour that is the longest chain between the nodes where the path enters and
    leaves; the least over the choices of those.
    """
    time = np.zeros(len(path))
    for i, unit in enumerate(path.tolist()):
        members = graph.members[unit]
        if len(members) == 1:
            time[i] = graph.cpu[members[0]]
            continue
        inside = set(members)
        edge = {
            (u, v): int(graph.unit_of[u]) for v in members for u in task.workload.predecessors[v]
        }
        before = int(path[i - 1]) if i else -1
        after = int(path[i + 1]) if i + 1 < len(path) else -1
        entries = {v for (_, v), unit_u in edge.items() if unit_u == before} or {
            v for v in members if inside.isdisjoint(task.workload.predecessors[v])
        }
        exits = {
            u
            for u in members
            if any(int(graph.unit_of[v]) == after for v in task.workload.successors[u])
        } or {u for u in members if inside.isdisjoint(task.workload.successors[u])}
        longest = []
        for entry in sorted(entries):
            until = {entry: float(graph.cpu[entry])}
            for v in members:
                fed = [until[u] for u in task.workload.predecessors[v] if u in until]
                if fed and v != entry:
                    until[v] = max(fed) + float(graph.cpu[v])
            longest += [until[v] for v in exits if v in until]
        time[i] = min(longest, default=0.0)
    return time


def path_bound(
    task: Task,
    graph: LatencyGraph,
    data: CutData,
    path: Ints,
    calls: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> PathBound:
    """Return the bound along `path` with at most `calls` calls in all.

    On long paths, and when told to stop, intervals off the shortest chain of intervals keep a
    weaker bound on their load: the computing time of what is forced in, and the transfers of the
    path at its ends.
    """
    size = len(path)
    load = np.full((size, size), np.inf)
    exact = np.zeros((size, size), np.bool_)
    cpu = path_cpu(task, graph, path)
    for a in range(size):
        _weak_row(
            a, path, graph.reach, data.compute, data.memory, data.capacity,
            _path_transfer(task, graph, path), load,
        )  # fmt: skip

    def sharpen(a: int, b: int) -> None:
        if not exact[a, b] and load[a, b] < np.inf:
            load[a, b] = max(
                load[a, b],
                _interval(
                    a, b, path, graph.reach, data.compute, data.weight, data.pin_start, data.pins,
                    data.net_start, data.nets, data.memory, data.capacity,
                ),
            )  # fmt: skip
        exact[a, b] = True

    if size <= ALL_INTERVALS:
        for a in range(size):
            if should_stop():
                break
            for b in range(a, size):
                sharpen(a, b)
    while True:
        rest, choice = _rest(load, cpu, calls)
        rough = [ab for ab in _chain(choice, calls) if not exact[ab]]
        if not rough or should_stop():
            return PathBound(path, load, rest)
        for a, b in rough:
            sharpen(a, b)


def _path_transfer(task: Task, graph: LatencyGraph, path: Ints) -> Floats:
    """Shape (K, L): least transfer that an accelerator pays if the path is cut after each unit."""
    paid = np.zeros((len(graph.kinds), len(path)))
    for i in range(len(path) - 1):
        u, v = int(path[i]), int(path[i + 1])
        sources = [
            x
            for x in graph.members[u]
            if any(int(graph.unit_of[y]) == v for y in task.workload.successors[x])
        ]
        paid[:, i] = graph.transfer[:, sources].sum(axis=1)
    return paid


def _chain(choice: Ints, calls: int) -> list[tuple[int, int]]:
    """The intervals by which D[1][calls] comes about."""
    found, i, x = [], 0, calls
    while i < len(choice):
        j = int(choice[i, x])
        if j >= 0:
            found.append((i, j))
            i, x = j + 1, x - 1
        else:
            i += 1
    return found


@njit(cache=True, nogil=True)
def _rest(load, cpu, calls):  # type: ignore[no-untyped-def]
    """D by the recurrence, and the chosen end of the interval, −1 for a CPU."""
    size = len(cpu)
    rest = np.zeros((size + 1, calls + 1))
    choice = np.full((size, calls + 1), -1, np.int64)
    for i in range(size - 1, -1, -1):
        for x in range(calls + 1):
            rest[i, x] = cpu[i] + rest[i + 1, x]
        for j in range(i, size):
            here = load[i, j]
            if here == np.inf:
                continue
            for x in range(1, calls + 1):
                value = here + rest[j + 1, x - 1]
                if value < rest[i, x]:
                    rest[i, x] = value
                    choice[i, x] = j
    return rest, choice


@njit(cache=True, nogil=True)
def _weak_row(a, path, reach, compute, memory, capacity, transfer, load):  # type: ignore[no-untyped-def]
    """Bound L(a, b) for all b by computing times and the transfers on the path itself."""
    kinds = len(compute)
    size = len(path)
    for b in range(a, size):
        need = 0.0
        work = np.zeros(kinds)
        for u in range(path[a], path[b] + 1):
            if reach[path[a], u] and reach[u, path[b]]:
                need += memory[u]
                for k in range(kinds):
                    work[k] += compute[k, u]
        fits = False
        for k in range(kinds):
            if need <= capacity[k]:
                fits = True
                if a > 0:
                    work[k] += transfer[k, a - 1]
                if b < size - 1:
                    work[k] += transfer[k, b]
                load[a, b] = min(load[a, b], work[k])
        if not fits:
            return


@njit(cache=True, nogil=True)
def _interval(
    a, b, path, reach, compute, weight, pin_start, pins, net_start, nets, memory, capacity
):  # type: ignore[no-untyped-def]
    """L(a, b) by minimum cuts, the least over the kinds."""
    kinds, units = compute.shape
    side = np.full(units, UNDECIDED, np.int8)
    size = len(path)
    need = 0.0
    for u in range(units):
        if reach[path[a], u] and reach[u, path[b]]:
            side[u] = INSIDE
            need += memory[u]
        elif (a > 0 and reach[u, path[a - 1]]) or (b < size - 1 and reach[path[b + 1], u]):
            side[u] = OUTSIDE
    least = np.inf
    for k in range(kinds):
        if need <= capacity[k]:
            value = least_load(side, compute[k], weight[k], pin_start, pins, net_start, nets)
            least = min(least, value)
    return least
