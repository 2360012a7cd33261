"""Best first over the chains of P stages, for all P that the schedule allows.

The chains of P stages are the paths of a graph with a layer for each stage. A state before stage s
is an ideal, and how many of the stages before it each kind of device holds. An *option* of stage s,
a stage of the list on a kind of device, leads from a state to one of the next layer. It is left out
where paths that stay on it show that no chain below the target has it (`stage_list`), where the
cheapest stages before and behind it do at given prices, or where it does not fit into memory.
Stages on one device exchange data for nothing, so an option pays for a net only once no chain below
the target has pins of it in two stages of a device: that is asked for each net and two stages.

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
from numpy.typing import NDArray

from ....formulations.job.iteration_bounds import divide
from ....formulations.job.line import Line
from ....instances.common.arrays import Bools, Floats, Ints
from .chains import SLACK, TIME, MetChain, Run, StageCount, Used
from .refine_kernel import refine
from .stage_list import OutOfTime, StagePaths

#: Rounds of the first node of a graph, and of all others.
FIRST, ROUNDS = 60, 12


#: Spread of times below which options are not told apart.
ALIKE = 1e-12


#: Factor by which options of a node must become fewer before `_pay` is called on them again.
SHRUNK = 4


#: Chains of a node that are judged one by one at most.
MOST_ALIKE = 1_000


class OptionGraph(NamedTuple):
    """Graph of T options for P stages; its paths are chains."""

    #: Shape (P + 1,): where the options of each stage begin.
    begin: Ints
    #: Shape (T,): stage of each option.
    layer: NDArray[np.int32]
    #: Shape (T,): number of the state before and behind, each numbered in its layer from 0; the
    #: first and the last layer have state 0 alone.
    source: NDArray[np.int32]
    sink: NDArray[np.int32]
    #: Shape (T, A): durations of the actions; A is 2 where backward passes are whole.
    duration: Floats
    #: Shape (T,): number in the list of stages, and kind of device.
    number: Ints
    kind: Ints

    def part(self, options: Ints) -> OptionGraph:
        """Return the graph of some options, which are numbered anew."""
        return OptionGraph(
            np.searchsorted(options, self.begin), self.layer[options],
            self.source[options], self.sink[options], self.duration[options],
            self.number[options], self.kind[options],
        )  # fmt: skip

    def chains(self, options: Ints, layer: int = 0, state: int = 0) -> Iterator[list[int]]:
        """Yield every chain of some options."""
        if layer == len(self.begin) - 1:
            yield []
            return
        here = (self.layer[options] == layer) & (self.source[options] == state)
        for option in options[here].tolist():
            for rest in self.chains(options, layer + 1, int(self.sink[option])):
                yield [option, *rest]


@dataclass(frozen=True, eq=False)
class ChainOptions:
    """The options of all chains of P stages."""

    #: Bounds by path of chains of P stages.
    paths: StagePaths

    @property
    def exact(self) -> bool:
        """Whether chains take what their options say, and all of them can be plans."""
        order, line = self.paths.chain.order, self.paths.line
        return len(order.tables) == order.stages and line.exact and not line.problem.overlap

    @cached_property
    def used(self) -> list[dict[Used, int]]:
        """How many stages each kind may hold of the first 0 … P, numbered."""
        count = self.paths.line.count * self.paths.line.problem.chunks_per_device
        layers: list[dict[Used, int]] = [{(0,) * len(count): 0}]
        for _ in range(self.paths.chain.order.stages):
            following: dict[Used, int] = {}
            for used in layers[-1]:
                for k in np.flatnonzero(np.array(used) < count).tolist():
                    following.setdefault(_one_more(used, k), len(following))
            layers.append(following)
        return layers

    def steps(self, s: int) -> Iterator[tuple[int, int, int]]:
        """Yield numbers of `used` before and behind stage s, and the kind that it is on."""
        for used, before in self.used[s].items():
            for k in range(len(used)):
                if (behind := self.used[s + 1].get(_one_more(used, k))) is not None:
                    yield before, behind, k

    def _durations(self) -> list[Floats]:
        """Return the durations of the actions of stages by kind, (A, R), ordered by start."""
        actions = 4 if self.paths.chain.order.splits else 2
        kinds = range(len(self.paths.line.kinds))
        return [self.paths.durations(k)[:actions, self.paths.by_start] for k in kinds]

    def tables(self, prices: Floats) -> list[Floats]:
        """Return the least cost of stages s, … P − 1 at prices, shape (Q, P, 4).

        It is that from each of `used` and each ideal on, shape (Q, used, N), for s = 0 … P.
        """
        stages, order = self.paths.stages, self.paths.by_start
        size, end = stages.lattice.size, stages.end[order]
        least = [np.full((len(prices), len(used), size), np.inf) for used in self.used]
        least[-1][:, :, -1] = 0.0
        starts, at = np.unique(stages.start[order], return_index=True)
        durations = self._durations()
        for s in range(len(self.used) - 2, -1, -1) if len(at) else ():
            for before, behind, k in self.steps(s):
                cost = least[s + 1][:, behind][:, end] + _priced(prices[:, s], durations[k])
                own = least[s][:, before]
                own[:, starts] = np.minimum(own[:, starts], np.minimum.reduceat(cost, at, axis=1))
        return least

    def least(self, tables: list[Floats]) -> float:
        """Return the bound of every chain that the tables prove, the best of the prices'."""
        return float(tables[0][:, 0, 0].max())

    def _bounds(self) -> list[list[Floats]]:
        """Return bounds of plans with a stage at a place on a kind, (R,) each, ordered by start."""
        size = self.paths.chain.order.stages
        time = np.broadcast_to(TIME, (1, size, 4))
        work = self.least(self.tables(time)) * (1 - SLACK)
        kinds = range(len(self.paths.line.kinds))
        return [
            [self.paths.least_makespan(s, k, work)[self.paths.by_start] for k in kinds]
            for s in range(size)
        ]

    def graph(
        self, target: float, prices: Floats, tables: list[Floats], most: int
    ) -> OptionGraph | None:
        """Return the options of chains below a target; None if there are more than `most`."""
        stages, order = self.paths.stages, self.paths.by_start
        size, start, end = stages.lattice.size, stages.start[order], stages.end[order]
        durations, bounds = self._durations(), self._bounds()
        spent = np.full((len(prices), 1, size), np.inf)
        spent[:, :, 0] = 0.0
        layers: list[tuple[NDArray[np.generic], ...]] = []
        reached, total = np.zeros(1, np.int64), 0
        for s in range(len(self.used) - 1):
            following = np.full((len(prices), len(self.used[s + 1]), size), np.inf)
            found = []
            for before, behind, k in self.steps(s):
                cost = _priced(prices[:, s], durations[k])
                bound = spent[:, before][:, start] + cost + tables[s + 1][:, behind][:, end]
                below = bound.max(axis=0) * (1 - SLACK) < target
                kept = np.flatnonzero(below & (bounds[s][k] < target))
                total += len(kept)
                if total > most:
                    return None
                for q, table in enumerate(following):
                    own = spent[q, before, start[kept]] + cost[q, kept]
                    np.minimum.at(table[behind], end[kept], own)
                found.append((
                    before * size + start[kept], behind * size + end[kept],
                    durations[k][:, kept].T, order[kept], np.full(len(kept), k),
                ))  # fmt: skip
            source, sink, duration, number, kind = map(np.concatenate, zip(*found, strict=True))
            if s == len(self.used) - 2:  # with whatever devices
                sink = np.zeros_like(sink)
            source, reached = np.searchsorted(reached, source), np.unique(sink)
            layer, sink = np.full(len(source), s), np.searchsorted(reached, sink)
            places = (one.astype(np.int32) for one in (layer, source, sink))
            layers.append((*places, duration, number, kind))
            spent = following
        begin = np.cumsum([0, *(len(one[0]) for one in layers)])
        return OptionGraph(begin, *map(np.concatenate, zip(*layers, strict=True)))


