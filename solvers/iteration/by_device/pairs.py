"""Devices that hold two stages: the pairs of stages that a chain below a target may have.

For a chain of 2D stages that passes the ideals I_0 = ∅, …, I_D = J_0, …, J_D = V, device d holds
I_{d+1} ∖ I_d and J_{d+1} ∖ J_d. With J_0, the *meeting ideal*, given, a state is (I_d, J_d), and a
pair is an option of device d (`graph`). Data that both stages use is paid for once, so that the
times are those of the definition.

A pair is left out if paths that stay on its device show that no chain below the target has it; if,
at given prices, the cheapest stages before and behind it do; or if it does not fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....formulations.iteration.line import most_between
from ....instances.common.arrays import Bools, Floats, Ints
from ..bounds.stage_paths import HEAVY, LIGHT, StagePaths
from ..stage_list import StageList, bits
from .graph import Graph
from .pair_kernel import list_pairs


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


class Shared(NamedTuple):
    """Nets that two stages of a device can share.

    Parameters
    ----------
    held
        Shape (N, E): pins in each ideal.
    pins
        Shape (E,): pins of each net.
    weight
        Shape (2, E): what a device pays for it, by pass.
    """

    held: Ints
    pins: Ints
    weight: Floats


@dataclass(frozen=True, eq=False)
class Pairs:
    """What the graphs of all meeting ideals have in common, for D devices of one kind.

    Parameters
    ----------
    paths
        Of the 2D stages. Its list has lower bounds of the times, as parts of any chain.
    paid
        The same stages, with all nets paid for.
    """

    paths: StagePaths
    paid: StageList

    @property
    def devices(self) -> int:
        """D."""
        return self.paths.chain.order.stages // 2

    @cached_property
    def stages(self) -> StageList:
        """The stages by their start, all nets paid for."""
        return self.paid.keep(np.lexsort((self.paid.end, self.paid.start)))

    @cached_property
    def shared(self) -> Shared:
        """The nets that may have pins in both stages of a device."""
        line, lattice = self.paths.line, self.paid.lattice
        far = np.zeros(len(line.graph.pins), np.bool_)
        if not line.problem.relayed and self.devices > 1:
            far = most_between(line.graph) >= self.devices - 1
        which = np.flatnonzero(far & (line.weight[0] > 0).any(axis=0))
        inside = bits(lattice)[:, np.argsort(lattice.order)]
        held = [inside[:, list(line.graph.pins[e])].sum(axis=1) for e in which]
        return Shared(
            np.array(held, np.int64).reshape(len(which), lattice.size).T.copy(),
            np.array([len(line.graph.pins[e]) for e in which], np.int64),
            line.weight[0][:, which].copy(),
        )

    def _cut(self, meet: int) -> Shared:
        """Return the nets with pins on both sides of the meeting ideal: no others are shared."""
        held, pins, weight = self.shared
        cut = (held[meet] > 0) & (held[meet] < pins)
        return Shared(held[:, cut].copy(), pins[cut], weight[:, cut].copy())

    @cached_property
    def pins(self) -> NDArray[np.int16]:
        """How many pins of each of the `shared` nets the stages of `paths` have, shape (E, R)."""
        stages, held = self.paths.stages, self.shared.held.T.astype(np.int16)
        return held[:, stages.end] - held[:, stages.start]

    @cached_property
    def least_times(self) -> Floats:
        """The forward and backward times of `paths`, shape (2, R); 0 for what cannot run."""
        stages = self.paths.stages
        times = np.stack((stages.forward[0], stages.backward[0]))
        return np.where(np.isfinite(times), times, 0.0)

    @cached_property
    def by_start(self) -> Ints:
        """The stages of `paths` by their start."""
        return np.argsort(self.paths.stages.start, kind="stable")

    @cached_property
    def alone(self) -> list[Floats]:
        """For each position what each stage there costs every plan, shape (R,)."""
        return [self.paths.least_makespan(s, 0) for s in range(2 * self.devices)]

    @cached_property
    def on_device(self) -> Floats:
        """Paths that are longest where the stages of a device are the largest, (D, 3, 2D, 2)."""
        chain = self.paths.chain
        found = []
        for d in range(self.devices):
            heavy = chain.order.device == d
            for times in HEAVY:
                f, b = (np.where(heavy, time, LIGHT) for time in times)
                found.append(chain.longest_path(chain.durations(f, b, b))[1][:, :2])
        return np.array(found).reshape(self.devices, len(HEAVY), -1, 2)

    @cached_property
    def _held(self) -> Floats:
        vectors = self.paths.chain.order.in_flight
        held = np.zeros((self.devices, max(map(len, vectors)), 2))
        for d, listed in enumerate(vectors):
            held[d, : len(listed)] = listed
        return held

    @cached_property
    def paid_times(self) -> Floats:
        """The times of the stages of `paths` if they pay for all nets that they cut, (2, R)."""
        return np.asarray(self.least_times + self.shared.weight @ self.cut)

    @cached_property
    def cut(self) -> Bools:
        """Which of the `shared` nets the stages of `paths` cut, shape (E, R)."""
        return np.asarray((self.pins > 0) & (self.pins < self.shared.pins[:, None]))

    def times(self, half: int, meet: int) -> Floats:
        """Return the least time that stages of a half take where chains pass `meet`, shape (2, R).

        Of the stages of `paths`; of those of the other half it means nothing. A net with pins on
        one side of the meeting ideal alone is paid for by all stages that cut it. Else the first
        half pays for forward data, and the second half for gradients, where another stage of the
        same half has a pin, as that is on another device.

        Parameters
        ----------
        half
            0 for the stages below the meeting ideal, 1 for those above it.
        """
        shared, times = self.shared, self.paid_times.copy()
        below = shared.held[meet]
        here = shared.pins - below if half else below
        for e in np.flatnonzero((below > 0) & (below < shared.pins)):
            cut = self.cut[e]
            times[1 - half] -= shared.weight[1 - half, e] * cut
            times[half] -= shared.weight[half, e] * (cut & (self.pins[e] >= here[e]))
        return times

    def behind(self, prices: Floats, times: Floats, last: int, begin: int = 0) -> Floats:
        """Return the least cost of stages from each ideal to `last`, shape (D + 1, N).

        Row d is that of the stages d, … D − 1 of a half; `inf` for d < `begin`.

        Parameters
        ----------
        prices
            Shape (D, 2 or more): of the stages of the half.
        times
            Shape (2, R): of the stages of `paths`.
        """
        order, end, starts, at = self._by_start
        forward, backward = times[:, order]
        least = np.full((self.devices + 1, self.paid.lattice.size), np.inf)
        least[-1, last] = 0.0
        for d in range(self.devices - 1, begin - 1, -1):
            cost = least[d + 1][end] + prices[d, 0] * forward + prices[d, 1] * backward
            least[d, starts] = np.minimum.reduceat(cost, at)
        return least

    def ahead(self, prices: Floats, times: Floats, start: int, most: int) -> Floats:
        """Return the least cost from an ideal to each by the first `most` stages, shape (N,)."""
        stages = self.paths.stages  # by their end
        ends, at = self._ends
        least = np.full(self.paid.lattice.size, np.inf)
        least[start] = 0.0
        for d in range(most):
            cost = least[stages.start] + prices[d, 0] * times[0] + prices[d, 1] * times[1]
            least = np.full_like(least, np.inf)
            least[ends] = np.minimum.reduceat(cost, at)
        return least

    @cached_property
    def _by_start(self) -> tuple[Ints, Ints, Ints, Ints]:
        order = self.by_start
        starts, at = np.unique(self.paths.stages.start[order], return_index=True)
        return order, self.paths.stages.end[order], starts, at

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        ends, at = np.unique(self.paths.stages.end, return_index=True)
        return ends, at

    def graph(
        self, meet: int, target: float, prices: Floats, allowed: Bools, most: int
    ) -> Graph | None:
        """Return the pairs of chains below a target; None if there are more than `most`.

        Parameters
        ----------
        prices
            Shape (Q, 2D, 4).
        allowed
            Shape (2D, R): which of `stages` may be at each position.
        """
        size, ideals = self.devices, self.paid.lattice.size
        passes = np.stack([paths[:, [d, size + d]] for d, paths in enumerate(self.on_device)])
        shared = self._cut(meet)
        below, first = self._half(0, meet, prices, allowed[:size])
        above, second = self._half(1, meet, prices, allowed[size:])
        nets, first = self._nets(shared, meet, below, above, first, passes)
        every = int((np.ptp(first.begin, axis=1) * np.ptp(second.begin, axis=1)).sum())
        rows = np.empty((min(every, most), 5), np.int32)
        times = np.empty((len(rows), 2, 2))
        room = float(self.paths.line.room[0])
        filled = list_pairs(
            meet, target, ideals, (first, second), nets, passes, prices, (self._held, room),
            (rows, times),
        )  # fmt: skip
        if filled < 0:
            return None
        layer, source, sink, a, b = rows[:filled][::-1].T.copy()
        begin = np.searchsorted(layer, np.arange(size + 1))
        cuts = np.stack((first.end[a], second.end[b]), axis=1)
        return Graph(begin, layer, source, sink, times[:filled][::-1].copy(), cuts)

    def _half(self, half: int, meet: int, prices: Floats, allowed: Bools) -> tuple[Ints, Half]:
        """Return the numbers in `stages` of the rows of a half, and the half."""
        stages, size, ideals = self.stages, self.devices, self.paid.lattice.size
        least = self.times(half, meet)
        begins, ends = (meet, ideals - 1) if half else (0, meet)
        positions = slice(half * size, (half + 1) * size)
        device, number = np.nonzero(allowed)
        start, end = stages.start[number], stages.end[number]
        time = np.stack((stages.forward[0], stages.backward[0]), axis=1)[number]
        path = np.zeros((len(number), self.on_device.shape[1]))
        for p in range(path.shape[1]):
            for d in range(size):
                own, counts = device == d, self.on_device[d, p, positions]
                around = self.ahead(counts, least, begins, d)[start[own]]
                around += self.behind(counts, least, ends, d + 1)[d + 1][end[own]]
                path[own, p] = around + time[own] @ counts[d]
        left = np.zeros((len(number), len(prices)))
        for q, price in enumerate(prices):
            left[:, q] = self.behind(price[positions], least, ends)[device + 1, end]
        cost = np.einsum("qnk,nk->nq", prices[:, half * size + device, :2], time)
        order = np.lexsort((path[:, 0], start, device))
        order = order[np.isfinite(path[order]).all(axis=1) & np.isfinite(left[order]).all(axis=1)]
        key = device[order] * ideals + start[order]
        begin = np.searchsorted(key, np.arange(size * ideals).reshape(size, ideals))
        begin = np.concatenate((begin, np.append(begin[1:, 0], len(key))[:, None]), axis=1)
        held = np.stack((stages.resident[number], stages.activation[number]), axis=1)
        found = Half(
            begin, end[order], time[order], path[order], cost[order], left[order], held[order],
            np.zeros(len(order)),
        )  # fmt: skip
        return number[order], found

    def _nets(
        self, shared: Shared, meet: int, below: Ints, above: Ints, first: Half, passes: Floats
    ) -> tuple[Nets, Half]:
        """Return what nets the rows of both halves have, and the first half with `spared`."""
        stages, (held, pins, weight) = self.stages, shared
        here = held[stages.end[below]] - held[stages.start[below]]
        there = held[stages.end[above]] - held[stages.start[above]]
        row, net = np.nonzero(here)
        whole = here[row, net] == held[meet][net]
        nets = Nets(
            np.searchsorted(row, np.arange(len(below) + 1)),
            net,
            whole,
            (there > 0).astype(np.uint8) + (there == pins - held[meet]),
            weight,
        )
        device = np.repeat(np.arange(self.devices), np.diff(first.begin[:, [0, -1]])[:, 0])
        own = passes[device[row], 0]  # (rows, stage, pass)
        worth = own[:, 1, 0] * weight[0, net] + own[:, 0, 1] * weight[1, net]
        worth += whole * (own[:, 0, 0] * weight[0, net] + own[:, 1, 1] * weight[1, net])
        spared = np.bincount(row, worth, len(below))
        return nets, first._replace(spared=spared)

    @cached_property
    def keys(self) -> Ints:
        """A number for each of `stages`, increasing."""
        return np.asarray(self.stages.start * self.paid.lattice.size + self.stages.end)
