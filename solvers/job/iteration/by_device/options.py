"""What each device may hold of a chain below a target: one stage, or a pair of stages.

The choices are a graph with a layer for each device. Device d of D holds the stages d, D + d,
2D + d, … of P = vD. A state before device d is what the devices before it hold; an *option* of
device d leads from a state to a state of the next layer, and says how long the actions of its
stages take. A path from the first state to the last is a chain.

*Pairs.* For a chain of 2D stages that passes the ideals I_0 = ∅, …, I_D = J_0, …, J_D = V, device d
holds I_{d+1} ∖ I_d and J_{d+1} ∖ J_d. With J_0, the *meeting ideal*, given, a state is (I_d, J_d),
and a pair is an option of device d. Data that both stages use is paid for once, so that the times
are those of the definition.

A pair is left out if paths that stay on its device show that no chain below the target has it; if,
at given prices, the cheapest stages before and behind it do; or if it does not fit into memory.

*Paths that stay on a device.* A path π on which the stages of device d have the counts c_s, and all
stages at least o_F forward and o_B backward passes, shows that a plan takes at least

    o_F F + o_B C + Σ_{s on d} (c_s − o) · durations_s,     F, C the compute of all nodes,

so with a target, each device has room for some more work, and all of them must have room for what
is left. Used where several stages share a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .....formulations.job.line import most_between
from .....instances.common.arrays import Bools, Floats, Ints
from ..sized import SLACK, Sized
from ..stage_list import HEAVY, LIGHT, StageList, StagePaths, bits


class OptionGraph(NamedTuple):
    """T options of D devices."""

    #: Shape (D + 1,): where the options of each device begin.
    begin: Ints
    #: Shape (T,): the device.
    layer: NDArray[np.int32]
    #: Shape (T,): number of the state before and behind, each numbered in its layer from 0; the
    #: first and the last layer have state 0 alone.
    source: NDArray[np.int32]
    sink: NDArray[np.int32]
    #: Shape (T, v, A): of the actions of each stage; A is 2 where backward passes are whole.
    duration: Floats
    #: Shape (T, v): the ideal at which each stage ends.
    cuts: Ints


@dataclass(frozen=True, eq=False)
class DevicePath:
    """A path that stays on one device; see the module."""

    #: o_F F + o_B C.
    base: float
    #: Shape (P, 4): c − o for the stages of the device, 0 for all others; not negative.
    excess: Floats
    #: Least excess of a unit of forward or backward work there.
    least: float


@dataclass(frozen=True, eq=False)
class DeviceLimits:
    """The paths of each device."""

    #: The plans.
    paths: StagePaths
    #: For each device its paths.
    of_device: tuple[tuple[DevicePath, ...], ...]

    def least(self, s: int, duration: Floats, own: Floats) -> Floats:
        """Return bounds of plans that end with stages s + 1, … and have one of several as stage s.

        `duration`, shape (P, 4), is that of the stages behind s, 0 before; `own`, shape (R, 4),
        that of the candidates.
        """
        d = int(self.paths.chain.order.device[s])
        bound = np.full(len(own), -np.inf)
        for path in self.of_device[d]:
            fixed = path.base + float((path.excess[s + 1 :] * duration[s + 1 :]).sum())
            bound = np.maximum(bound, fixed + own @ path.excess[s])
        return bound

    def room(self, s: int, duration: Floats, own: Floats, target: float) -> Floats:
        """Return how much work stages before s may have below a target, shape (R,)."""
        device = self.paths.chain.order.device
        total = np.zeros(len(own))
        for d, paths in enumerate(self.of_device):
            if not (device[:s] == d).any():
                continue
            rooms = np.full(len(own), np.inf)
            for path in paths:
                taken = path.base + float((path.excess[s + 1 :] * duration[s + 1 :]).sum())
                if device[s] == d:
                    taken = taken + own @ path.excess[s]
                if path.least > 0:
                    rooms = np.minimum(rooms, (target - taken) / path.least)
            total += np.maximum(rooms, 0.0)
        return total


class StageRange(NamedTuple):
    """What stages some positions of a chain may have, n of them."""

    #: Neighbours.
    positions: range
    #: Shape (n,): in the list of stages, by their start.
    numbers: Ints
    #: Shape (4, n), or (2, n) as in `OptionGraph`: of their actions; 0 for what no device can run,
    #: which `bounds` leave out.
    duration: Floats


@dataclass(frozen=True, eq=False)
class Singles:
    """The chains of P stages on devices of one kind; see `Source`.

    A state is an ideal, and an option of device s is a stage that begins there. A stage is left out
    where paths that stay on it show that no chain below the target has it (`stage_paths`), where
    the cheapest stages before and behind it do at given prices, or where it does not fit into
    memory.
    """

    #: Of P stages.
    plans: Sized

    @property
    def paths(self) -> StagePaths:
        """Of the P stages."""
        return self.plans.paths

    def tables(self, prices: Floats) -> Floats:
        """Return the least cost of stages s, … from each ideal to the last, (Q, P + 1, N)."""
        stages, size = self.paths.stages, self.plans.size
        least = np.full((len(prices), size + 1, stages.lattice.size), np.inf)
        least[:, -1, -1] = 0.0
        for part in reversed(self.parts()):
            starts, at = np.unique(stages.start[part.numbers], return_index=True)
            end, kinds = stages.end[part.numbers], len(part.duration)
            for s in reversed(part.positions) if len(at) else ():
                cost = least[:, s + 1, end] + prices[:, s, :kinds] @ part.duration
                least[:, s, starts] = np.minimum.reduceat(cost, at, axis=1)
        return least

    def least(self, tables: Floats) -> float:
        """Return a bound of every chain, the best of the prices'."""
        return float(tables[:, 0, 0].max())

    def graph(self, target: float, prices: Floats, tables: Floats, most: int) -> OptionGraph | None:
        """Return the stages of chains below a target; None if there are more than `most`."""
        stages = self.paths.stages
        spent = np.full((len(prices), stages.lattice.size), np.inf)
        spent[:, 0] = 0.0
        bounds = self.bounds()
        found: list[Ints] = []
        times: list[Floats] = []
        for part in self.parts():
            for s in part.positions:
                start, end = stages.start[part.numbers], stages.end[part.numbers]
                cost = prices[:, s, : len(part.duration)] @ part.duration
                bound = spent[:, start] + cost + tables[:, s + 1, end]
                kept = bounds[s][part.numbers] < target
                kept &= bound.max(axis=0) * (1 - SLACK) < target
                found.append(part.numbers[kept])
                times.append(part.duration[:, kept].T)
                if sum(map(len, found)) > most:
                    return None
                reached = np.full_like(spent, np.inf)
                for q in range(len(prices)):
                    own = spent[q, start[kept]] + cost[q, kept]
                    np.minimum.at(reached[q], end[kept], own)
                spent = reached
        return self._numbered(found, times)

    def parts(self) -> Sequence[StageRange]:
        """Return the stages of all positions: here the same at each."""
        order = np.argsort(self.paths.stages.start, kind="stable")
        duration = self.paths.durations(0)[:, order]
        every = np.where(np.isfinite(duration), duration, 0.0)
        return [StageRange(range(self.plans.size), order, every)]

    def bounds(self) -> Sequence[Floats]:
        """Return for each position what each stage there costs every plan, shape (R,)."""
        time = np.broadcast_to([1.0, 0.0, 1.0, 1.0], (1, self.plans.size, 4))
        work = self.least(self.tables(time)) * (1 - SLACK)
        return [self.paths.least_makespan(s, 0, work) for s in range(self.plans.size)]

    def _numbered(self, found: list[Ints], times: list[Floats]) -> OptionGraph:
        """Return the graph of the stages of each position, and of what their actions take."""
        stages = self.paths.stages
        source, sink = [], []
        reached = np.zeros(1, np.int64)
        for numbers in found:
            source.append(np.searchsorted(reached, stages.start[numbers]).astype(np.int32))
            reached = np.unique(stages.end[numbers])
            sink.append(np.searchsorted(reached, stages.end[numbers]).astype(np.int32))
        chosen = np.concatenate(found)
        sizes = [len(numbers) for numbers in found]
        return OptionGraph(
            np.cumsum([0, *sizes]),
            np.repeat(np.arange(len(found), dtype=np.int32), sizes),
            np.concatenate(source),
            np.concatenate(sink),
            np.concatenate(times)[:, None],
            stages.end[chosen][:, None],
        )


