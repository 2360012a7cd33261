"""What a stage costs every plan that has it: the paths that stay on one stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...formulations.iteration.chain import Chain
from ...formulations.iteration.divisible import per_pass
from ...formulations.iteration.line import Line
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.search import Clock
from .kept_rules import keep_pins, keeps
from .stage_list import StageList

#: Forward and backward time of one stage, against `LIGHT` of all others, on which paths are found.
HEAVY = ((1.0, 1.0), (1.0, 0.1), (0.1, 1.0))
LIGHT = 1e-3


class OutOfTime(Exception):
    """Raised in the midst of long computations when the search must stop."""


@dataclass(frozen=True, eq=False)
class StagePaths:
    """Bounds of plans with P stages, from what one stage of them is.

    Parameters
    ----------
    line, stages
        The statement, and the stages that plans may have, by their end.
    chain
        The order of P stages.
    search
        Asked when to stop.
    """

    line: Line
    stages: StageList
    chain: Chain
    search: Clock

    @cached_property
    def paths(self) -> tuple[tuple[Floats, ...], ...]:
        """For each stage the paths that are longest where it is much larger than all others."""
        count = self.chain.order.stages
        found = []
        for s in range(count):
            own: dict[bytes, Floats] = {}
            for forward, backward in HEAVY:
                f, b = np.full(count, LIGHT), np.full(count, LIGHT)
                f[s], b[s] = forward, backward
                _, counts = self.chain.longest_path(self.chain.durations(f, b, b))
                own[counts.tobytes()] = counts
            found.append(tuple(own.values()))
        return tuple(found)

    @cached_property
    def _around(self) -> tuple[tuple[tuple[Floats, Floats], ...], ...]:
        """For each stage and each of its paths: the least that others add, before and behind.

        Shapes (N,): of the stages from the empty ideal to each, and from each to the last.
        """
        return tuple(
            tuple((self._ahead(counts[:s]), self._behind(counts[s + 1 :])) for counts in own)
            for s, own in enumerate(self.paths)
        )

    def _ahead(self, prices: Floats) -> Floats:
        """Return the least cost of the first stages up to each ideal, shape (N,)."""
        stages = self.stages
        ends, at = np.unique(stages.end, return_index=True)
        least = np.full(stages.lattice.size, np.inf)
        least[0] = 0.0
        for price in prices:
            reached = least[stages.start] + self._cheapest(price)
            least = np.full(stages.lattice.size, np.inf)
            least[ends] = np.minimum.reduceat(reached, at)
        return least

    def _behind(self, prices: Floats) -> Floats:
        """Return the least cost of the last stages from each ideal, shape (N,)."""
        stages, order = self.stages, self._by_start
        starts, at = np.unique(stages.start[order], return_index=True)
        least = np.full(stages.lattice.size, np.inf)
        least[-1] = 0.0
        for price in prices[::-1]:
            reached = (least[stages.end] + self._cheapest(price))[order]
            least = np.full(stages.lattice.size, np.inf)
            least[starts] = np.minimum.reduceat(reached, at)
        return least

    @cached_property
    def _by_start(self) -> Ints:
        return np.argsort(self.stages.start, kind="stable")

    def _cheapest(self, price: Floats) -> Floats:
        """Return what each stage costs at least on any kind of device, shape (R,)."""
        kinds = range(len(self.line.kinds))
        costs = np.array([_cost(price, self.durations(k)) for k in kinds])
        least: Floats = costs.min(axis=0)
        return least

    def durations(self, kind: int) -> Floats:
        """Return how long each action of a stage takes on a kind of device, shape (4, R).

        Raises
        ------
        OutOfTime
            If the search must stop.
        """
        if self.search.should_stop():
            raise OutOfTime
        stages = self.stages
        return self.chain.durations(
            stages.forward[kind], stages.backward[kind], stages.compute[kind]
        ).T

    def least_makespan(self, s: int, kind: int, least_work: float = 0.0) -> Floats:
        """Return a bound for plans that have, as stage s, each of the stages, shape (R,).

        Equation 1 for the paths that stay on stage s, with the cheapest stages before and behind
        it; `inf` where the stage does not fit into memory.

        Parameters
        ----------
        least_work
            No plan that is asked for has a smaller sum of all stages' times.
        """
        stages, order = self.stages, self.chain.order
        duration = self.durations(kind)
        both = stages.forward[kind] + stages.backward[kind]
        bound = np.zeros(stages.size)
        for counts, (before, behind) in zip(self.paths[s], self._around[s], strict=True):
            own = _cost(counts[s], duration)
            rest = before[stages.start] + behind[stages.end]
            apart = np.delete(counts, s, axis=0)
            passed = (apart[:, 0] >= 1) & (apart[:, 1] + apart[:, 2] >= 1)  # transfers included
            if (passed & (per_pass(apart, self.chain.share)[1] >= 1)).all():
                rest = np.maximum(rest, least_work - both)
            bound = np.maximum(bound, own + rest)
        engine = order.microbatches * stages.engine[kind]
        bound = np.maximum(bound, engine)
        held = self.most_held(s)
        fits = stages.resident + held * stages.activation <= self.line.room[kind]
        if self.line.rules.pins:
            ideals = stages.start, stages.end
            fits &= keep_pins(self.line.rules, stages.lattice, order.stages, s, *ideals)
        return np.where(fits & np.isfinite(stages.forward[kind]), bound, np.inf)

    def most_held(self, s: int) -> int:
        """Return the most microbatches that stage s holds at once."""
        d = int(self.chain.order.device[s])
        own = np.flatnonzero(self.chain.order.device == d)
        vectors = self.chain.order.in_flight[d]
        return int(vectors[:, int(np.searchsorted(own, s))].max())

    def fits(self, numbers: Ints, kinds: Ints) -> bool:
        """Whether devices have room for their stages (equation 2), and these keep the rules."""
        stages, order = self.stages, self.chain.order
        ideals = stages.start[numbers], stages.end[numbers]
        if self.line.rules and not keeps(self.line.rules, stages.lattice, order.device, *ideals):
            return False
        for d, vectors in enumerate(order.in_flight):
            own = order.device == d
            number = numbers[own]
            peak = stages.resident[number].sum() + (vectors @ stages.activation[number]).max()
            if peak > self.line.room[kinds[own]].min():
                return False
        return True

    def allowed(self, target: float, least_work: float = 0.0) -> tuple[tuple[Bools, ...], ...]:
        """Return for each stage and kind which of the stages a plan below `target` can have."""
        return tuple(
            tuple(
                self.least_makespan(s, k, least_work) < target for k in range(len(self.line.kinds))
            )
            for s in range(self.chain.order.stages)
        )


def _cost(counts: Floats, duration: Floats) -> Floats:
    """Return what stages cost at prices, shape (R,); what is not priced may last for ever."""
    return counts @ np.where(counts[:, None] > 0, duration, 0.0)
