"""Branch and bound over graphs of options, the least bound first.

A node is a set of options of a graph. Prices bound it (`kernels.refine`) and rule options out; then
the options of one device are divided into those with a long and with a short time of one stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ..chain import Chain
from . import kernels
from .graph import Graph

#: Rounds of the first node of a graph, and of all others.
FIRST, ROUNDS = 60, 12
#: Spread of times below which options are not told apart.
ALIKE = 1e-12


class Refined(NamedTuple):
    """The outcome for a node.

    Parameters
    ----------
    bound
        Of its chains; `inf` for none.
    alive
        Numbers of the options that are left.
    prices
        Those that gave the bound.
    cuts
        Ideals at which the stages of the best chain met end, shape (P,).
    makespan
        Of that chain; `inf` for none.
    """

    bound: float
    alive: Ints
    prices: Floats
    cuts: Ints
    makespan: float


@dataclass(frozen=True, eq=False)
class Tree:
    """A graph to be searched.

    Parameters
    ----------
    graph, chain
        The options, and the order of the stages.
    """

    graph: Graph
    chain: Chain

    @property
    def states(self) -> int:
        """Most states of a layer."""
        return int(max(self.graph.source.max(initial=0), self.graph.sink.max(initial=0))) + 1

    def refine(self, alive: Ints, prices: Floats, target: float, rounds: int) -> Refined:
        """Bound the chains of some options that are below a target."""
        keep = np.ones(len(alive), np.bool_)
        best = np.empty_like(prices)
        chosen = np.empty(len(self.graph.begin) - 1, np.int64)
        makespan = np.empty(1)
        bound = kernels.refine(
            self.graph, alive, prices, self.chain.actions, target, rounds, self.states,
            (keep, best, chosen, makespan),
        )  # fmt: skip
        cuts = self.graph.cuts[chosen].T.ravel()
        return Refined(bound, alive[keep], best, cuts, float(makespan[0]))

    def halves(self, alive: Ints, prices: Floats) -> tuple[Ints, Ints] | None:
        """Divide options by the time of one stage of a device; None if only one chain is left."""
        begin = np.searchsorted(alive, self.graph.begin)
        best = (ALIKE, -1, np.zeros(0))
        for weights in (prices, np.ones_like(prices), *np.eye(4)[:, None]):
            for d, own in enumerate(np.split(alive, begin[1:-1])):
                own_weights = np.broadcast_to(weights, prices.shape)[d :: len(begin) - 1]
                costs = np.einsum("ica,ca->ci", self.graph.duration[own], own_weights)
                for cost in costs:
                    best = max(best, (float(np.ptp(cost)), d, cost), key=lambda one: one[0])
            if best[1] >= 0:
                break
        _, d, cost = best
        if d < 0:
            return None
        low = np.ones(len(alive), np.bool_)
        high = np.ones(len(alive), np.bool_)
        short = cost <= (cost.max() + cost.min()) / 2
        low[begin[d] : begin[d + 1]] = short
        high[begin[d] : begin[d + 1]] = ~short
        return alive[low], alive[high]
