"""The search device by device, for one or two stages on each device of one kind: best first.

A *root* stands for the chains of a source: those of a number of stages (`singles`), or those that
pass a meeting ideal (`pairs`). It becomes a tree once its bound is the least of all. Where
the chains below the incumbent have too many options, the tree is that of the chains below a lower
target, and the root stays, with that target as its bound.

A node of a tree is a set of options of a graph. Prices bound it (`kernels.refine`) and rule options
out; then the options of one device are divided into those with a long and with a short time of one
stage.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from .....formulations.job.line import Line
from .....formulations.job.orders import Chain
from .....instances.common.arrays import Bools, Floats, Ints
from ..sized import SLACK, Run, Sized
from ..stage_list import StageList, list_stages
from .options import OptionGraph, Pairs, Singles
from .pair_graph import Meeting
from .refine_kernel import refine

#: Rounds of the first node of a graph, and of all others.
FIRST, ROUNDS = 60, 12


#: Spread of times below which options are not told apart.
ALIKE = 1e-12


class Refined(NamedTuple):
    """The outcome for a node."""

    #: Of its chains; `inf` for none.
    bound: float
    #: Numbers of the options that are left.
    alive: Ints
    #: Those that gave the bound.
    prices: Floats
    #: Of the best mixtures: paths, shape (R, P, 4), and options of chains, shape (C, D).
    paths: Floats
    chains: Ints
    #: Ideals at which the stages of the best chain met end, shape (P,).
    cuts: Ints
    #: Of that chain; `inf` for none.
    makespan: float


@dataclass(frozen=True, eq=False)
class Tree:
    """A graph to be searched."""

    #: The options, and the order of the stages.
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

        It begins with paths and chains as of `Refined`; one path at least, or a mixture of some.
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


#: Prices that are asked about every pair.
POOL = 4


#: Least part of the way to the target that a tree is built for.
LEAST_STEP = 1 / 256


#: Options of a tree at most, some 200 bytes each.
MAX_OPTIONS = 400_000


class ChainSource(Protocol):
    """Chains of P stages on devices of one kind."""

    @property
    def plans(self) -> Sized:
        """What is known of plans with P stages."""

    def tables(self, prices: Floats) -> Floats:
        """Return the least cost of what is left of a chain, at prices of shape (Q, P, 4)."""

    def least(self, tables: Floats) -> float:
        """Return the bound that the tables prove for every chain."""

    def graph(self, target: float, prices: Floats, tables: Floats, most: int) -> OptionGraph | None:
        """Return the options of chains below a target; None if there are more than `most`."""


@runtime_checkable
class Coarse(ChainSource, Protocol):
    """A source whose options are looser than what they stand for."""

    def finer(self, graph: OptionGraph, alive: Ints, target: float) -> OptionGraph | None:
        """Return the exact options that stand for some; None while they are too many."""


@dataclass
class Root:
    """The chains of a source."""

    #: The chains.
    source: ChainSource
    #: Prices, shape (P, 4) each, the newest last; shared by the roots of one number of stages.
    pool: list[Floats]
    #: Part of the way from its bound to the target that the next tree is built for.
    step: float = 1.0
    #: How many of the pool's prices have bounded its chains.
    asked: int = 0
    #: What they have proved.
    bound: float = -np.inf


@dataclass(frozen=True, eq=False)
class Node:
    """Some options of a tree, for chains below a target."""

    source: ChainSource
    tree: Tree
    target: float
    options: Ints
    prices: Floats
    paths: Floats
    chains: Ints
    #: Whether they are those of `Coarse.finer`.
    exact: bool = False


@dataclass
class BestFirst:
    """A best-first search over roots and nodes."""

    #: Returns the makespan below which a plan is asked for.
    aim: Callable[[], float]
    #: Takes the ideals that a chain passes behind the empty one, and its makespan.
    met: Callable[[Ints, float], None]
    #: Takes the least bound of all chains.
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
        while self.heap and self.heap[0][0] < self.heap[0][2].source.plans.bound:
            _, _, item = heapq.heappop(self.heap)  # another search has raised the bound
            self.push(item.source.plans.bound, item)
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
        source, fresh = root.source, root.pool[max(root.asked, len(root.pool) - POOL) :]
        root.asked = len(root.pool)
        if fresh:
            own = source.least(source.tables(np.array(fresh))) * (1 - SLACK)
            root.bound = max(root.bound, own)
            if root.bound > bound:
                self.push(root.bound, root)
                return
        target = bound + root.step * (self.aim() - bound)
        pool = np.array(root.pool[-POOL:])
        tables = source.tables(pool)
        graph = source.graph(target, pool, tables, MAX_OPTIONS)
        if graph is None:
            root.step /= 2
            if root.step < LEAST_STEP:
                self.closed = min(self.closed, bound)
                return
            self.push(bound, root)
            return
        if target < self.aim():
            self.push(target, root)
        node = self._whole(source, graph, target, pool[-1:], exact=False)
        if node is not None:
            root.pool.append(self._refine(bound, node, FIRST).prices)

    def _divide(self, bound: float, node: Node) -> None:
        if self._finer(bound, node):
            return
        halves = node.tree.halves(node.options, node.prices, node.chains)
        if halves is None:  # all chains that are left take equally long
            refined = node.tree.refine(node.options, node.paths, node.chains, np.inf, 1)
            self.closed = min(self.closed, refined.makespan)
            return
        for half in halves:
            self._refine(bound, replace(node, options=half), ROUNDS)

    def _finer(self, bound: float, node: Node) -> bool:
        """Put the exact options in the place of a node's, if it has others; return whether."""
        source = node.source
        if node.exact or not isinstance(source, Coarse):
            return False
        graph = source.finer(node.tree.graph, node.options, node.target)
        if graph is None:
            return False
        paths = np.array([*node.paths, *source.plans.mixed])
        finer = self._whole(source, graph, node.target, paths, exact=True)
        if finer is not None:
            refined = self._refine(bound, finer, FIRST)
            source.plans.pool.append(refined.prices)
            source.plans.mixed[:] = refined.paths
        return True

    def _whole(
        self, source: ChainSource, graph: OptionGraph, target: float, paths: Floats, *, exact: bool
    ) -> Node | None:
        """Return all options of a graph as a node, None if there are none."""
        if not len(graph.source):
            return None
        tree = Tree(graph, source.plans.paths.chain)
        none = np.zeros((0, len(graph.begin) - 1), np.int64)
        every = np.arange(len(graph.source))
        return Node(source, tree, target, every, paths[0], paths, none, exact)

    def _refine(self, bound: float, node: Node, rounds: int) -> Refined:
        """Bound a node, and push what is left of it."""
        target = min(node.target, self.aim())
        refined = node.tree.refine(node.options, node.paths, node.chains, target, rounds)
        if np.isfinite(refined.makespan):
            self.met(refined.cuts, refined.makespan)
        if refined.bound < target and len(refined.alive):
            left = replace(
                node, target=target, options=refined.alive, prices=refined.prices,
                paths=refined.paths, chains=refined.chains,
            )  # fmt: skip
            self.push(max(bound, refined.bound * (1 - SLACK)), left)
        return refined


