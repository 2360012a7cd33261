"""Best first over all meeting ideals of all numbers of devices: plans, and the bound that is left.

A *root* stands for the chains that pass a meeting ideal. It becomes a tree (`tree`) once its bound
is the least of all. Where the chains below the incumbent have too many options, the tree is that of
the chains below a lower target, and the root stays, with that target as its bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ...core.search import Stoppable
from .pairs import Pairs
from .tree import FIRST, ROUNDS, Tree

#: Prices that are asked about every pair.
POOL = 4
#: Least part of the way to the target that a tree is built for.
LEAST_STEP = 1 / 256
#: Options of a tree at most, some 200 bytes each.
MAX_OPTIONS = 400_000
#: Relative slack for rounding of sums.
SLACK = 1e-9


@dataclass
class Root:
    """The chains that pass a meeting ideal.

    Parameters
    ----------
    pairs, meet
        Of which stages, and the ideal.
    pool
        Prices, shape (2D, 4) each, the newest last; shared by the roots of one number of devices.
    step
        Part of the way from its bound to the target that the next tree is built for.
    """

    pairs: Pairs
    meet: int
    pool: list[Floats]
    step: float = 1.0


@dataclass(frozen=True, eq=False)
class Node:
    """Some options of a tree, for chains below a target."""

    pairs: Pairs
    tree: Tree
    target: float
    options: Ints
    prices: Floats


@dataclass
class BestFirst:
    """The search.

    Parameters
    ----------
    search
        Asked when to stop.
    aim
        Returns the makespan below which a plan is asked for.
    met
        Takes the pairs and a chain, and its makespan.
    raise_bound
        Takes the least bound of all chains.
    closed
        Least makespan, or bound, of the chains that are not divided further.
    complete
        Whether no chain below the target, or below `closed`, is left.
    heap, number
        Roots and nodes by their bounds, and a number that tells equal ones apart.
    """

    search: Stoppable
    aim: Callable[[], float]
    met: Callable[[Pairs, Ints, float], None]
    raise_bound: Callable[[float], None]
    closed: float = np.inf
    complete: bool = False
    heap: list[tuple[float, int, Root | Node]] = field(default_factory=list)
    number: count[int] = field(default_factory=count)

    def push(self, bound: float, item: Root | Node) -> None:
        """Add a root or a node, unless there is nothing below the target."""
        if bound < self.aim():
            heapq.heappush(self.heap, (bound, next(self.number), item))

    def run(self) -> None:
        """Search until bound and plan meet, or the time ends."""
        while not self.search.should_stop():
            least = self.heap[0][0] if self.heap else self.aim()
            self.raise_bound(min(least, self.closed, self.aim()))
            if least >= self.aim() or self.closed <= least:
                self.complete = True
                return
            bound, _, item = heapq.heappop(self.heap)
            if isinstance(item, Root):
                self._grow(bound, item)
            else:
                self._divide(bound, item)

    def _grow(self, bound: float, root: Root) -> None:
        pairs, pool = root.pairs, root.pool[-POOL:]
        size = pairs.devices
        last = pairs.paid.lattice.size - 1
        target = bound + root.step * (self.aim() - bound)
        tables = np.array(
            [
                np.concatenate(
                    (pairs.behind(prices, root.meet, 0), pairs.behind(prices, last, size)[1:])
                )
                for prices in pool
            ]
        )
        starts = [pairs.behind(prices, last, size)[0, root.meet] for prices in pool]
        own = float((tables[:, 0, 0] + starts).max()) * (1 - SLACK)
        if own > bound:
            self.push(own, root)
            return
        graph = pairs.graph(root.meet, target, np.array(pool), tables, MAX_OPTIONS)
        if graph is None:
            root.step /= 2
            if root.step < LEAST_STEP:
                self.closed = min(self.closed, bound)
                return
            self.push(bound, root)
            return
        if target < self.aim():
            self.push(target, root)
        if not len(graph.source):
            return
        options = np.arange(len(graph.source))
        node = Node(pairs, Tree(graph, pairs.paths.chain), target, options, pool[-1])
        root.pool.append(self._refine(bound, node, FIRST))

    def _divide(self, bound: float, node: Node) -> None:
        halves = node.tree.halves(node.options, node.prices)
        if halves is None:  # all chains that are left take equally long
            refined = node.tree.refine(node.options, node.prices, np.inf, 1)
            self.closed = min(self.closed, refined.makespan)
            return
        for half in halves:
            self._refine(bound, replace(node, options=half), ROUNDS)

    def _refine(self, bound: float, node: Node, rounds: int) -> Floats:
        """Bound a node, push what is left of it, and return the prices."""
        target = min(node.target, self.aim())
        refined = node.tree.refine(node.options, node.prices, target, rounds)
        if np.isfinite(refined.makespan):
            self.met(node.pairs, refined.cuts, refined.makespan)
        if refined.bound < target and len(refined.alive):
            left = replace(node, target=target, options=refined.alive, prices=refined.prices)
            self.push(max(bound, refined.bound * (1 - SLACK)), left)
        return refined.prices
