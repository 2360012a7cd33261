"""Counts of devices per block at a threshold: the program of `formulations.mapping.counts`."""

from __future__ import annotations

from collections.abc import Callable

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.counts import program
from ....formulations.mapping.splits import block_capacities
from ....instances.common.arrays import Ints
from ...core.highs import Outcome, run_highs
from ...core.search import S, Search
from ..parameters import COUNT_PROGRAM_NODES, COUNT_PROGRAM_SECONDS

Test = Callable[[MappingCosts, LowerBounds, float], Outcome | None]


def count_test(search: Search[S], block: Ints) -> Test:
    """Return a test for `threshold_bound`: None where the counts per block are infeasible.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    """

    def possible(
        costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> Outcome | None:
        counts = block_capacities(costs, lower_bounds, threshold, block)
        if counts is None:
            return None
        outcome = run_highs(
            program(counts),
            search,
            on_incumbent=lambda _: True,
            seconds=COUNT_PROGRAM_SECONDS,
            nodes=COUNT_PROGRAM_NODES,
            gap=0.02,
        )
        return None if outcome.status == "infeasible" else outcome

    return possible
