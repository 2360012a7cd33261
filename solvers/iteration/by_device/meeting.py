"""Chains of two stages on each device that pass a meeting ideal: by stages first, then by pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Floats, Ints
from .graph import Graph
from .pairs import Pairs
from .singles import Singles

#: Pairs that are looked at at most, and listed, some 200 bytes each.
LOOKED_AT, MOST = 100_000, 400_000


@dataclass(frozen=True, eq=False)
class Meeting(Singles):
    """The chains of 2D stages that pass a meeting ideal; see `Source`.

    At first stage by stage, with the least that each of them takes; then, where few enough are
    left at each position, by pairs.
    """

    pairs: Pairs

    def durations(self) -> Sequence[Floats]:
        """Return for each position how long the actions of each stage take at least.

        A net with pins on one side of the meeting ideal alone is paid for by all stages that cut
        it. Else the first half pays for forward data, and the second half for gradients, where
        another stage of the same half has a pin, as that is on another device.
        """
        shared, (size, meet) = self.pairs.shared, self.through
        stages = self.pairs.paths.stages
        halves = []
        for half in range(2):
            passes = stages.forward[0].copy(), stages.backward[0].copy()
            for e, (which, own) in enumerate(self.pairs.cut):
                below = int(shared.held[meet, e])
                here = int(shared.pins[e]) - below if half else below
                if here == shared.pins[e]:
                    for k in range(2):
                        passes[k][which] += shared.weight[k, e]
                elif here:
                    passes[half][which[own < here]] += shared.weight[half, e]
            forward, backward = (np.where(np.isfinite(one), one, 0.0) for one in passes)
            none = np.zeros_like(forward)
            halves += [np.stack((forward, backward, none, none))] * size
        return halves

    def bounds(self) -> Sequence[Floats]:
        """Return for each position what each stage there costs every plan, shape (R,)."""
        return self.pairs.alone

    def finer(self, graph: Graph, alive: Ints, target: float, prices: Floats) -> Graph | None:
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
            allowed[s] = np.isin(self.pairs.keys, keys)
            reached = np.unique(graph.cuts[graph.begin[s] : graph.begin[s + 1], 0])
        _, meet = self.through
        return self.pairs.graph(meet, target, prices[None], allowed, MOST)
