"""The pairs of stages that the devices of chains below a target may have, as a graph.

First the stages that each device may have in each half, with the least that a path that stays on
the device costs with each; then the pairs of them (`pair_kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .....instances.common.arrays import Bools, Floats, Ints
from ..sized import SLACK
from .options import OptionGraph, Pairs, Singles, StageRange
from .pair_kernel import list_pairs

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
    """

    #: The ideal that the first D stages end with, not the empty or the last one.
    meet: int
    #: What all meeting ideals have in common.
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


class Half(NamedTuple):
    """The stages of a half that each device may have, n of them, by device and start."""

    #: Shape (D, N + 1): where the stages of each device and start begin.
    begin: Ints
    #: Shape (n,): ideals.
    end: Ints
    #: Shape (n, 2): forward and backward time, all nets paid for.
    time: Floats
    #: Shape (n, paths): the least that the half adds to the paths that stay on the device. In the
    #: second half the stages of a device and a start are sorted by the first of them.
    path: Floats
    #: Shape (n, Q): at prices, and what the stages behind them in their half cost at least.
    cost: Floats
    left: Floats
    #: Shape (n, 2): all the time, and per microbatch in flight.
    bytes: Floats
    #: Shape (n,): in the first half what sharing nets can take from the first path at most.
    spared: Floats


class SharedNets(NamedTuple):
    """The nets with pins on both sides of the meeting ideal, I times in rows of the first half.

    Where no row of the second half on the same device has a pin of the net, it is left out.
    """

    #: Shape (n + 1,): where those begin of which each row of the first half has a pin.
    first: Ints
    #: Shape (I,): their numbers, and whether the row has all pins below the meeting ideal.
    net: Ints
    whole: Bools
    #: Shape (n', E): whether each row of the second half has all pins above it, 2; some, 1; or
    #: none, 0.
    above: NDArray[np.uint8]
    #: Shape (2, E): what a device pays for it, by pass.
    weight: Floats
    #: Shape (I, 2, paths + Q): what a pair saves on the paths that stay on its device, and at
    #: prices, where its second stage has some pins above the meeting ideal, and where all.
    saved: Floats


class Rows(NamedTuple):
    """Stages of a half by device, start and end, before their costs are known, n of them."""

    #: Shape (n,): the device, and the number in `Pairs.stages`.
    device: Ints
    number: Ints
    #: Shape (n,): ideals.
    start: Ints
    end: Ints
    #: Shape (2, n): how long they take at least.
    least: Floats
    #: As of `Half`.
    path: Floats

    def keep(self, which: Bools | Ints) -> Rows:
        """Return some of them."""
        return Rows(
            self.device[which], self.number[which], self.start[which], self.end[which],
            self.least[:, which], self.path[which],
        )  # fmt: skip


def pair_graph(
    pairs: Pairs, meet: int, target: float, prices: Floats, allowed: Bools, most: int
) -> OptionGraph | None:
    """Return the pairs of chains by `meet` below a target; None if there are more than `most`.

    `prices` has shape (Q, 2D, 4); `allowed`, shape (2D, R), says which of `Pairs.stages` may be at
    each position.
    """
    size = pairs.devices
    passes = np.stack([paths[:, [d, size + d]] for d, paths in enumerate(pairs.on_device)])
    below = _rows(pairs, 0, meet, allowed[:size])
    above = _rows(pairs, 1, meet, allowed[size:])
    spared = _spared(pairs, meet, below, passes)
    least = [np.full(size, np.inf), np.full(size, np.inf)]
    np.minimum.at(least[0], below.device, below.path[:, 0] - spared)
    np.minimum.at(least[1], above.device, above.path[:, 0])
    kept = below.path[:, 0] - spared + least[1][below.device] < target
    below, spared = below.keep(kept), spared[kept]
    above = above.keep(above.path[:, 0] + least[0][above.device] < target)
    first = _half(pairs, 0, meet, prices, below, spared)
    in_order = np.lexsort((above.path[:, 0], above.start, above.device))
    above = above.keep(in_order)
    second = _half(pairs, 1, meet, prices, above, np.zeros(len(above.device)))
    priced = prices[:, :, :2].reshape(-1, 2, size, 2).transpose(2, 0, 1, 3)
    nets = _nets(pairs, meet, below, above, np.concatenate((passes, priced), axis=1))
    every = int((np.ptp(first.begin, axis=1) * np.ptp(second.begin, axis=1)).sum())
    rows = np.empty((5, min(every, most)), np.int32)
    times = np.empty((rows.shape[1], 2, 2))
    room = float(pairs.paths.line.room[0])
    held = pairs.held, room, _tight(pairs, room, below, above)
    filled = list_pairs(meet, target, (first, second), nets, held, (rows, times))
    if filled < 0:
        return None
    layer, source, sink, a, b = rows[:, rows.shape[1] - filled :]
    begin = np.searchsorted(layer, np.arange(size + 1))
    cuts = np.stack((first.end[a], second.end[b]), axis=1)
    return OptionGraph(begin, layer, source, sink, times[len(times) - filled :], cuts)


