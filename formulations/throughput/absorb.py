"""Zero-cost merges: units that cost nothing join their only neighbour. Exact, with its proof.

Let the unit a take no time on any kind of device, let b be the only unit that a pipeline edge ties
a to, and let every net that contains a contain b. Given any plan, move a to b's device:

- Order: every pipeline edge of a is now inside one device, so no circle arises.
- Loads: no time moves. A net e ∋ a is paid by the devices on which it is not uniform. On b's
  device e was cut before if it is cut now, for a pin is outside only if one was. On a's old device
  e no longer counts if a was its only pin there, and otherwise was cut before, for b was outside.
  Nothing else changes. So no load grows, in neither pass, with transfers added or overlapped.
- Memory: a's bytes move to b's device. That is harmless if a has none, or if no memory can bind.

So some optimal plan has a and b together, and one unit may stand for both. The original (Tarnawski
et al., NeurIPS 2020) merges regardless of memory, which can lose the optimum.
"""

from __future__ import annotations

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Bools, Ints, frozen
from ..task import Task
from .hypergraph import Hypergraph


def absorb(task: Task[Throughput], graph: Hypergraph) -> Ints:
    """Return the unit of each node after all zero-cost merges; shape (n,), renumbered.

    It is `graph.unit_of` itself if there is nothing to merge.

    Its inverse is `Hypergraph.expand` of the hypergraph built from it.
    """
    costs = task.costs
    used = costs.count > 0
    roomy = bool((costs.capacity_bytes[used] >= graph.memory_bytes.sum()).all())
    free = (graph.compute[used].sum(axis=1) == 0).all(axis=0)
    if not roomy:
        free &= graph.memory_bytes == 0
    if not free.any():
        return graph.unit_of
    joined = _join(graph, free)
    _, unit = np.unique(joined[graph.unit_of], return_inverse=True)
    return frozen(unit.ravel(), np.int64)


def _join(graph: Hypergraph, free: Bools) -> Ints:
    """Return for each unit the one that stands for it; `free` units may join another."""
    beside: list[set[int]] = [set() for _ in range(graph.size)]
    for a, b in graph.edges.tolist():
        beside[a].add(b)
        beside[b].add(a)
    pins = [set(net) for net in graph.pins]
    nets: list[set[int]] = [set() for _ in range(graph.size)]
    for e, net in enumerate(pins):
        for a in net:
            nets[a].add(e)
    stands_for = np.arange(graph.size)
    waiting = [a for a in reversed(range(graph.size)) if free[a]]
    while waiting:
        a = waiting.pop()
        if stands_for[a] != a or len(beside[a]) != 1:
            continue
        (b,) = beside[a]
        if all(b in pins[e] for e in nets[a]):
            stands_for[a] = b
            beside[b].discard(a)
            for e in nets[a]:
                pins[e].discard(a)
            if free[b]:
                waiting.append(b)
    for a in range(graph.size):
        while stands_for[a] != stands_for[stands_for[a]]:
            stands_for[a] = stands_for[stands_for[a]]
    return stands_for