def _one_more(used: Used, kind: int) -> Used:
    return (*used[:kind], used[kind] + 1, *used[kind + 1 :])


def _priced(prices: Floats, duration: Floats) -> Floats:
    """Return the cost of stages at prices, shape (Q, R); `inf` for what a kind cannot run."""
    able = np.isfinite(duration)
    cost = prices[:, : len(duration)] @ np.where(able, duration, 0.0)
    cost[:, ~able.all(axis=0)] = np.inf
    return cost


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
    #: Shape (nets, P): whether options pay for a net of `StagePaths.unpaid` all the same.
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
            self.graph, alive, self.options.paths.chain.actions, target, rounds, self.states, pool,
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

    def halves(self, alive: Ints, prices: Floats, chains: Ints) -> tuple[Ints, Ints] | None:
        """Divide options by the time of one stage; None if all chains take equally long.

        It is the stage whose cost at the prices varies most over the chains of the best mixture,
        or, if they are alike, over the options.
        """
        duration = self.graph.duration
        actions = duration.shape[1]
        begin = np.searchsorted(alive, self.graph.begin)
        if len(chains) > 1:
            split = (duration[chains] * prices[:, :actions]).sum(axis=-1)
            spread = split.std(axis=0)
            s = int(spread.argmax())
            cost = duration[alive[begin[s] : begin[s + 1]]] @ prices[s, :actions]
            middle = split[:, s].mean()
            if spread[s] > ALIKE and cost.min() <= middle < cost.max():
                return _at(alive, begin, s, cost <= middle)
        best = (ALIKE, -1, np.zeros(0))
        for weights in (prices, np.ones_like(prices), *np.eye(4)[:, None]):
            weights = np.broadcast_to(weights, prices.shape)[:, :actions]
            for s, own in enumerate(np.split(alive, begin[1:-1])):
                cost = duration[own] @ weights[s]
                best = max(best, (float(np.ptp(cost)), s, cost), key=lambda one: one[0])
            if best[1] >= 0:
                break
        _, s, cost = best
        return None if s < 0 else _at(alive, begin, s, cost <= (cost.max() + cost.min()) / 2)


