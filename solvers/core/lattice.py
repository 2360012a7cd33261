"""The lattice of ideals of a DAG, listed or counted; an ideal is closed under predecessors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Bools, Floats, Ints
from .lattice_kernel import Edges, grow
from .search import Clock

#: Ideals listed between two polls of the clock.
SLICE = 100_000


@dataclass(frozen=True, eq=False)
class Lattice:
    """The N ideals of U units by increasing size, from the empty one to the full one."""

    order: Ints  # (U,): the units in a topological order; below, "unit r" is the unit order[r]
    # (N, ⌈U/64⌉): bit r % 64 of word r // 64 tells whether unit r is in the ideal
    members: NDArray[np.uint64]
    start: NDArray[np.int64]  # (N + 1,): where each ideal's steps begin in `unit` and `to`
    # unit, to: (steps,): a unit that can be added to the ideal, increasing, and the ideal reached
    unit: NDArray[np.int32]
    to: NDArray[np.int32]

    @property
    def size(self) -> int:
        """Number of ideals."""
        return len(self.members)

    @property
    def complete(self) -> bool:
        """Whether all ideals are listed."""
        return len(self.units(self.size - 1)) == len(self.order)

    def units(self, ideal: int) -> Ints:
        """Return the units in an ideal, increasing."""
        bits = np.unpackbits(self.members[ideal].view(np.uint8), bitorder="little")
        return np.flatnonzero(bits)

    def between(self, low: int, high: int) -> Ints:
        """Return the units in ideal `high` that are not in its subset `low`, increasing."""
        return np.setdiff1d(self.units(high), self.units(low), assume_unique=True)

    @property
    def bits(self) -> Floats:
        """Shape (N, U): 1 if unit r is in the ideal, else 0."""
        raw = self.members.view(np.uint8)
        bits = np.unpackbits(raw, axis=1, count=len(self.order), bitorder="little")
        return bits.astype(np.float64)

    def sums(self, value: Floats) -> Floats:
        """Return the sum over the units of each ideal, shape (N,), of a value by unit, (U,)."""
        found = np.zeros(self.size)
        if len(self.to) == self.size - 1:  # a chain
            found[1:] = np.cumsum(value[self.unit])
            return found
        low, high = 0, 1
        while low < high:  # ideals of one size
            steps = slice(self.start[low], self.start[high])
            before = np.repeat(found[low:high], np.diff(self.start[low : high + 1]))
            found[self.to[steps]] = before + value[self.unit[steps]]
            low, high = high, int(self.to[steps].max(initial=high - 1)) + 1
        return found

    def has(self, unit: int) -> Bools:
        """Return, shape (N,), which ideals contain a unit: its number, not its place in `order`."""
        word, bit = self._place(unit)
        return (self.members[:, word] >> bit & np.uint64(1)).astype(np.bool_)

    def holds(self, ideal: int, unit: int) -> bool:
        """Whether an ideal contains a unit: its number, not its place in `order`."""
        word, bit = self._place(unit)
        return bool(self.members[ideal, word] >> bit & np.uint64(1))

    def _place(self, unit: int) -> tuple[int, np.uint64]:
        place = int(np.flatnonzero(self.order == unit)[0])
        return place // 64, np.uint64(place % 64)


def chain(order: Ints) -> Lattice:
    """Return the lattice of a chain: its ideals are the prefixes of `order`."""
    size = len(order)
    inside = np.tri(size + 1, 64 * ((size + 63) // 64), -1, dtype=np.uint8)
    members = np.packbits(inside, axis=1, bitorder="little").view(np.uint64)
    start = np.append(np.arange(size + 1), size)
    steps = np.arange(size, dtype=np.int32)
    return Lattice(order, members, start, steps, steps + 1)


def list_ideals(
    order: Ints, edges: Ints, most: int, search: Clock, expected: int = 1024
) -> Lattice:
    """List the ideals of a DAG by size, until there are more than `most` or the search must stop.

    Takes time and memory linear in the number of steps from one ideal to the next.

    `order` is topological; memory is reserved for `expected` ideals, and grows if needed.
    """
    size = len(order)
    edges = np.argsort(order)[edges]
    before, before_start = _neighbours(size, edges[:, ::-1])
    after, after_start = _neighbours(size, edges)
    neighbours = Edges(before_start, before, after_start, after)
    ready = np.flatnonzero(np.diff(before_start) == 0).astype(np.int32)
    members = np.zeros((expected + 1, (size + 63) // 64), np.uint64)
    start = np.zeros(expected + 2, np.int64)
    start[1] = len(ready)
    unit = np.zeros(4 * expected + len(ready), np.int32)
    unit[: len(ready)] = ready
    to = np.zeros(len(unit), np.int32)
    low, high = 0, 1
    while low < high <= most and not search.should_stop():
        members, start, unit, to, low, high = grow(
            members, start, unit, to, low, high, neighbours, min(high + SLICE, most + 1)
        )
    steps = int(start[high])
    return Lattice(order, members[:high], start[: high + 1], unit[:steps], to[:steps])


def count_ideals(size: int, edges: Ints, effort: int) -> tuple[int, bool]:
    """Count the ideals of a DAG without listing them; also return whether the count is complete.

    Dynamic program over the units in a topological order. Ideals of the units so far are grouped
    into classes by those members that still have successors to come. After `effort` classes it
    ends, and the number returned is a lower bound.
    """
    import networkx as nx

    dag: nx.DiGraph[int] = nx.DiGraph()
    dag.add_nodes_from(range(size))
    dag.add_edges_from(edges.tolist())
    dag = nx.transitive_reduction(dag)
    coming = dict(dag.out_degree())
    waiting = dict(dag.in_degree())
    ready = [v for v in dag if not waiting[v]]
    classes = {0: 1}  # members with successors to come, as bits → number of ideals
    while ready and effort > 0:
        # Next: the unit that leaves the fewest units with successors to come.
        closes = [sum(coming[u] == 1 for u in dag.predecessors(v)) for v in ready]
        v = ready.pop(min(range(len(ready)), key=lambda i: (coming[ready[i]] > 0) - closes[i]))
        needs = closed = 0
        for u in dag.predecessors(v):
            coming[u] -= 1
            needs |= 1 << u
            closed |= (not coming[u]) << u
        added = (1 << v) if coming[v] else 0
        grown: dict[int, int] = {}
        for members, number in classes.items():
            left = members & ~closed
            grown[left] = grown.get(left, 0) + number
            if members & needs == needs:
                grown[left | added] = grown.get(left | added, 0) + number
        classes = grown
        effort -= len(classes)
        for x in dag.successors(v):
            waiting[x] -= 1
            if not waiting[x]:
                ready.append(x)
    return sum(classes.values()), not ready


def _neighbours(size: int, edges: Ints) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the heads of all edges, grouped by tail, and where each tail's group begins."""
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    heads = edges[order, 1].astype(np.int32)
    return heads, np.searchsorted(edges[order, 0], np.arange(size + 1)).astype(np.int64)
