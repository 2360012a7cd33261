"""Best first over the chains of P stages, for all P that the schedule allows.

The chains of P stages are the paths of a graph of *options* (`options`). An option is left out
where the cheapest stages before and behind it show that no chain below the target has it, or where
it does not fit into memory. Stages on one device exchange data for nothing, so an option pays for a
net only once no chain below the target has pins of it in two stages of a device: that is asked for
each net and two stages.

A *root* stands for all chains of P stages. It becomes a tree once its bound is the least of all.
Where the chains below the incumbent have too many options, the tree is that of the chains below a
lower target, and the root stays, with that target as its bound.

A node of a tree is a set of options of a graph. Prices bound it (`refine_kernel`) and rule options
out; then the options of one stage are divided into those with a long and with a short time. Where
stages share a device, or times are lower bounds, a chain may take longer than its options say, or
not fit: then those of a node that are left, and take equally long by them, are judged one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, count, islice
from typing import NamedTuple

import numpy as np

from ....formulations.job.iteration_bounds import divide
from ....formulations.job.line import Line
from ....instances.common.arrays import Bools, Floats, Ints
from .chains import SLACK, MetChain, Run, StageCount
from .options import ChainOptions, OptionGraph, OutOfTime
from .refine_kernel import refine

#: Rounds of a node.
ROUNDS = 12


#: Spread of times below which options are not told apart.
ALIKE = 1e-12


#: Factor by which options of a node must become fewer before `_pay` is called on them again.
SHRUNK = 4


#: Chains of a node that are judged one by one at most.
MOST_ALIKE = 1_000


class Refined(NamedTuple):
    """Result of bounding a node: bound, options left, and mixtures."""

    #: Lower bound on the makespans of its chains; `inf` for none.
    bound: float
    #: Numbers of the options that are left.
    alive: Ints
    #: Shape (P, 4): prices that gave the bound.
    prices: Floats
    #: Best mixtures: their paths, shape (R, P, 4), and options of their chains, shape (C, P).
    paths: Floats
    chains: Ints
    #: Options of the best chain met, shape (P,), and its makespan; `inf` for none.
    best: Ints
    makespan: float


@dataclass(frozen=True, eq=False)
class Tree:
    """Graph of options that nodes search."""

    #: All options of chains of P stages, of which the graph has some.
    options: ChainOptions
    graph: OptionGraph
    #: Shape (nets, P): whether options pay for a net of `ChainOptions.unpaid` all the same.
    paid: Bools

    @cached_property
    def states(self) -> int:
        """Most states of a layer."""
        return int(max(self.graph.source.max(initial=0), self.graph.sink.max(initial=0))) + 1

    def chain(self, chosen: Ints | list[int], makespan: float) -> MetChain:
        """Return a chain of options."""
        number, kind = self.graph.number[chosen], self.graph.kind[chosen]
        return MetChain(makespan, tuple(number.tolist()), tuple(kind.tolist()))

    def refine(
        self, alive: Ints, paths: Floats, chains: Ints, target: float, rounds: int
    ) -> Refined:
        """Bound the chains of some options that are below a target.

        It begins with paths and chains as of `Refined`; one path at least, or a mixture of some.
        """
        size = len(self.graph.begin) - 1
        chains = chains[np.isin(chains, alive).all(axis=1)]
        rows, columns = len(paths), len(chains)
        pool = (
            np.concatenate((paths, np.zeros((2 * rounds + 1, *paths.shape[1:])))),
            np.concatenate((np.searchsorted(alive, chains), np.zeros((rounds, size), np.int64))),
            np.zeros(rows + 2 * rounds + 1),
            np.zeros(columns + rounds),
            np.array([rows, columns]),
        )
        keep = np.ones(len(alive), np.bool_)
        best = np.empty_like(paths[0])
        chosen = np.empty(size, np.int64)
        makespan = np.empty(1)
        bound = refine(
            self.graph, alive, self.options.chain.actions, target, rounds, self.states, pool,
            (keep, best, chosen, makespan),
        )  # fmt: skip
        rows, columns = pool[4]
        return Refined(
            bound,
            alive[keep],
            best,
            np.concatenate((best[None], pool[0][:rows][pool[2][:rows] > 0])),
            alive[pool[1][:columns][pool[3][:columns] > 0]],
            chosen,
            float(makespan[0]),
        )

    def halves(self, alive: Ints, prices: Floats) -> tuple[Ints, Ints] | None:
        """Divide options by the time of one stage; None if all chains take equally long.

        It is the stage whose cost varies most, at the prices; if none does, whose time does.
        """
        duration = self.graph.duration
        begin = np.searchsorted(alive, self.graph.begin)
        best = (ALIKE, -1, np.zeros(0))
        for weights in (prices, np.ones_like(prices), *np.eye(4)[:, None]):
            weights = np.broadcast_to(weights, prices.shape)[:, : duration.shape[1]]
            for s, own in enumerate(np.split(alive, begin[1:-1])):
                cost = duration[own] @ weights[s]
                best = max(best, (float(np.ptp(cost)), s, cost), key=lambda one: one[0])
            if best[1] >= 0:
                break
        _, s, cost = best
        if s < 0:
            return None
        short = np.ones(len(alive), np.bool_)
        short[begin[s] : begin[s + 1]] = cost <= (cost.max() + cost.min()) / 2
        long = ~short
        long[: begin[s]] = long[begin[s + 1] :] = True
        return alive[short], alive[long]


#: Prices that are asked about every stage, and entries of their tables at most, of 8 bytes each.
POOL, MOST_ENTRIES = 8, 50_000_000


#: Least part of the way to the target that a tree is built for.
LEAST_STEP = 1 / 256


#: Options of a tree at most, some 100 bytes each.
MAX_OPTIONS = 400_000


@dataclass
class Root(StageCount):
    """The chains of P stages."""

    #: Options of the chains.
    options: ChainOptions
    #: Prices of actions that gave the newest bounds, shape (Q, P, 4), as many as tables have room
    #: for; at first those of divisible work.
    prices: Floats
    #: Whether the bound says what they prove of all chains.
    asked: bool = False
    #: Part of the way from its bound to the target that the next tree is built for.
    step: float = 1.0

    def learn(self, prices: Floats) -> None:
        """Add prices, which have given a bound, shape (P, 4)."""
        entries = self.options.stages.lattice.size * sum(map(len, self.options.used))
        few = min(POOL, max(1, MOST_ENTRIES // entries))
        self.prices, self.asked = np.append(self.prices, prices[None], axis=0)[-few:], False


def root(options: ChainOptions, enough: float) -> Root:
    """Return the chains of P stages with their bound of divisible work, up to `enough` or above."""
    forward, compute = options.stages.ahead[:, -1].tolist()
    divided = divide(options.chain, forward, compute, enough=enough)
    return Root(options.chain, divided.bound * (1 - SLACK), options, divided.prices[None])


@dataclass(frozen=True, eq=False)
class Node:
    """Some options of a tree, for chains below a target."""

    tree: Tree
    target: float
    alive: Ints
    prices: Floats
    paths: Floats
    chains: Ints
    #: How many options there were when nets were asked about.
    asked: int


@dataclass
class BestFirst:
    """A best-first search over roots and nodes."""

    #: Function of no argument: the makespan below which a plan is asked for.
    aim: Callable[[], float]
    #: Function that is called with each chain met.
    met: Callable[[ChainOptions, MetChain], None]
    #: Function that is called with the least bound of all chains.
    raise_bound: Callable[[float], None]
    #: Least makespan, or bound, of the chains that are not divided further.
    closed: float = np.inf
    #: Whether no chain below the target, or below `closed`, is left.
    complete: bool = False
    #: Roots and nodes by their bounds, and a number that tells equal ones apart.
    heap: list[tuple[float, int, Root | Node]] = field(default_factory=list)
    number: count[int] = field(default_factory=count)

    def push(self, bound: float, item: Root | Node) -> None:
        """Add a root or a node, unless there is nothing below the target."""
        if bound < self.aim():
            heapq.heappush(self.heap, (bound, next(self.number), item))

    def step(self) -> bool:
        """Divide the chains with the least bound; return whether any are left."""
        least = self.heap[0][0] if self.heap else self.aim()
        self.raise_bound(min(least, self.closed, self.aim()))
        if least >= self.aim() or self.closed <= least:
            self.complete = True
            return False
        bound, _, item = heapq.heappop(self.heap)
        if isinstance(item, Root):
            self._grow(bound, item)
        else:
            self._divide(bound, item)
        return True

    def _grow(self, bound: float, root: Root) -> None:
        options, prices = root.options, root.prices
        least = options.least(prices)
        if not root.asked:
            root.asked = True
            root.bound = max(root.bound, float(least[0][:, 0, 0].max()) * (1 - SLACK))
            if root.bound > bound:
                self.push(root.bound, root)
                return
        target = bound + root.step * (self.aim() - bound)
        graph = options.graph(target, prices, least, MAX_OPTIONS)
        if graph is None:
            root.step /= 2
            if root.step < LEAST_STEP:
                self.closed = min(self.closed, bound)
                return
            self.push(bound, root)
            return
        if target < self.aim():
            self.push(target, root)
        if len(graph.source):
            none, every = np.zeros((0, root.size), np.int64), np.arange(len(graph.source))
            paths = prices[-1:]
            tree = Tree(options, graph, np.zeros((len(options.unpaid), root.size), np.bool_))
            node = Node(tree, target, every, paths[0], paths, none, len(every))
            if options.unpaid:
                first = node.tree.refine(every, paths, none, target, ROUNDS)
                node = self._pay(replace(
                    node, alive=first.alive, paths=first.paths, chains=first.chains
                ))  # fmt: skip
            root.learn(self._refine(bound, node).prices)

    def _pay(self, node: Node) -> Node:
        """Let options pay for nets that no chain below the target has pins of twice on a device.

        For each net and two stages of one device, the game over the options that have a pin in both
        shows whether such a chain is left.
        """
        options, target = node.tree.options, min(node.target, self.aim())
        tree = replace(node.tree, graph=node.tree.graph.part(node.alive))
        chains, every = np.searchsorted(node.alive, node.chains), np.arange(len(node.alive))
        graph, device = tree.graph, options.chain.order.device
        start, end = options.stages.start[graph.number], options.stages.end[graph.number]
        pairs = [(s, t) for s, t in combinations(range(len(device)), 2) if device[s] == device[t]]
        paid = tree.paid.copy()
        for n, (e, held) in enumerate(options.pins.items()):
            inside = held[end] - held[start]
            cut = (held[start] > 0) & (held[start] < held[-1])
            free = np.zeros(len(device), np.bool_)
            for s, t in pairs:
                if (free[s] or paid[n, s]) and (free[t] or paid[n, t]):
                    continue
                both = np.where((graph.layer == s) | (graph.layer == t), inside > 0, True)
                both &= cut | (graph.layer <= s) | (graph.layer > t)
                if not both.any():
                    continue
                if options.search.should_stop():
                    raise OutOfTime
                found = tree.refine(every[both], node.paths, chains, target, ROUNDS)
                if found.bound < target and len(found.alive):
                    free[[s, t]] = True
            now = ~free & ~paid[n]
            paid[n] |= now
            pays = (inside > 0) & (inside < held[-1]) & now[graph.layer]
            forward, backward = options.line.weight[graph.kind, :, e].T
            owed = np.stack((forward, backward, backward, np.zeros_like(forward)), axis=1)
            duration = graph.duration + pays[:, None] * owed[:, : graph.duration.shape[1]]
            graph = graph._replace(duration=duration)
            tree = replace(tree, graph=graph, paid=paid)
        return replace(node, tree=tree, alive=every, chains=chains, asked=len(every))

    def _divide(self, bound: float, node: Node) -> None:
        if node.tree.options.unpaid and SHRUNK * len(node.alive) <= node.asked:
            self._refine(bound, self._pay(node))
            return
        halves = node.tree.halves(node.alive, node.prices)
        if halves is None:
            self._close(node)
            return
        for half in halves:
            self._refine(bound, replace(node, alive=half))

    def _close(self, node: Node) -> None:
        """Close a node whose chains take equally long by their options."""
        tree = node.tree
        makespan = tree.refine(node.alive, node.paths, node.chains, np.inf, 1).makespan
        every: list[list[int]] = []
        if not tree.options.exact:
            every = list(islice(tree.graph.chains(node.alive), MOST_ALIKE + 1))
        if not 0 < len(every) <= MOST_ALIKE:
            self.closed = min(self.closed, makespan)
            return
        for chosen in every:
            self.met(tree.options, tree.chain(chosen, makespan))

    def _refine(self, bound: float, node: Node) -> Refined:
        """Bound a node, and push what is left of it."""
        target = min(node.target, self.aim())
        refined = node.tree.refine(node.alive, node.paths, node.chains, target, ROUNDS)
        if np.isfinite(refined.makespan):
            self.met(node.tree.options, node.tree.chain(refined.best, refined.makespan))
        if refined.bound < target and len(refined.alive):
            left = replace(
                node, target=target, alive=refined.alive, prices=refined.prices,
                paths=refined.paths, chains=refined.chains,
            )  # fmt: skip
            self.push(max(bound, refined.bound * (1 - SLACK)), left)
        return refined


def best_first(run: Run, roots: list[Root], raise_bound: Callable[[], None]) -> Iterator[None]:
    """Raise the bounds of all numbers of stages together, until plan and bound meet."""
    search = run.search
    longest = _longest(run.line)
    tried: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def met(options: ChainOptions, found: MetChain) -> None:
        if (chain := (found.stages, found.kinds)) not in tried:
            tried.add(chain)
            offer(run, options, found)

    def raise_all(bound: float) -> None:
        for root in roots:
            root.bound = max(root.bound, bound)
        raise_bound()

    gap = 1.0
    while search.next_gap < gap:  # a search is for chains below its aim: one for each half of a gap
        gap = max(search.next_gap, min(gap, search.gap) / 2)

        def aim(gap: float = gap) -> float:
            return min(run.aim(gap), longest)

        best = BestFirst(aim, met, raise_all)
        for root in roots:
            root.step = 1.0
            best.push(root.bound, root)
        while best.step():
            yield
        if search.best is None:
            for root in roots if best.closed == np.inf else ():
                root.bound = np.inf
            return


def offer(run: Run, options: ChainOptions, found: MetChain) -> None:
    """Offer a chain of options if it fits, unless equation 1 shows that it is no better."""
    stages, kinds = np.array(found.stages), np.array(found.kinds)
    if found.makespan < run.search.objective and options.fits(stages, kinds):
        ideals = np.append(options.stages.start[stages], run.lattice.size - 1)
        run.offer(ideals, found.kinds, found.makespan)


def _longest(line: Line) -> float:
    """Return a time in which any plan is through, if all its actions wait for each other."""
    finite = np.where(np.isfinite(line.compute), line.compute, 0.0)
    once = finite.max(axis=0).sum() + line.weight.max(axis=0).sum() * line.most_stages
    return float(once) * line.problem.batch * (1 + SLACK) + 1.0
