"""The pairs of stages that the devices of chains below a target may have, as a graph.

First the stages that each device may have in each half, with the least that a path that stays on
the device costs with each; then the pairs of them (`pair_kernel`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from .graph import Graph
from .pair_kernel import list_pairs
from .pairs import Pairs


class Half(NamedTuple):
    """The stages of a half that each device may have, n of them, by device and start.

    Parameters
    ----------
    begin
        Shape (D, N + 1): where the stages of each device and start begin.
    end
        Shape (n,): ideals.
    time
        Shape (n, 2): forward and backward time, all nets paid for.
    path
        Shape (n, paths): the least that the half adds to the paths that stay on the device. In the
        second half the stages of a device and a start are sorted by the first of them.
    cost, left
        Shape (n, Q): at prices, and what the stages behind them in their half cost at least.
    bytes
        Shape (n, 2): all the time, and per microbatch in flight.
    spared
        Shape (n,): in the first half what sharing nets can take from the first path at most.
    """

    begin: Ints
    end: Ints
    time: Floats
    path: Floats
    cost: Floats
    left: Floats
    bytes: Floats
    spared: Floats


class Nets(NamedTuple):
    """The nets with pins on both sides of the meeting ideal.

    Parameters
    ----------
    first
        Shape (n + 1,): where those begin of which each row of the first half has a pin.
    net, whole
        Their numbers, and whether the row has all pins below the meeting ideal.
    above
        Shape (n', E): whether each row of the second half has all pins above it, 2; some, 1; or
        none, 0.
    weight
        Shape (2, E): what a device pays for it, by pass.
    """

    first: Ints
    net: Ints
    whole: Bools
    above: NDArray[np.uint8]
    weight: Floats


class Rows(NamedTuple):
    """Stages of a half by device, start and end, before their costs are known.

    Parameters
    ----------
    device, number
        Shape (n,): the device, and the number in `Pairs.stages`.
    path
        As of `Half`.
    """

    device: Ints
    number: Ints
    path: Floats

    def keep(self, which: Bools | Ints) -> Rows:
        """Return some of them."""
        return Rows(self.device[which], self.number[which], self.path[which])


def pair_graph(
    pairs: Pairs, meet: int, target: float, prices: Floats, allowed: Bools, most: int
) -> Graph | None:
    """Return the pairs of chains below a target; None if there are more than `most`.

    Parameters
    ----------
    meet
        The meeting ideal.
    prices
        Shape (Q, 2D, 4).
    allowed
        Shape (2D, R): which of `Pairs.stages` may be at each position.
    """
    size, ideals = pairs.devices, pairs.paid.lattice.size
    passes = np.stack([paths[:, [d, size + d]] for d, paths in enumerate(pairs.on_device)])
    below = _rows(pairs, 0, meet, allowed[:size])
    above = _rows(pairs, 1, meet, allowed[size:])
    spared = _nets(pairs, meet, below, above, passes)[1]
    least = [np.full(size, np.inf), np.full(size, np.inf)]
    np.minimum.at(least[0], below.device, below.path[:, 0] - spared)
    np.minimum.at(least[1], above.device, above.path[:, 0])
    below = below.keep(below.path[:, 0] - spared + least[1][below.device] < target)
    above = above.keep(above.path[:, 0] + least[0][above.device] < target)
    above = above.keep(
        np.lexsort((above.path[:, 0], pairs.stages.start[above.number], above.device))
    )
    nets, spared = _nets(pairs, meet, below, above, passes)
    first = _half(pairs, 0, meet, prices, below, spared)
    second = _half(pairs, 1, meet, prices, above, np.zeros(len(above.device)))
    every = int((np.ptp(first.begin, axis=1) * np.ptp(second.begin, axis=1)).sum())
    rows = np.empty((min(every, most), 5), np.int32)
    times = np.empty((len(rows), 2, 2))
    room = float(pairs.paths.line.room[0])
    filled = list_pairs(
        meet, target, ideals, (first, second), nets, passes, prices, (pairs.held, room),
        (rows, times),
    )  # fmt: skip
    if filled < 0:
        return None
    layer, source, sink, a, b = rows[:filled][::-1].T.copy()
    begin = np.searchsorted(layer, np.arange(size + 1))
    cuts = np.stack((first.end[a], second.end[b]), axis=1)
    return Graph(begin, layer, source, sink, times[:filled][::-1].copy(), cuts)


def _rows(pairs: Pairs, half: int, meet: int, allowed: Bools) -> Rows:
    """Return the stages of a half, with what stages around them add to the paths of a device."""
    stages, size, paths = pairs.stages, pairs.devices, pairs.on_device
    least = pairs.times(half, meet)
    device, number = np.nonzero(allowed)
    start, end = stages.start[number], stages.end[number]
    path = np.zeros((len(number), paths.shape[1]))
    ends = [np.full(pairs.paid.lattice.size, np.inf) for _ in range(2)]
    ends[0][meet if half else 0] = ends[1][-1 if half else meet] = 0.0
    before, after = {b"": ends[0]}, {b"": ends[1]}  # most paths pass most stages once each way
    begin = np.searchsorted(device, np.arange(size + 1))
    for d in range(size):
        own = slice(begin[d], begin[d + 1])
        for p, counts in enumerate(paths[d, :, half * size : (half + 1) * size]):
            for n in range(1, d + 1):
                if counts[:n].tobytes() not in before:
                    reached = before[counts[: n - 1].tobytes()]
                    before[counts[:n].tobytes()] = pairs.ahead(reached, counts[n - 1], least)
            for n in range(size - 1, d, -1):
                if counts[n:].tobytes() not in after:
                    reached = after[counts[n + 1 :].tobytes()]
                    after[counts[n:].tobytes()] = pairs.back(reached, counts[n], least)
            path[own, p] = stages.forward[0, number[own]] * counts[d, 0]
            path[own, p] += stages.backward[0, number[own]] * counts[d, 1]
            path[own, p] += before[counts[:d].tobytes()][start[own]]
            path[own, p] += after[counts[d + 1 :].tobytes()][end[own]]
    return Rows(device, number, path).keep(np.asarray(np.isfinite(path).all(axis=1)))


def _half(pairs: Pairs, half: int, meet: int, prices: Floats, rows: Rows, spared: Floats) -> Half:
    """Return the costs of some stages of a half."""
    stages, size, ideals = pairs.stages, pairs.devices, pairs.paid.lattice.size
    device, number, path = rows
    positions, last = slice(half * size, (half + 1) * size), ideals - 1 if half else meet
    time = np.stack((stages.forward[0, number], stages.backward[0, number]), axis=1)
    least, left = pairs.times(half, meet), np.zeros((len(number), len(prices)))
    for q, price in enumerate(prices):
        left[:, q] = pairs.behind(price[positions], least, last)[device + 1, stages.end[number]]
    cost = np.einsum("qnk,nk->nq", prices[:, half * size + device, :2], time)
    key = device * ideals + stages.start[number]
    begin = np.searchsorted(key, np.arange(size * ideals).reshape(size, ideals))
    begin = np.concatenate((begin, np.append(begin[1:, 0], len(key))[:, None]), axis=1)
    held = np.stack((stages.resident[number], stages.activation[number]), axis=1)
    return Half(begin, stages.end[number], time, path, cost, left, held, spared)


def _nets(pairs: Pairs, meet: int, below: Rows, above: Rows, passes: Floats) -> tuple[Nets, Floats]:
    """Return the nets that stages of both halves can share, and `Half.spared` of the first."""
    stages, (held, pins, weight) = pairs.stages, pairs.cut_by(meet)
    here = held[stages.end[below.number]] - held[stages.start[below.number]]
    there = held[stages.end[above.number]] - held[stages.start[above.number]]
    row, net = np.nonzero(here)
    whole = here[row, net] == held[meet][net]
    first = np.searchsorted(row, np.arange(len(below.number) + 1))
    every = (there > 0).astype(np.uint8) + (there == pins - held[meet])
    own = passes[below.device[row], 0]  # of each stage and pass
    worth = own[:, 1, 0] * weight[0, net] + own[:, 0, 1] * weight[1, net]
    worth += whole * (own[:, 0, 0] * weight[0, net] + own[:, 1, 1] * weight[1, net])
    spared = np.asarray(np.bincount(row, worth, len(below.number)), np.float64)
    return Nets(first, net, whole, every, weight), spared
