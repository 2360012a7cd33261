"""Critical-path bound on the max-load of contiguous splits: stages cut the path into intervals.

Let the *critical path* s_0, s_1, … s_{L−1} be a heaviest path through the units. For unit x, let
s_f(x) be the first unit of the path that is x or comes after it, and s_g(x) the last that is x or
comes before it; if there is none, f is L or g is −1. A stage I ∖ I' of a chain of ideals holds an
interval s_i … s_{j−1} of the path, and with it

- all x with g(x) ≥ i and f(x) < j, as s_i ≤ x ≤ s_{j−1}: their work and their memory;
- no x with f(x) < i, which is in I', and none with g(x) ≥ j, which is not in I: it pays for every
  net of those above that has such a pin.

This gives a lower bound on the load of a stage by i and j. A max-load T implies two things: some
intervals of loads within T, on the available devices, make up the path; and, summed over the n_k
devices of a kind k,

    n_k T ≥ Σ_v p_v − V(T) + transfers of the intervals,

where V(T) bounds what devices of other kinds can do, by a knapsack. Both are tested by dynamic
programs over positions on the path: the fewest devices of kind k up to a position, and the least
transfers, each for every number of other devices. The largest T that fails is the bound.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from ....formulations.digraph import heaviest_path
from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....formulations.throughput.whole_bytes import room_of
from ....instances import Solution, Throughput
from ....instances.common.arrays import Floats, Ints, summable
from ...core.search import Clock, Search
from ..dp import knapsack
from .bound_kernels import extend_intervals

ORIGIN = "intervals of a critical path"

#: Positions between two polls of the clock.
SLICE = 200

#: Part of the initial gap at which the bisection ends.
CLOSE = 0.02


class _CriticalPath:
    """Critical path of a task, with tests of a max-load along it, for plans within a load.

    Times above the load count as twice the load, and transfers are rounded to a grid on which sums
    are exact, as a net that ends within a stage is subtracted again.
    """

    def __init__(self, task: Task[Throughput], graph: Hypergraph, longest: float) -> None:
        used = np.flatnonzero(task.costs.count)
        kinds = used[np.argsort(-task.costs.count[used], kind="stable")]
        time = graph.compute.sum(axis=1)[kinds]
        self._time = time
        self._count = task.costs.count[kinds]
        self._work = np.where(time <= longest * (1 + PROOF_MARGIN), time, 0.0)
        room = room_of(task.costs.capacity_bytes[kinds])
        self._room = np.minimum(room, np.finfo(float).max)
        before, after, self._length = _places(graph, self._work[0])
        shape = graph.incidence
        net = np.repeat(np.arange(len(graph.pins)), np.diff(shape.net_ptr))
        net_first = np.full(len(graph.pins), self._length)
        net_last = np.full(len(graph.pins), -1)
        np.minimum.at(net_first, net, after[shape.net_pins])
        np.maximum.at(net_last, net, before[shape.net_pins])
        by_after = np.argsort(after, kind="stable")
        start = np.searchsorted(after[by_after], np.arange(self._length + 2))
        self._units = by_after, start, before
        self._nets = shape.unit_ptr, shape.unit_nets, net_first, net_last
        weight = np.minimum(graph.weight.sum(axis=1)[kinds], 2 * longest)
        weight = np.ascontiguousarray(summable(weight))
        self._costs = np.minimum(time, 2 * longest), graph.memory_bytes, weight

    def refutes(self, limit: float, clock: Clock) -> bool | None:
        """Return whether the tests refute all plans within a load limit; None if stopped."""
        length, count = self._length, int(self._count[0])
        shape = 1 + int(self._count[1:].sum()), length + 1
        fewest, least = np.full(shape, count + 1), np.full(shape, np.inf)
        fewest[0, 0], least[0, 0] = 0, 0.0
        limits = limit * (1 + PROOF_MARGIN), self._room, count
        scratch = np.zeros(len(self._nets[2]), np.int64), np.empty(length + 1)
        for first in range(0, length, SLICE):
            if clock.should_stop():
                return None
            extend_intervals(
                (first, min(first + SLICE, length)), self._units, self._nets, self._costs, limits,
                (fewest, least), scratch,
            )  # fmt: skip
        if fewest[:, -1].min() > count:
            return True
        work = self._work[0]
        others = zip(self._time[1:], self._count[1:], strict=True)
        taken = sum(float(many) * knapsack(work, time, limit) for time, many in others)
        total = float(work.sum()) * (1 - PROOF_MARGIN) - taken * (1 + PROOF_MARGIN)
        return total + float(least[:, -1].min()) * (1 - PROOF_MARGIN) > count * limit


def raise_by_critical_path(
    task: Task[Throughput], graph: Hypergraph, search: Search[Solution], clock: Clock
) -> None:
    """Raise the bound of contiguous splits by bisection between the bound and the objective.

    `graph` has units that must each be on one device, with the edges that decide contiguity.
    Nothing is proved if transfers overlap compute, or devices are linked.
    """
    high = search.objective
    if task.problem.overlap or task.cluster.links or not np.isfinite(high):
        return
    path = _CriticalPath(task, graph, high)
    low = max(search.bound, 0.0)
    gap = high - low
    while high - low > CLOSE * gap and not clock.should_stop():
        middle = (low + high) / 2
        refuted = path.refutes(middle, clock)
        if refuted is None:
            return
        if refuted:
            low = middle
            search.raise_bound(low * (1 - PROOF_MARGIN), ORIGIN)
        else:
            high = middle


def _places(graph: Hypergraph, work: Floats) -> tuple[Ints, Ints, int]:
    """Return g and f of each unit, and the length L of the path with the most work."""
    order = graph.digraph()
    topological = list(nx.topological_sort(order))
    path = heaviest_path(topological, graph.successors, work)
    before, after = np.full(graph.size, -1), np.full(graph.size, len(path))
    before[path] = after[path] = np.arange(len(path))
    for v in topological:
        before[v] = max([before[v], *(before[u] for u in order.predecessors(v))])
    for v in reversed(topological):
        after[v] = min([after[v], *(after[w] for w in order.successors(v))])
    return before, after, len(path)
