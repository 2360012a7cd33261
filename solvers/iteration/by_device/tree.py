"""Branch and bound over graphs of options, the least bound first.

A node is a set of options of a graph. Prices bound it (`kernels.refine`) and rule options out; then
the options of one device are divided into those with a long and with a short time of one stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....formulations.iteration.chain import Chain
from ....instances.common.arrays import Bools, Floats, Ints
from .graph import OptionGraph
from .refine_kernel import refine

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
    paths, chains
        Of the best mixtures: paths, shape (R, P, 4), and options of chains, shape (C, D).
    cuts
        Ideals at which the stages of the best chain met end, shape (P,).
    makespan
        Of that chain; `inf` for none.
    """

    bound: float
    alive: Ints
    prices: Floats
    paths: Floats
    chains: Ints
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

    graph: OptionGraph
    chain: Chain

    @property
    def states(self) -> int:
        """Most states of a layer."""
        return int(max(self.graph.source.max(initial=0), self.graph.sink.max(initial=0))) + 1

    def refine(
        self, alive: Ints, paths: Floats, chains: Ints, target: float, rounds: int
    ) -> Refined:
        """Bound the chains of some options that are below a target.

        Parameters
        ----------
        paths, chains
            As of `Refined`, to begin with; one path at least, or a mixture of some.
        """
        devices = len(self.graph.begin) - 1
        chains = chains[np.isin(chains, alive).all(axis=1)]
        rows, columns = len(paths), len(chains)
        pool = (
            np.concatenate((paths, np.zeros((2 * rounds + 1, *paths.shape[1:])))),
            np.concatenate((np.searchsorted(alive, chains), np.zeros((rounds, devices), np.int64))),
            np.zeros(rows + 2 * rounds + 1),
            np.zeros(columns + rounds),
            np.array([rows, columns]),
        )
        keep = np.ones(len(alive), np.bool_)
        best = np.empty_like(paths[0])
        chosen = np.empty(devices, np.int64)
        makespan = np.empty(1)
        bound = refine(
            self.graph, alive, self.chain.actions, target, rounds, self.states, pool,
            (keep, best, chosen, makespan),
        )  # fmt: skip
        rows, columns = pool[4]
        return Refined(
            bound,
            alive[keep],
            best,
            np.concatenate((best[None], pool[0][:rows][pool[2][:rows] > 0])),
            alive[pool[1][:columns][pool[3][:columns] > 0]],
            self.graph.cuts[chosen].T.ravel(),
            float(makespan[0]),
        )

    def halves(self, alive: Ints, prices: Floats, chains: Ints) -> tuple[Ints, Ints] | None:
        """Divide options by the time of one stage of a device; None if only one chain is left.

        It is the stage whose cost at the prices varies most over the chains of the best mixture,
        or, if they are alike, over the options.
        """
        devices, kinds = len(self.graph.begin) - 1, self.graph.duration.shape[2]
        begin = np.searchsorted(alive, self.graph.begin)
        if len(chains) > 1:
            split = self._costs(chains, prices)
            spread = split.std(axis=0)
            d, c = map(int, np.unravel_index(spread.argmax(), spread.shape))
            own = alive[begin[d] : begin[d + 1]]
            cost = self.graph.duration[own, c] @ prices[c * devices + d, :kinds]
            middle = split[:, d, c].mean()
            if spread[d, c] > ALIKE and cost.min() <= middle < cost.max():
                return _at(alive, begin, d, cost <= middle)
        best = (ALIKE, -1, np.zeros(0))
        for weights in (prices, np.ones_like(prices), *np.eye(4)[:, None]):
            for d, own in enumerate(np.split(alive, begin[1:-1])):
                own_weights = np.broadcast_to(weights, prices.shape)[d::devices, :kinds]
                costs = np.einsum("ica,ca->ci", self.graph.duration[own], own_weights)
                for cost in costs:
                    best = max(best, (float(np.ptp(cost)), d, cost), key=lambda one: one[0])
            if best[1] >= 0:
                break
        _, d, cost = best
        return None if d < 0 else _at(alive, begin, d, cost <= (cost.max() + cost.min()) / 2)

    def _costs(self, chains: Ints, prices: Floats) -> Floats:
        """Return what each stage of each device costs in chains, shape (chains, D, v)."""
        devices = len(self.graph.begin) - 1
        kinds = self.graph.duration.shape[2]
        by_device = prices.reshape(-1, devices, 4).transpose(1, 0, 2)[:, :, :kinds]
        return np.asarray((self.graph.duration[chains] * by_device).sum(axis=-1))


def _at(alive: Ints, begin: Ints, d: int, short: Bools) -> tuple[Ints, Ints]:
    """Return the options with the short ones of device d alone, and with the others."""
    low = np.ones(len(alive), np.bool_)
    low[begin[d] : begin[d + 1]] = short
    high = np.ones(len(alive), np.bool_)
    high[begin[d] : begin[d + 1]] = ~short
    return alive[low], alive[high]
