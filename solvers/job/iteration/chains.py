"""Chains of stages that a search meets, and the plans that they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....formulations.job.line import Line
from ....formulations.job.orders import Chain
from ....formulations.task import Task
from ....instances import PipelineJob, PipelinePlacement, Solution
from ....instances.common.arrays import Ints
from ...core.lattice import Lattice
from ...core.search import Search


@dataclass(frozen=True, eq=False)
class Run:
    """A search for chains on a lattice of ideals."""

    task: Task[PipelineJob]
    line: Line
    search: Search[Solution]
    lattice: Lattice

    def aim(self, gap: float | None = None) -> float:
        """Return the makespan below which plans are asked for, `inf` without incumbent.

        It is a gap below the incumbent, by default the search's next one.
        """
        gap = self.search.next_gap if gap is None else gap
        return self.search.objective * (1 - max(gap * (1 - SLACK), SLACK))

    def offer(self, ideals: Ints, kinds: tuple[int, ...], makespan: float) -> None:
        """Offer a chain that fits into memory, if equation 1 does not show that it is no better."""
        if makespan < self.search.objective:
            placement = self.placement(ideals, kinds)
            if placement is not None:
                self.search.offer(placement)

    def placement(self, ideals: Ints, kinds: tuple[int, ...]) -> PipelinePlacement | None:
        """Return the plan of a chain; None if the stages of a device have different kinds."""
        where = self.line.problem.devices_of(len(kinds))
        kind_of = dict(zip(where, kinds, strict=True))
        if kinds != tuple(kind_of[p] for p in where):
            return None
        free = [np.flatnonzero(self.task.costs.kind_of == k).tolist() for k in self.line.kinds]
        used = list(kind_of.values())
        if any(used.count(k) > len(free[k]) for k in range(len(free))):
            return None
        devices = {p: free[kind_of[p]].pop(0) for p in sorted(kind_of)}
        stage_of = np.zeros(self.line.graph.size, np.int64)
        for s, (start, end) in enumerate(pairwise(ideals.tolist())):
            stage_of[self.lattice.order[self.lattice.between(start, end)]] = s
        return PipelinePlacement(self.line.graph.expand(stage_of), tuple(devices[p] for p in where))


@dataclass
class StageCount:
    """A number P of stages: their order, and a bound on the makespan of plans."""

    #: The order of P stages.
    chain: Chain
    #: Lower bound on the makespan of plans with P stages.
    bound: float

    @property
    def size(self) -> int:
        """Number of stages P."""
        return self.chain.order.stages


#: Numbers of stages on each kind of device.
Used = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MetChain:
    """A chain that a search met, and its makespan by equation 1."""

    makespan: float
    #: Numbers in the list, and kinds of devices, first to last.
    stages: tuple[int, ...]
    kinds: tuple[int, ...]


#: Relative slack for rounding of sums.
SLACK = 1e-9