def _rows(pairs: Pairs, half: int, meet: int, allowed: Bools) -> Rows:
    """Return the stages of a half, with what stages around them add to the paths of a device."""
    stages, size, paths = pairs.stages, pairs.devices, pairs.on_device
    device, number = np.nonzero(allowed)
    start, end = stages.start[number], stages.end[number]
    rows = Rows(
        device, number, start, end, pairs.times(half, meet, pairs.among[number]),
        np.zeros((len(number), paths.shape[1])),
    )  # fmt: skip
    ideals = pairs.paid.lattice.size
    ends = [np.full(ideals, np.inf) for _ in range(2)]
    ends[0][meet if half else 0] = ends[1][-1 if half else meet] = 0.0
    before, after = {b"": ends[0]}, {b"": ends[1]}  # most paths pass most stages once each way
    begin = np.searchsorted(device, np.arange(size + 1))
    for d in range(size):
        own = slice(begin[d], begin[d + 1])
        for p, counts in enumerate(paths[d, :, half * size : (half + 1) * size]):
            for n in range(1, d + 1):
                if counts[:n].tobytes() not in before:
                    reached = before[counts[: n - 1].tobytes()]
                    at = slice(begin[n - 1], begin[n])
                    cost = reached[start[at]] + counts[n - 1] @ rows.least[:, at]
                    before[counts[:n].tobytes()] = _least_by(end[at], cost, ideals)
            for n in range(size - 1, d, -1):
                if counts[n:].tobytes() not in after:
                    reached = after[counts[n + 1 :].tobytes()]
                    at = slice(begin[n], begin[n + 1])
                    cost = reached[end[at]] + counts[n] @ rows.least[:, at]
                    after[counts[n:].tobytes()] = _least_by(start[at], cost, ideals)
            path = rows.path[own, p]
            path += stages.forward[0, number[own]] * counts[d, 0]
            path += stages.backward[0, number[own]] * counts[d, 1]
            path += before[counts[:d].tobytes()][start[own]]
            path += after[counts[d + 1 :].tobytes()][end[own]]
    return rows.keep(np.asarray(np.isfinite(rows.path).all(axis=1)))


def _least_by(ideal: Ints, cost: Floats, size: int) -> Floats:
    """Return the least cost at each ideal, shape (N,)."""
    least = np.full(size, np.inf)
    np.minimum.at(least, ideal, cost)
    return least


def _half(pairs: Pairs, half: int, meet: int, prices: Floats, rows: Rows, spared: Floats) -> Half:
    """Return the costs of some stages of a half."""
    stages, size, ideals = pairs.stages, pairs.devices, pairs.paid.lattice.size
    device, number, start, end, least, path = rows
    time = np.stack((stages.forward[0, number], stages.backward[0, number]), axis=1)
    left = np.zeros((len(number), len(prices)))
    of_device = np.searchsorted(device, np.arange(size + 1))
    for q, price in enumerate(prices):
        reached = np.full(ideals, np.inf)
        reached[-1 if half else meet] = 0.0
        for d in range(size - 1, -1, -1):
            own = slice(of_device[d], of_device[d + 1])
            left[own, q] = reached[end[own]]
            cost = left[own, q] + price[half * size + d, :2] @ least[:, own]
            reached = _least_by(start[own], cost, ideals)
    cost = np.einsum("qnk,nk->nq", prices[:, half * size + device, :2], time)
    key = device * ideals + start
    begin = np.searchsorted(key, np.arange(size * ideals).reshape(size, ideals))
    begin = np.concatenate((begin, np.append(begin[1:, 0], len(key))[:, None]), axis=1)
    held = np.stack((stages.resident[number], stages.activation[number]), axis=1)
    return Half(begin, end, time, path, cost, left, held, spared)


def _spared(pairs: Pairs, meet: int, below: Rows, passes: Floats) -> Floats:
    """Return `Half.spared` of the first half.

    `passes`, shape (D, paths, 2, 2), are those of both stages of a device on paths that stay there.
    """
    held, _, weight = pairs.cut_by(meet)
    here = held[below.end] - held[below.start]
    own = passes[below.device, 0]
    some, every = (here > 0) @ weight.T, (here == held[meet]) @ weight.T
    return np.asarray(
        own[:, 1, 0] * some[:, 0] + own[:, 0, 1] * some[:, 1]
        + own[:, 0, 0] * every[:, 0] + own[:, 1, 1] * every[:, 1]
    )  # fmt: skip


def _nets(pairs: Pairs, meet: int, below: Rows, above: Rows, counts: Floats) -> SharedNets:
    """Return the nets that stages of both halves can share.

    `counts`, shape (D, paths + Q, 2, 2), says how much the passes of both stages of a device count.
    """
    held, pins, weight = pairs.cut_by(meet)
    here, there = held[below.end] - held[below.start], held[above.end] - held[above.start]
    usable = np.zeros((pairs.devices, len(pins)), np.bool_)
    for d, own in enumerate(np.split(there, np.searchsorted(above.device, range(1, len(usable))))):
        usable[d] = own.any(axis=0)
    row, net = np.nonzero((here > 0) & usable[below.device])
    whole = here[row, net] == held[meet][net]
    first = np.searchsorted(row, np.arange(len(below.number) + 1))
    every = (there > 0).astype(np.uint8) + (there == pins - held[meet])
    passes = counts[below.device[row]]
    forward, backward = weight[:, net, None]
    some = passes[:, :, 1, 0] * forward + passes[:, :, 0, 1] * backward
    more = passes[:, :, 0, 0] * forward + passes[:, :, 1, 1] * backward
    saved = np.stack((some, some + whole[:, None] * more), axis=1)
    return SharedNets(first, np.ascontiguousarray(net), whole, every, weight, saved)


def _tight(pairs: Pairs, room: float, below: Rows, above: Rows) -> Bools:
    """Return on which devices some pairs may have no room, shape (D,)."""
    stages, held = pairs.stages, pairs.held
    most = np.zeros((pairs.devices, 2, 2))
    for half, rows in enumerate((below, above)):
        np.maximum.at(most[:, half, 0], rows.device, stages.resident[rows.number])
        np.maximum.at(most[:, half, 1], rows.device, stages.activation[rows.number])
    peak = most[:, :, 0].sum(axis=1) + (held @ most[:, :, 1:])[..., 0].max(axis=1)
    return np.asarray(peak * (1 + SLACK) > room)
