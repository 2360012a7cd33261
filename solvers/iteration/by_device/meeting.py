"""Chains of two stages on each device that pass a meeting ideal: by stages first, then by pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Floats, Ints
from .graph import OptionGraph
from .pair_graph import pair_graph
from .pairs import Pairs
from .singles import Singles, StageRange

#: Pairs that the stages left can form at most, few of which are looked at, and that are listed at
#: most, some 150 bytes each.
LOOKED_AT, MOST = 300_000_000, 2_000_000
#: Prices at which pairs are left out.
POOL = 2


@dataclass(frozen=True, eq=False)
class Meeting(Singles):
    """The chains of 2D stages that pass a meeting ideal; see `Source`.

    At first stage by stage, with the least that each of them takes; then, where few enough are
    left at each position, by pairs.

    Parameters
    ----------
    meet
        The ideal that the first D stages end with, not the empty or the last one.
    pairs
        What all meeting ideals have in common.
    """

    meet: int
    pairs: Pairs

    def parts(self) -> Sequence[StageRange]:
        """Return the stages of both halves, with how long the actions of each take at least."""
        size, stages, members = self.pairs.devices, self.pairs.paths.stages, self._members
        below = ~(members & ~members[self.meet]).any(axis=1)
        above = ~(members[self.meet] & ~members).any(axis=1)
        order, start = self.pairs.by_start, stages.start
        return [
            self._part(range(size), order[below[stages.end[order]]]),
            self._part(range(size, 2 * size), order[above[start[order]]]),
        ]

    @property
    def _members(self) -> NDArray[np.uint64]:
        return self.pairs.paths.stages.lattice.members

    def _part(self, positions: range, numbers: Ints) -> StageRange:
        times = self.pairs.times(int(positions.start > 0), self.meet, numbers)
        return StageRange(positions, numbers, times)

    def bounds(self) -> Sequence[Floats]:
        """Return for each position what each stage there costs every plan, shape (R,)."""
        return self.pairs.alone

    def finer(self, graph: OptionGraph, alive: Ints, target: float) -> OptionGraph | None:
        """Return the pairs of the stages that are left; None while they are too many."""
        size, ideals = self.plans.size, self.pairs.paid.lattice.size
        begin = np.searchsorted(alive, graph.begin)
        left = np.diff(begin)
        if (left[: size // 2] * left[size // 2 :]).sum() > LOOKED_AT:
            return None
        allowed = np.zeros((size, len(self.pairs.keys)), np.bool_)
        reached = np.zeros(1, np.int64)
        for s in range(size):
            own = alive[begin[s] : begin[s + 1]]
            keys = reached[graph.source[own]] * ideals + graph.cuts[own, 0]
            at = np.searchsorted(self.pairs.keys, keys)
            at = at[at < len(self.pairs.keys)]
            allowed[s, at] = np.isin(self.pairs.keys[at], keys)
            reached = np.unique(graph.cuts[graph.begin[s] : graph.begin[s + 1], 0])
        asked = np.array(self.plans.pool[-POOL:])
        return pair_graph(self.pairs, self.meet, target, asked, allowed, MOST)
