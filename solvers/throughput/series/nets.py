"""Where the nets of a graph have their pins, by segment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.common.arrays import Floats, Ints
from .states import States


@dataclass(frozen=True, eq=False)
class Net:
    """A net, by segment.

    Parameters
    ----------
    weight
        Shape (K,): what a device of each kind pays for it.
    segments
        Those with pins of it, increasing.
    before
        How many pins are before each of them, and how many there are.
    columns
        For each of them, which of its units are pins.
    """

    weight: Floats
    segments: Sequence[int]
    before: Sequence[int]
    columns: Sequence[Ints]

    @property
    def pins(self) -> int:
        """How many pins there are."""
        return self.before[-1]

    def until(self, a: int) -> int:
        """Return how many pins are in the segments before one."""
        return self.before[bisect_left(self.segments, a)]

    def between(self, a: int, b: int) -> bool:
        """Whether a pin is in a segment after `a` and before `b`."""
        at = bisect_right(self.segments, a)
        return at < len(self.segments) and self.segments[at] < b

    def held(self, a: int, states: States) -> Ints:
        """Return how many pins each state of a segment holds, shape (S,)."""
        at = bisect_left(self.segments, a)
        if at == len(self.segments) or self.segments[at] != a:
            return np.full(states.size, self.before[at])
        inside: Ints = states.member[:, self.columns[at]].sum(axis=1)
        return self.before[at] + inside


def nets(graph: Hypergraph, states: Sequence[States], weight: Floats) -> list[Net]:
    """Return the nets that cost something.

    Parameters
    ----------
    weight
        Shape (K, E).
    """
    segment, column = np.empty(graph.size, np.int64), np.empty(graph.size, np.int64)
    for a, one in enumerate(states):
        segment[one.units], column[one.units] = a, np.arange(len(one.units))
    found: list[Net] = []
    for e in np.flatnonzero(weight.any(axis=0)):
        units = np.array(graph.pins[e])
        units = units[np.argsort(segment[units], kind="stable")]
        segments, start = np.unique(segment[units], return_index=True)
        columns = np.split(column[units], start[1:])
        before = [*start.tolist(), len(units)]
        found.append(Net(weight[:, e], segments.tolist(), before, columns))
    return found


def opened(nets: Sequence[Net], length: int) -> Iterator[list[Net]]:
    """Yield for each segment the nets with pins there or before, and behind; the longest first."""
    begins: list[list[Net]] = [[] for _ in range(length)]
    for net in nets:
        begins[net.segments[0]].append(net)
    found: list[Net] = []
    for a in range(length):
        found = [net for net in found + begins[a] if net.segments[-1] > a]
        found.sort(key=lambda net: -net.segments[-1])
        yield found