def _at(alive: Ints, begin: Ints, d: int, short: Bools) -> tuple[Ints, Ints]:
    """Return the options with the short ones of device d alone, and with the others."""
    low = np.ones(len(alive), np.bool_)
    low[begin[d] : begin[d + 1]] = short
    high = np.ones(len(alive), np.bool_)
    high[begin[d] : begin[d + 1]] = ~short
    return alive[low], alive[high]


#: Ideals at most where devices hold two stages: pairs of them are counted.
IDEALS = 3_000


#: The next gap to be reached, in parts of the last, as much less is left below a lower target; and
#: below what the next one is the last.
STEP, LAST = 0.6, 1e-3


#: How many times as long as the last such step the next one takes: 2 to 5 where gaps last. A search
#: that does not end has raised the bound by next to nothing: so it must fit into `USABLE` of the
#: time left, or the step becomes smaller, down to a power of `STEP`.
GROWS, USABLE, LEAST = 4.0, 0.9, 0.2


def by_device(line: Line, numbers: list[Sized]) -> bool:
    """Whether all devices are of one kind, and hold a stage each, or stages d and D + d of 2D.

    With two stages on a device, without rules.
    """
    if len(line.kinds) > 1:
        return False
    if all(_alone(plans) for plans in numbers):
        return True
    problem = line.problem
    few = all(plans.paths.stages.lattice.size <= IDEALS for plans in numbers)
    return (
        few
        and problem.chunks_per_device == 2
        and not (problem.overlap or problem.order or line.rules)
    )


