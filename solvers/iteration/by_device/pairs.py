"""Devices that hold two stages: the pairs of stages that a chain below a target may have.

For a chain of 2D stages that passes the ideals I_0 = ∅, …, I_D = J_0, …, J_D = V, device d holds
I_{d+1} ∖ I_d and J_{d+1} ∖ J_d. With J_0, the *meeting ideal*, given, a state is (I_d, J_d), and a
pair is an option of device d (`graph`). Data that both stages use is paid for once, so that the
times are those of the definition.

A pair is left out if paths that stay on its device show that no chain below the target has it; if,
at given prices, the cheapest stages before and behind it do; or if it does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Stages(NamedTuple):
    """Stages by their start, all nets paid for.

    Parameters
    ----------
    first
        Shape (N + 1,): where the stages of each start begin.
    end
        Shape (R,): ideals.
    forward, backward
        Shape (R,): times.
    resident, activation
        Shape (R,): bytes.
    """

    first: Ints
    end: Ints
    forward: Floats
    backward: Floats
    resident: Floats
    activation: Floats


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


class Limits(NamedTuple):
    """Paths that stay on a device, and what it holds in memory.

    Parameters
    ----------
    own
        Shape (D, paths, 2, 2): forward and backward passes of its stages on a path.
    before, to_meet, from_meet, behind
        Shape (D, paths, N): the least that other stages add to the path: those before the
        device, between it and the meeting ideal, between that and its second stage, and behind.
    held
        Shape (D, V, 2): microbatches in flight; rows of 0 fill up.
    """

    own: Floats
    before: Floats
    to_meet: Floats
    from_meet: Floats
    behind: Floats
    held: Floats


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
    def stages(self) -> Stages:
        """The stages by their start."""
        listed = self.paid.keep(np.lexsort((self.paid.end, self.paid.start)))
        first = np.searchsorted(listed.start, np.arange(listed.lattice.size + 1))
        return Stages(
            first, listed.end, listed.forward[0].copy(), listed.backward[0].copy(),
            listed.resident, listed.activation,
        )  # fmt: skip

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

    def _around(self, least: Callable[[Floats, int], Floats]) -> Floats:
        """Return what stages around those of each device add to each path, shape (D, paths, N)."""
        return np.array([[least(p, d) for p in paths] for d, paths in enumerate(self.on_device)])

    def _limits(self, meet: int, first: Floats, second: Floats) -> Limits:
        size, last = self.devices, self.paid.lattice.size - 1
        own = [paths[:, [d, size + d]] for d, paths in enumerate(self.on_device)]
        return Limits(
            np.array(own),
            self._around(lambda paths, d: self.ahead(paths[:size], first, 0)[d]),
            self._around(lambda paths, d: self.behind(paths[:size], first, meet)[d + 1]),
            self._around(lambda paths, d: self.ahead(paths[size:], second, meet)[d]),
            self._around(lambda paths, d: self.behind(paths[size:], second, last)[d + 1]),
            self._held,
        )

    def behind(self, prices: Floats, times: Floats, last: int) -> Floats:
        """Return the least cost of stages from each ideal to `last`, shape (D + 1, N).

        Row d is that of the stages d, … D − 1 of a half.

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
        for d in range(self.devices - 1, -1, -1):
            cost = least[d + 1][end] + prices[d, 0] * forward + prices[d, 1] * backward
            least[d, starts] = np.minimum.reduceat(cost, at)
        return least

    def ahead(self, prices: Floats, times: Floats, start: int) -> Floats:
        """Return the least cost from an ideal to each by the first stages, shape (D + 1, N)."""
        stages = self.paths.stages  # by their end
        ends, at = self._ends
        least = np.full((self.devices + 1, self.paid.lattice.size), np.inf)
        least[0, start] = 0.0
        for d in range(self.devices):
            cost = least[d][stages.start] + prices[d, 0] * times[0] + prices[d, 1] * times[1]
            least[d + 1, ends] = np.minimum.reduceat(cost, at)
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
        size, last = self.devices, self.paid.lattice.size - 1
        first, second = self.times(0, meet), self.times(1, meet)
        tables = [
            (self.behind(price[:size], first, meet), self.behind(price[size:], second, last))
            for price in prices
        ]
        rows = np.empty((most, 5), np.int64)
        times = np.empty((most, 2, 2))
        room = float(self.paths.line.room[0])
        filled = list_pairs(
            meet, target, self.stages, allowed, self._cut(meet), self._limits(meet, first, second),
            prices, np.array([np.concatenate(both) for both in tables]), room,
            (rows, times),
        )  # fmt: skip
        if filled < 0:
            return None
        order = np.argsort(rows[:filled, 0], kind="stable")
        rows = rows[order]
        duration = np.zeros((filled, 2, 4))
        duration[:, :, :2] = times[order]
        layer, source, sink = rows[:, :3].T.copy()
        begin = np.searchsorted(layer, np.arange(size + 1))
        return Graph(begin, layer, source, sink, duration, self.stages.end[rows[:, 3:]])

    @cached_property
    def keys(self) -> Ints:
        """A number for each of `stages`, increasing."""
        start = np.repeat(np.arange(len(self.stages.first) - 1), np.diff(self.stages.first))
        return np.asarray(start * self.paid.lattice.size + self.stages.end)
