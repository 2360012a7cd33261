"""Bounds and starting mappings from counts per block, by HiGHS.

The programs are those of `formulations.mapping.counts` and `formulations.mapping.devices`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

import numpy as np

from ....formulations.linear import Linear
from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.counts import program
from ....formulations.mapping.devices import device_program
from ....formulations.mapping.splits import BlockCapacities, block_capacities
from ....instances.common.arrays import Floats, Ints
from ...core.highs import Outcome, run_highs
from ...core.search import S, Search
from ..parameters import (
    COUNT_PROGRAM_NODES,
    COUNT_PROGRAM_SECONDS,
    DEVICE_PROGRAM_VARIABLES,
    FEW_CROSSINGS_SECONDS,
)


class BlockTest(Generic[S]):
    """A test for `threshold_bound`, which keeps the counts found at the last threshold.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    """

    def __init__(self, search: Search[S], block: Ints) -> None:
        self._block = block
        self._search = search
        self._rng = np.random.default_rng(search.limits.seed)
        self._last: tuple[BlockCapacities, Floats] | None = None

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> object | None:
        """Return None where the counts per block are infeasible."""
        return self.count(costs, lower_bounds, threshold, first=True)

    def count(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float, *, first: bool
    ) -> object | None:
        """Return None where counts are infeasible; else any (`first`), or some with few across."""
        self._last = None
        counts = block_capacities(costs, lower_bounds, threshold, self._block)
        if counts is None:
            return None
        linear = program(counts)
        # random costs, so that repeated calls find different counts
        cost = linear.cost * self._rng.uniform(0.8, 1.2, len(linear.cost))
        outcome = self._run(replace(linear, cost=cost), first)
        if outcome.status == "infeasible":
            return None
        if outcome.x is not None:
            self._last = counts, np.rint(outcome.x)
        return outcome

    def slots(self, costs: MappingCosts) -> Ints | None:
        """Return slots, (S, R), with the counts last found, rings in the order of blocks."""
        if self._last is None:
            return None
        counts, x = self._last
        stages, blocks = counts.fits.shape
        block_counts = x[: stages * blocks].reshape(stages, blocks).astype(np.int64)
        begin = 2 * stages * blocks  # after n and k
        split = (
            x[begin : begin + counts.upper_bounds[:, :, 0].size].reshape(stages, -1).argmax(axis=1)
        )
        upper_bounds = counts.upper_bounds[np.arange(stages), split]
        linear = device_program(
            costs, self._block, upper_bounds[:, 0], upper_bounds[:, 1], block_counts
        )
        if len(linear.cost) > DEVICE_PROGRAM_VARIABLES:
            return slots_from(self._block, block_counts)
        outcome = self._run(linear)
        if outcome.x is None:
            return slots_from(self._block, block_counts)
        serves = outcome.x[: stages * costs.size].reshape(stages, costs.size) > 0.5
        members = [np.flatnonzero(row) for row in serves]
        return np.array([row[np.argsort(self._block[row], kind="stable")] for row in members])

    def _run(self, linear: Linear, first: bool = True) -> Outcome:
        return run_highs(
            linear,
            self._search,
            on_incumbent=lambda _: first,
            seconds=COUNT_PROGRAM_SECONDS if first else FEW_CROSSINGS_SECONDS,
            nodes=COUNT_PROGRAM_NODES,
            gap=0.02,
        )


def slots_from(block: Ints, counts: Ints) -> Ints:
    """Return a mapping's slots, (S, R), with these numbers of devices per stage and block."""
    members = [np.flatnonzero(block == name).tolist() for name in range(int(block.max()) + 1)]
    return np.array(
        [
            [members[b].pop(0) for b, count in enumerate(row) for _ in range(count)]
            for row in counts.tolist()
        ]
    )