#: Prices that are asked about every stage, and entries of their tables at most, of 8 bytes each.
POOL, MOST_ENTRIES = 4, 50_000_000


#: Least part of the way to the target that a tree is built for.
LEAST_STEP = 1 / 256


#: Options of a tree at most, some 100 bytes each.
MAX_OPTIONS = 400_000


@dataclass
class Root(StageCount):
    """The chains of P stages."""

    #: Bounds by stage.
    paths: StagePaths
    #: Prices of actions that gave bounds, shape (P, 4) each, the newest last; at first those of
    #: divisible work.
    pool: list[Floats]
    #: Part of the way from its bound to the target that the next tree is built for.
    step: float = 1.0
    #: How many of the prices in the pool have bounded its chains.
    asked: int = 0

    @cached_property
    def options(self) -> ChainOptions:
        """Options of the chains."""
        return ChainOptions(self.paths)

    def newest(self, since: int = 0) -> Floats:
        """Return the newest prices behind so many of the pool, of which tables have room."""
        entries = self.paths.stages.lattice.size * sum(map(len, self.options.used))
        few = min(POOL, max(1, MOST_ENTRIES // entries))
        return np.array(self.pool[max(since, len(self.pool) - few) :])


def root(paths: StagePaths, enough: float) -> Root:
    """Return the chains of P stages with their bound of divisible work, up to `enough` or above."""
    forward, compute = paths.stages.ahead[:, -1].tolist()
    divided = divide(paths.chain, forward, compute, enough=enough)
    return Root(paths.chain, divided.bound * (1 - SLACK), paths, [divided.prices])


@dataclass(frozen=True, eq=False)
class Node:
    """Some options of a tree, for chains below a target."""

    root: Root
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
    met: Callable[[StagePaths, MetChain], None]
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
        options, fresh = root.options, root.newest(root.asked)
        root.asked = len(root.pool)
        if len(fresh):
            own = options.least(options.tables(fresh)) * (1 - SLACK)
            root.bound = max(root.bound, own)
            if root.bound > bound:
                self.push(root.bound, root)
                return
        target = bound + root.step * (self.aim() - bound)
        prices = root.newest()
        graph = options.graph(target, prices, options.tables(prices), MAX_OPTIONS)
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
            tree = Tree(options, graph, np.zeros((len(root.paths.unpaid), root.size), np.bool_))
            node = Node(root, tree, target, every, paths[0], paths, none, len(every))
            if root.paths.unpaid:
                first = node.tree.refine(every, paths, none, target, FIRST)
                node = self._pay(replace(
                    node, alive=first.alive, paths=first.paths, chains=first.chains
                ))  # fmt: skip
            root.pool.append(self._refine(bound, node, FIRST).prices)

    def _pay(self, node: Node) -> Node:
        """Let options pay for nets that no chain below the target has pins of twice on a device.

        For each net and two stages of one device, the game over the options that have a pin in both
        shows whether such a chain is left.
        """
        paths, target = node.root.paths, min(node.target, self.aim())
        tree = replace(node.tree, graph=node.tree.graph.part(node.alive))
        chains, every = np.searchsorted(node.alive, node.chains), np.arange(len(node.alive))
        graph, device = tree.graph, paths.chain.order.device
        start, end = paths.stages.start[graph.number], paths.stages.end[graph.number]
        pairs = [(s, t) for s, t in combinations(range(len(device)), 2) if device[s] == device[t]]
        paid = tree.paid.copy()
        for n, (e, held) in enumerate(paths.pins.items()):
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
                if paths.search.should_stop():
                    raise OutOfTime
                found = tree.refine(every[both], node.paths, chains, target, ROUNDS)
                if found.bound < target and len(found.alive):
                    free[[s, t]] = True
            now = ~free & ~paid[n]
            paid[n] |= now
            pays = (inside > 0) & (inside < held[-1]) & now[graph.layer]
            forward, backward = paths.line.weight[graph.kind, :, e].T
            owed = np.stack((forward, backward, backward, np.zeros_like(forward)), axis=1)
            duration = graph.duration + pays[:, None] * owed[:, : graph.duration.shape[1]]
            graph = graph._replace(duration=duration)
            tree = replace(tree, graph=graph, paid=paid)
        return replace(node, tree=tree, alive=every, chains=chains, asked=len(every))

    def _divide(self, bound: float, node: Node) -> None:
        if node.root.paths.unpaid and SHRUNK * len(node.alive) <= node.asked:
            self._refine(bound, self._pay(node), ROUNDS)
            return
        halves = node.tree.halves(node.alive, node.prices, node.chains)
        if halves is None:
            self._close(node)
            return
        for half in halves:
            self._refine(bound, replace(node, alive=half), ROUNDS)

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
            self.met(node.root.paths, tree.chain(chosen, makespan))

    def _refine(self, bound: float, node: Node, rounds: int) -> Refined:
        """Bound a node, and push what is left of it."""
        target = min(node.target, self.aim())
        refined = node.tree.refine(node.alive, node.paths, node.chains, target, rounds)
        if np.isfinite(refined.makespan):
            self.met(node.root.paths, node.tree.chain(refined.best, refined.makespan))
        if refined.bound < target and len(refined.alive):
            left = replace(
                node, target=target, alive=refined.alive, prices=refined.prices,
                paths=refined.paths, chains=refined.chains,
            )  # fmt: skip
            self.push(max(bound, refined.bound * (1 - SLACK)), left)
        return refined


def _at(alive: Ints, begin: Ints, s: int, short: Bools) -> tuple[Ints, Ints]:
    """Return the options with the short ones of stage s alone, and with the others."""
    low = np.ones(len(alive), np.bool_)
    low[begin[s] : begin[s + 1]] = short
    high = np.ones(len(alive), np.bool_)
    high[begin[s] : begin[s + 1]] = ~short
    return alive[low], alive[high]


def best_first(run: Run, roots: list[Root], raise_bound: Callable[[], None]) -> Iterator[None]:
    """Raise the bounds of all numbers of stages together, until plan and bound meet."""
    search = run.search
    longest = _longest(run.line)
    tried: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def met(paths: StagePaths, found: MetChain) -> None:
        if (chain := (found.stages, found.kinds)) not in tried:
            tried.add(chain)
            run.offer(paths, found)

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


def _longest(line: Line) -> float:
    """Return a time in which any plan is through, if all its actions wait for each other."""
    finite = np.where(np.isfinite(line.compute), line.compute, 0.0)
    once = finite.max(axis=0).sum() + line.weight.max(axis=0).sum() * line.most_stages
    return float(once) * line.problem.batch * (1 + SLACK) + 1.0
