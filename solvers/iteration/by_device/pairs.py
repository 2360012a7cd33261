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
from ..stage_list import StageList, bits
from ..stage_paths import HEAVY, LIGHT, StagePaths


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

    def cut_by(self, meet: int) -> Shared:
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
    def held(self) -> Floats:
        """Microbatches that the stages of each device hold at once, (D, V, 2); 0 fills up."""
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

    def times(self, half: int, meet: int, which: Ints) -> Floats:
        """Return the least time that stages of a half take where chains pass `meet`, shape (2, n).

        A net with pins on one side of the meeting ideal alone is paid for by all stages that cut
        it. Else the first half pays for forward data, and the second half for gradients, where
        another stage of the same half has a pin, as that is on another device.

        Parameters
        ----------
        half
            0 for the stages below the meeting ideal, 1 for those above it.
        which
            Shape (n,): numbers of stages of `paths`, all of that half.
        """
        shared, times = self.shared, self.paid_times[:, which]
        below = shared.held[meet]
        here = shared.pins - below if half else below
        for e in np.flatnonzero((below > 0) & (below < shared.pins)):
            cut = self.cut[e][which]
            times[1 - half] -= shared.weight[1 - half, e] * cut
            times[half] -= shared.weight[half, e] * (cut & (self.pins[e][which] >= here[e]))
        return times

    @cached_property
    def among(self) -> Ints:
        """Number of each of `stages` in the list of `paths`; that of another if it is not there."""
        stages, size = self.paths.stages, self.paid.lattice.size
        order = np.lexsort((stages.end, stages.start))
        found = np.searchsorted((stages.start * size + stages.end)[order], self.keys)
        return order[np.minimum(found, len(order) - 1)]

    @cached_property
    def keys(self) -> Ints:
        """A number for each of `stages`, increasing."""
        return np.asarray(self.stages.start * self.paid.lattice.size + self.stages.end)
