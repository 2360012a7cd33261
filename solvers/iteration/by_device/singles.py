"""Devices that hold one stage: the stages that a chain below a target may have, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ..sized import SLACK, Sized
from ..stage_paths import StagePaths
from .graph import OptionGraph


class StageRange(NamedTuple):
    """What stages some positions of a chain may have, n of them.

    Parameters
    ----------
    positions
        Neighbours.
    numbers
        Shape (n,): in the list of stages, by their start.
    duration
        Shape (4, n), or (2, n) as in `OptionGraph`: of their actions; 0 for what no device can run,
        which `bounds` leave out.
    """

    positions: range
    numbers: Ints
    duration: Floats


@dataclass(frozen=True, eq=False)
class Singles:
    """The chains of P stages on devices of one kind; see `Source`.

    A state is an ideal, and an option of device s is a stage that begins there. A stage is left out
    where paths that stay on it show that no chain below the target has it (`stage_paths`), where
    the cheapest stages before and behind it do at given prices, or where it does not fit into
    memory.

    Parameters
    ----------
    plans
        Of P stages.
    """

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
