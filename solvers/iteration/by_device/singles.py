"""Devices that hold one stage: the stages that a chain below a target may have, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ..bounds.stage_paths import StagePaths
from ..sized import SLACK, Sized
from .graph import Graph


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
    through
        A number of stages, and the ideal that they end with; 0 and the empty one for any.
    """

    plans: Sized
    through: tuple[int, int]

    @property
    def paths(self) -> StagePaths:
        """Of the P stages."""
        return self.plans.paths

    def tables(self, prices: Floats) -> Floats:
        """Return the least cost of stages s, … from each ideal to the last, (Q, P + 1, N)."""
        stages, size = self.paths.stages, self.plans.size
        order = np.argsort(stages.start, kind="stable")
        starts, at = np.unique(stages.start[order], return_index=True)
        end = stages.end[order]
        least = np.full((len(prices), size + 1, stages.lattice.size), np.inf)
        least[:, -1, -1] = 0.0
        durations = self.durations()
        for s in range(size - 1, -1, -1):
            duration = durations[s][:, order]
            for q, price in enumerate(prices):
                cost = least[q, s + 1][end] + price[s] @ duration
                least[q, s, starts] = np.minimum.reduceat(cost, at)
                if s == self.through[0]:
                    least[q, s, np.arange(stages.lattice.size) != self.through[1]] = np.inf
        return least

    def least(self, tables: Floats) -> float:
        """Return a bound of every chain, the best of the prices'."""
        return float(tables[:, 0, 0].max())

    def graph(self, target: float, prices: Floats, tables: Floats, most: int) -> Graph | None:
        """Return the stages of chains below a target; None if there are more than `most`."""
        stages, size = self.paths.stages, self.plans.size
        durations = self.durations()
        spent = np.full((len(prices), stages.lattice.size), np.inf)
        spent[:, 0] = 0.0
        bounds = self.bounds()
        found, total = [], 0
        for s in range(size):
            cost = prices[:, s] @ durations[s]
            bound = spent[:, stages.start] + cost + tables[:, s + 1, stages.end]
            kept = bounds[s] < target
            kept &= bound.max(axis=0) * (1 - SLACK) < target
            numbers = np.flatnonzero(kept)
            total += len(numbers)
            if total > most:
                return None
            reached = np.full_like(spent, np.inf)
            for q in range(len(prices)):
                own = spent[q, stages.start[numbers]] + cost[q, numbers]
                np.minimum.at(reached[q], stages.end[numbers], own)
            spent = reached
            found.append(numbers)
        return self._numbered(found, durations)

    def durations(self) -> Sequence[Floats]:
        """Return for each position how long the actions of each stage take, shape (4, R).

        0 for what no device can run, which `bounds` leave out.
        """
        duration = self.paths.durations(0)
        return [np.where(np.isfinite(duration), duration, 0.0)] * self.plans.size

    def bounds(self) -> Sequence[Floats]:
        """Return for each position what each stage there costs every plan, shape (R,)."""
        time = np.broadcast_to([1.0, 0.0, 1.0, 1.0], (1, self.plans.size, 4))
        work = self.least(self.tables(time)) * (1 - SLACK)
        return [self.paths.least_makespan(s, 0, work) for s in range(self.plans.size)]

    def _numbered(self, found: list[Ints], durations: Sequence[Floats]) -> Graph:
        """Return the graph of the stages of each position."""
        stages = self.paths.stages
        source, sink = [], []
        reached = np.zeros(1, np.int64)
        for numbers in found:
            source.append(np.searchsorted(reached, stages.start[numbers]))
            reached = np.unique(stages.end[numbers])
            sink.append(np.searchsorted(reached, stages.end[numbers]))
        chosen = np.concatenate(found)
        times = [own[:, numbers].T for own, numbers in zip(durations, found, strict=True)]
        sizes = [len(numbers) for numbers in found]
        return Graph(
            np.cumsum([0, *sizes]),
            np.repeat(np.arange(len(found)), sizes),
            np.concatenate(source),
            np.concatenate(sink),
            np.concatenate(times)[:, None],
            stages.end[chosen][:, None],
        )
