"""The options that a chain of P stages has at each place: a graph whose paths are the chains.

It has a layer for each stage. A state before stage s is an ideal, and how many of the stages before
it each kind of device holds. An *option* of stage s, a stage of the list on a kind of device, leads
from a state to one of the next layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....formulations.job.iteration_bounds import per_pass, staying
from ....formulations.job.line import Line
from ....formulations.job.orders import Chain
from ....instances.common.arrays import Floats, Ints
from ...core.search import Clock
from .chains import SLACK, Used
from .stage_list import StageList, keep_pins, keeps


class OutOfTime(Exception):
    """Exception within a long computation: the search must stop."""


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

    #: The statement, and the stages that plans may have, by the ideal that they begin with.
    line: Line
    stages: StageList
    #: The order of P stages.
    chain: Chain
    #: Clock that says when to stop.
    search: Clock
    #: Nets that no stage in the list pays for, as stages on one device may have all their pins.
    unpaid: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether chains take what their options say, and all of them can be plans."""
        order = self.chain.order
        return (
            len(order.tables) == order.stages and self.line.exact and not self.line.problem.overlap
        )

    @cached_property
    def pins(self) -> dict[int, Ints]:
        """Numbers of pins of each net of `unpaid` in each ideal, shape (N,)."""
        has, pins = self.stages.lattice.has, self.line.graph.pins
        return {e: np.sum([has(unit) for unit in pins[e]], axis=0) for e in self.unpaid}

    @cached_property
    def used(self) -> list[dict[Used, int]]:
        """How many stages each kind may hold of the first 0 … P, numbered."""
        count = self.line.count * self.line.problem.chunks_per_device
        layers: list[dict[Used, int]] = [{(0,) * len(count): 0}]
        for _ in range(self.chain.order.stages):
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

    def least(self, prices: Floats) -> list[Floats]:
        """Return the least cost of stages s, … P − 1 at prices, shape (Q, P, 4).

        It is that from each of `used` and each ideal on, shape (Q, used, N), for s = 0 … P. That of
        all stages from the empty ideal bounds the makespan of every chain, as prices are a mixture
        of paths.
        """
        stages, size = self.stages, self.stages.lattice.size
        least = [np.full((len(prices), len(used), size), np.inf) for used in self.used]
        least[-1][:, :, -1] = 0.0
        starts, at = np.unique(stages.start, return_index=True)
        durations = self._durations()
        for s in range(len(self.used) - 2, -1, -1) if len(at) else ():
            for before, behind, k in self.steps(s):
                cost = _priced(prices[:, s], durations[k])
                cost += least[s + 1][:, behind][:, stages.end]
                own = least[s][:, before]
                own[:, starts] = np.minimum(own[:, starts], np.minimum.reduceat(cost, at, axis=1))
        return least

    def graph(
        self, target: float, prices: Floats, least: list[Floats], most: int
    ) -> OptionGraph | None:
        """Return the options of chains below a target; None if there are more than `most`.

        `least` is what `ChainOptions.least` says of the prices, shape (Q, P, 4).
        """
        start, end, size = self.stages.start, self.stages.end, self.stages.lattice.size
        durations, kinds = self._durations(), range(len(self.line.kinds))
        bounds = [[self.least_makespan(s, k) for k in kinds] for s in range(len(self.used) - 1)]
        spent = np.full((len(prices), 1, size), np.inf)
        spent[:, :, 0] = 0.0
        layers: list[tuple[NDArray[np.generic], ...]] = []
        reached, total = np.zeros(1, np.int64), 0
        for s in range(len(self.used) - 1):
            following = np.full((len(prices), len(self.used[s + 1]), size), np.inf)
            found = []
            for before, behind, k in self.steps(s):
                cost = _priced(prices[:, s], durations[k])
                bound = bounds[s][k]
                for q, own in enumerate(cost):
                    through = spent[q, before, start] + own + least[s + 1][q, behind, end]
                    bound = np.maximum(bound, through)
                kept = np.flatnonzero(bound * (1 - SLACK) < target)
                total += len(kept)
                if total > most:
                    return None
                for q, table in enumerate(following):
                    own = spent[q, before, start[kept]] + cost[q, kept]
                    np.minimum.at(table[behind], end[kept], own)
                found.append((
                    before * size + start[kept], behind * size + end[kept],
                    durations[k][:, kept].T, kept, np.full(len(kept), k),
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

    def fits(self, numbers: Ints, kinds: Ints) -> bool:
        """Whether devices have room for their stages (equation 2), and these keep the rules."""
        stages, order = self.stages, self.chain.order
        rules, end = self.line.rules, stages.end[numbers]
        if rules and not keeps(rules, stages.lattice, order.device, end):
            return False
        for d, vectors in enumerate(order.in_flight):
            own = order.device == d
            number = numbers[own]
            peak = stages.resident[number].sum() + (vectors @ stages.activation[number]).max()
            if peak > self.line.room[kinds[own]].min():
                return False
        return True

    def _durations(self) -> list[Floats]:
        """Return the durations of the actions of stages by kind, shape (A, R)."""
        if self.search.should_stop():
            raise OutOfTime
        stages, actions = self.stages, 4 if self.chain.order.splits else 2
        times = zip(stages.forward, stages.backward, stages.compute, strict=True)
        return [self.chain.durations(*own).T[:actions] for own in times]

    def least_makespan(self, s: int, kind: int) -> Floats:
        """Return a bound of the plans that have, as stage s, each stage of the list, shape (R,).

        Equation 1 for a path that stays on stage s: the work before and behind it is at least where
        the path passes least often. `inf` where the stage does not fit into memory.
        """
        stages, order = self.stages, self.chain.order
        every = stages.ahead[:, -1]
        path = staying(self.chain, s, *every.tolist())
        passes = np.stack(per_pass(path, self.chain.share))
        ahead = passes[:, :s].min(axis=1, initial=order.microbatches)
        back = passes[:, s + 1 :].min(axis=1, initial=order.microbatches)
        bound = _priced(path[None, s], self._durations()[kind])[0]
        bound += ahead @ stages.ahead[:, stages.start]
        bound += back @ (every[:, None] - stages.ahead)[:, stages.end]
        bound = np.maximum(bound, order.microbatches * stages.engine[kind])
        d = int(order.device[s])
        place = int(np.searchsorted(np.flatnonzero(order.device == d), s))
        held = order.in_flight[d][:, place].max() * stages.activation
        fits = stages.resident + held <= self.line.room[kind]
        if self.line.rules.pins:
            ideals = stages.start, stages.end
            fits &= keep_pins(self.line.rules, stages.lattice, order.stages, s, *ideals)
        return np.where(fits, bound, np.inf)


def _one_more(used: Used, kind: int) -> Used:
    return (*used[:kind], used[kind] + 1, *used[kind + 1 :])


def _priced(prices: Floats, duration: Floats) -> Floats:
    """Return the cost of stages at prices, shape (Q, R); `inf` for what a kind cannot run."""
    able = np.isfinite(duration)
    cost: Floats = prices[:, : len(duration)] @ np.where(able, duration, 0.0)
    cost[:, ~able.all(axis=0)] = np.inf
    return cost