class Shared(NamedTuple):
    """Nets that two stages of a device can share."""

    #: Shape (N, E): pins in each ideal.
    held: Ints
    #: Shape (E,): pins of each net.
    pins: Ints
    #: Shape (2, E): what a device pays for it, by pass.
    weight: Floats


@dataclass(frozen=True, eq=False)
class Pairs:
    """What the graphs of all meeting ideals have in common, for D devices of one kind."""

    #: Of the 2D stages. Its list has lower bounds of the times, as parts of any chain.
    paths: StagePaths
    #: The same stages, with all nets paid for.
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
        it. Else the first half (0) pays for forward data, and the second (1) for gradients, where
        another stage of the same half has a pin, as that is on another device.
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


def device_limits(paths: StagePaths) -> DeviceLimits:
    """Return the paths that are longest where the stages of one device are the largest."""
    order = paths.chain.order
    forward, compute = paths.stages.ahead[:, -1].tolist()
    found = []
    for d in range(len(order.tables)):
        own = order.device == d
        listed = []
        for heavy in HEAVY:
            f, b = (np.where(own, time, LIGHT) for time in heavy)
            _, counts = paths.chain.longest_path(paths.chain.durations(f, b, b))
            listed.append(_device_path(counts, own, forward, compute))
        found.append(tuple(listed))
    return DeviceLimits(paths, tuple(found))


def _device_path(counts: Floats, own: Bools, forward: float, compute: float) -> DevicePath:
    """Return the path; split backward passes on it are left out, which makes it no larger."""
    ahead, back = counts[:, 0], counts[:, 1]
    least_ahead, least_back = float(ahead.min()), float(back.min())
    excess = np.zeros_like(counts)
    excess[own, 0] = ahead[own] - least_ahead
    excess[own, 1] = back[own] - least_back
    least = float(excess[own, :2].min())
    return DevicePath(least_ahead * forward + least_back * compute, excess, least)