def chains_by_device(
    run: Run, numbers: list[Sized], raise_bound: Callable[[], None]
) -> Iterator[None]:
    """Raise the bounds of all numbers of stages together, until plan and bound meet."""
    search = run.search
    longest = _longest(run.line)

    def met(ideals: Ints, makespan: float) -> None:
        run.offer_ideals(np.append(0, ideals), (0,) * len(ideals), makespan)

    def raise_all(bound: float) -> None:
        for plans in numbers:
            plans.bound = max(plans.bound, bound)
        raise_bound()

    roots = [Root(source, source.plans.pool) for source in _sources(run, numbers)]
    gap, part = 1.0, STEP
    while search.next_gap < gap:  # a search is for chains below its aim: one for each gap
        begun = search.seconds
        gap = part * min(gap, search.gap)
        if gap < max(LAST, search.next_gap):
            gap = search.next_gap

        def aim(gap: float = gap) -> float:
            return min(run.aim(gap), longest)

        best = BestFirst(aim, met, raise_all)
        for root in roots:
            root.step = 1.0
            best.push(max(root.bound, root.source.plans.bound), root)
        while best.step():
            yield
        if search.best is None and best.closed == np.inf:
            for plans in numbers:
                plans.bound = np.inf
        part = next_step(search.seconds - begun, search.seconds_left)


def next_step(took: float, left: float) -> float:
    """Return the next gap to be reached, as a part of the last, which took so many seconds."""
    if took <= 0 or np.isinf(left):
        return STEP
    power = np.log(max(USABLE * left / took, 1.0)) / np.log(GROWS)
    return float(STEP ** np.clip(power, LEAST, 1.0))


def _sources(run: Run, numbers: list[Sized]) -> Iterator[ChainSource]:
    """Yield the chains of each number of stages that can be below the incumbent."""
    most_work = run.search.objective / run.line.problem.batch
    listed: StageList | None = None
    for plans in numbers:
        if plans.bound >= run.aim():
            continue
        if not plans.pool:
            plans.pool.append(plans.prices)
        if _alone(plans):
            yield Singles(plans)
            continue
        paid = plans.paths.stages
        if plans.size > 2:  # not all on one device
            listed = listed or list_stages(run.line, run.lattice, most_work, run.search)
            if listed is None:
                return
            paid = listed
        pairs = Pairs(plans.paths, paid)
        for meet in range(1, run.lattice.size - 1):
            yield Meeting(plans, meet, pairs)


def _alone(plans: Sized) -> bool:
    """Whether each stage has a device of its own."""
    order = plans.paths.chain.order
    return len(order.tables) == order.stages


def _longest(line: Line) -> float:
    """Return a time in which any plan is through, if all its actions wait for each other."""
    finite = np.where(np.isfinite(line.compute), line.compute, 0.0)
    once = finite.max(axis=0).sum() + line.weight.max(axis=0).sum() * line.most_stages
    return float(once) * line.problem.batch * (1 + SLACK) + 1.0
