"""The path-interval bound on latency.

Take a path P = v_1 … v_L of units. A call is convex, so its units on P are an interval, and what
follows on P starts after the call has ended. Hence

    T ≥ Σ load(S) over the calls S with units on P + Σ q_v over the units v of P on CPUs.

With L(a, b) = the least load of a call whose units on P are v_a … v_b, and at most x calls left,

    D[i][x] = min( q_{v_i} + D[i+1][x],  min_{j ≥ i} L(i, j) + D[j+1][x−1] ),   D[L+1][x] = 0

D[1][all calls] is a lower bound on the latency, and D[i][x] on the time that remains when v_1 …
v_{i−1} have finished and x calls are left.

A minimum cut bounds L(a, b) from below: the units on paths from v_a to v_b must be in the call; all
of P outside the interval, the ancestors of v_{a−1} and the descendants of v_{b+1} must not. The
accelerator must have room for the units in the call and all other nodes of their colours. The
least value over the kinds of accelerators counts.

With q calls per accelerator a colour may be divided among the calls of one accelerator, and a cut
inside it may cost next to nothing. If the colours lie contiguously on P, a boundary inside a colour
can only lie between two CPU nodes, or between two calls of one accelerator. So calls whose
boundaries lie inside colours are priced as a group on one accelerator, which has q calls and room
for all that the group's units need; a group of t calls counts as t:

    W_1(a, b) = L(a, b)
    W_t(a, b) = min over m inside a colour of L(a, m−1) + W_{t−1}(m, b)   if all fits in one memory

and D takes W_t(i, j) + D[j+1][x−t], t ≤ q, in place of L(i, j) + D[j+1][x−1], where neither i nor
j+1 lies inside a colour.

The paths are the heaviest by compute and transfers, and by time on CPUs; see `heavy_paths`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...formulations.digraph import heaviest_path
from ...formulations.latency.graph import LatencyGraph
from ...formulations.task import Task
from ...formulations.throughput.hypergraph import hypergraph
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Latency
from ...instances.common.arrays import Bools, Floats, Ints
from .mincut_kernel import CutData, least_of_interval, new_scratch

#: Ends of intervals that are handled together.
AT_ONCE = 128

#: Rounds of cutting the intervals of the shortest chain, to see if the bound proves the first plan.
ROUNDS = 10


@dataclass(frozen=True, eq=False)
class PathBound:
    """Bounds along one path of length L, with x = 0 … X calls left."""

    path: Ints  # (L,): units
    load: Floats  # (L, L): lower bounds on L(a, b); `inf` if there is no such call
    # (L+1, X+1): D[i][x], i from 0; if i is inside a colour, also the case that a later call of a
    # group begins there
    rest: Floats
    value: float  # lower bound on the latency


def cut_data(task: Task[Latency], graph: LatencyGraph) -> CutData:
    """Return units, nets and memories as arrays for minimum cuts."""
    nets = hypergraph(task, graph.unit_of)
    pin_start, pins, net_start, nets_of = nets.incidence
    return CutData(
        compute=graph.unit_compute,
        weight=np.ascontiguousarray(nets.weight.sum(axis=1)[list(graph.kinds)]),
        pin_start=pin_start,
        pins=pins,
        net_start=net_start,
        nets=nets_of,
        memory=graph.unit_memory,
        capacity=room_of(graph.capacity_bytes),
        tie=graph.group,
        tie_memory=np.array(
            [graph.memory_bytes[list(own)].sum() for own in task.workload.colour_classes] or [0.0]
        ),
    )


def path_bound(
    task: Task[Latency],
    graph: LatencyGraph,
    data: CutData,
    path: Ints,
    calls: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    enough: float | None = None,
) -> PathBound:
    """Return the bound along `path` with at most `calls` calls in all.

    Intervals that attain no D[i][x] keep a weaker bound on their load: the compute time of the
    units that must be in the call, and the path's transfers at its ends. With `enough`, only
    intervals on the shortest chain are cut, until the bound is at least `enough` or after `ROUNDS`.
    """
    size = len(path)
    load = np.full((size, size), np.inf)
    exact = np.zeros((size, size), np.bool_)
    cpu = path_cpu(task, graph, path)
    ends = path_transfer(task, graph, path)
    inner = _inside_colours(graph.group[path])
    tied = graph.group[path] >= 0
    need = np.where(tied, data.tie_memory[graph.group[path]], data.memory[path])
    need[1:][inner[1:size]] = 0.0  # a colour counts once
    before = np.concatenate([[0.0], np.cumsum(need)])
    scratch = new_scratch(data)
    for a in range(size):
        load[a, a:] = 0.0 if should_stop() else _weak_row(a, path, graph.reach, data, ends)

    largest, rounds = float(data.capacity.max(initial=0.0)), 0
    while True:
        groups, middles = _groups(load, inner, before, largest, task.problem.calls)
        rest, value, choice, taken = _rest(groups, cpu, calls, inner)
        start = None if enough is None else calls
        chosen = _chosen(choice, taken, middles, start)
        rough = [ab for ab in chosen if not exact[ab]]
        quickly = enough is not None and (value >= enough or rounds >= ROUNDS)
        if not rough or quickly or should_stop():
            return PathBound(path, load, rest, value)
        for a, b in rough:
            cut = least_of_interval(a, b, path, graph.reach, data, scratch)
            load[a, b] = max(load[a, b], cut)
            exact[a, b] = True
        rounds += 1


def _inside_colours(colour: Ints) -> Bools:
    """Return, shape (L+1,), whether i−1 and i share a colour; none do if one is not contiguous."""
    inner = np.zeros(len(colour) + 1, np.bool_)
    inner[1:-1] = (colour[1:] == colour[:-1]) & (colour[1:] >= 0)
    runs = colour[~inner[:-1] & (colour >= 0)]
    return inner & (len(np.unique(runs)) == len(runs))


def _chosen(
    choice: Ints, taken: Ints, middles: list[Ints], start: int | None
) -> list[tuple[int, int]]:
    """Return the intervals that attain D[1][start], or any D[i][x] if `start` is None."""
    groups: set[tuple[int, int, int]] = set()
    if start is None:
        at = np.nonzero(choice >= 0)
        groups.update(zip(at[0].tolist(), choice[at].tolist(), taken[at].tolist(), strict=True))
    i, x = 0, start or 0
    while start is not None and i < len(choice):
        j, t = int(choice[i, x]), int(taken[i, x])
        if j >= 0:
            groups.add((i, j, t))
        i, x = max(i, j) + 1, x - t
    found = set()
    for i, j, t in groups:
        begin = i
        for level in range(t - 2, -1, -1):
            middle = int(middles[level][begin, j])
            found.add((begin, middle - 1))
            begin = middle
        found.add((begin, j))
    return sorted(found)


def _groups(
    load: Floats, inner: Bools, before: Floats, largest: float, most: int
) -> tuple[list[Floats], list[Ints]]:
    """Return W_1 … W_most, and where the second call of each group begins; all of shape (L, L)."""
    size = len(load)
    places = np.flatnonzero(inner[:size])
    if not len(places):
        return [load], []
    groups, middles = [np.where(inner[1:], np.inf, load)], []
    beyond = np.searchsorted(before[1:], before[:size] + largest, side="right").tolist()
    for _ in range(most - 1):
        least, middle = np.full((size, size), np.inf), np.full((size, size), -1)
        for i in range(size):
            m = places[slice(*np.searchsorted(places, [i + 1, beyond[i]]))]
            m = m[load[i, m - 1] < np.inf]
            if len(m):
                both = load[i, m - 1, None] + groups[-1][m, i : beyond[i]]
                at = both.argmin(axis=0)
                least[i, i : beyond[i]] = both[at, np.arange(len(at))]
                middle[i, i : beyond[i]] = m[at]
        groups.append(least)
        middles.append(middle)
    return groups, middles


def _rest(
    groups: list[Floats], cpu: Floats, calls: int, inner: Bools
) -> tuple[Floats, float, Ints, Ints]:
    """Return D, D[1][calls], the last unit of the chosen group (−1: a CPU), and its calls."""
    size, most = len(cpu), len(groups)
    rest = np.zeros((size + 1, calls + 1))
    later = np.full((size + 1, calls + 1), np.inf)
    choice, taken = np.full((size, calls + 1), -1), np.zeros((size, calls + 1), np.int64)
    for i in range(size - 1, -1, -1):
        rest[i] = cpu[i] + rest[i + 1]
        for t, group in enumerate(groups[: min(calls, most - int(inner[i]))], 1):
            ends = np.flatnonzero(group[i] < np.inf)
            if not len(ends):
                continue
            worth = group[i, ends, None] + rest[ends + 1, : calls + 1 - t]
            at = worth.argmin(axis=0)
            least = worth[at, np.arange(len(at))]
            if inner[i]:
                later[i, t:] = np.minimum(later[i, t:], least)
                continue
            x = np.flatnonzero(least < rest[i, t:])
            rest[i, x + t], choice[i, x + t], taken[i, x + t] = least[x], ends[at[x]], t
    return np.minimum(rest, later), float(rest[0, calls]), choice, taken


def _weak_row(a: int, path: Ints, reach: Bools, data: CutData, transfer: Floats) -> Floats:
    """Return bounds on L(a, b) for all b ≥ a from compute times and transfers on the path alone.

    They are infinite from the first b for which the units that must be in the call fit nowhere.
    """
    row = np.full(len(path) - a, np.inf)
    among = np.flatnonzero(reach[path[a]])
    compute, tie = data.compute[:, among], data.tie[among]
    supported, tied = np.isfinite(compute), tie >= 0
    compute, alone = np.where(supported, compute, 0.0), data.memory[among[~tied]]
    for begin in range(a, len(path), AT_ONCE):
        end = min(begin + AT_ONCE, len(path))
        inside = reach[np.ix_(among, path[begin:end])]
        colours = np.zeros((len(data.tie_memory), end - begin), np.bool_)
        np.logical_or.at(colours, tie[tied], inside[tied])
        need = alone @ inside[~tied] + data.tie_memory @ colours
        work: Floats = compute @ inside
        last = min(end, len(path) - 1)
        work[:, : last - begin] += transfer[:, begin:last]
        if a > 0:
            work += transfer[:, a - 1, None]
        work[(~supported @ inside) | (need > data.capacity[:, None])] = np.inf
        row[begin - a : end - a] = work.min(axis=0, initial=np.inf)
        if np.isinf(row[end - a - 1]):
            break
    return row


def heavy_paths(graph: LatencyGraph, count: int = 3) -> list[Ints]:
    """Return heavy paths, all different: `count` by weights p + c/2, one by q.

    After each path the weights of its units are divided by ten, so that the next one differs.
    """
    least = graph.compute.min(axis=0, initial=np.inf)
    cheap = np.where(np.isfinite(least), least, graph.cpu)
    cheap = np.where(np.isfinite(cheap), cheap, 0.0)
    if len(graph.kinds):
        cheap = cheap + graph.transfer.min(axis=0) / 2
    weight = graph.by_unit(cheap)
    cpu = np.where(np.isfinite(graph.cpu), graph.cpu, cheap)
    paths: list[Ints] = []
    for i in range(count + 1):
        if i == count:
            weight = graph.by_unit(cpu)
        path = heaviest_path(range(graph.size), graph.successors, weight)
        if not any(np.array_equal(path, other) for other in paths):
            paths.append(path)
        weight = weight.copy()
        weight[path] *= 0.1
    return paths


def path_cpu(task: Task[Latency], graph: LatencyGraph, path: Ints) -> Floats:
    """Return, shape (L,), the least time on CPUs from entering each unit of a path to leaving it.

    For a contracted colour it is the longest chain between the node where the path enters and the
    node where it leaves, and of these the least over the possible nodes.
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
        time[i] = _passage(task, graph, unit, entries, exits)
    return time


def _passage(
    task: Task[Latency], graph: LatencyGraph, unit: int, entries: set[int], exits: set[int]
) -> float:
    """Return the least, over entries and exits, of the longest chain on CPUs from one to other."""
    longest = []
    for entry in sorted(entries):
        until = {entry: float(graph.cpu[entry])}
        for v in graph.members[unit]:
            fed = [until[u] for u in task.workload.predecessors[v] if u in until]
            if fed and v != entry:
                until[v] = max(fed) + float(graph.cpu[v])
        longest += [until[v] for v in exits if v in until]
    return min(longest, default=0.0)


def path_transfer(task: Task[Latency], graph: LatencyGraph, path: Ints) -> Floats:
    """Return, shape (K, L), a device's least transfers if the path is cut behind each unit."""
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
