"""Bounds from counts per block: the program of `formulations.mapping_counts`, by HiGHS."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array

from ..formulations.mapping import MappingCosts
from ..formulations.mapping_bound import Floors
from ..formulations.mapping_counts import program
from ..formulations.mapping_ways import count_blocks
from ..instances.arrays import Ints
from .highs import Linear, run_highs
from .search import S, Search

#: Seconds for one threshold; what is not refuted by then counts as possible.
SECONDS = 4.0
#: Nodes for one threshold, likewise.
MAX_NODES = 2000


class BlockTest:
    """A test for `threshold_bound`, which keeps the counts at the least threshold not refuted."""

    def __init__(self, search: Search[S], block: Ints) -> None:
        self._search = search
        self._block = block
        self._least = np.inf
        self.counts: Ints | None = None

    def __call__(self, costs: MappingCosts, least: Floors, threshold: float) -> object | None:
        """Return None where the counts per block are infeasible."""
        counts = count_blocks(costs, least, threshold, self._block)
        if counts is None:
            return None
        rows = program(counts)
        linear = Linear(
            cost=rows.cost,
            column_lower=np.zeros(len(rows.cost)),
            column_upper=rows.column_upper,
            integer=rows.integer,
            matrix=csc_array(rows.matrix),
            row_lower=rows.lower,
            row_upper=rows.upper,
        )
        outcome = run_highs(
            linear,
            self._search,
            on_incumbent=lambda _: True,  # whether there is one is all that is asked
            seconds=SECONDS,
            nodes=MAX_NODES,
        )
        if outcome.status == "infeasible":
            return None
        if outcome.x is not None and threshold < self._least:
            stages, blocks = counts.fits.shape
            self._least = threshold
            self.counts = np.rint(outcome.x[: stages * blocks]).astype(np.int64)
            self.counts = self.counts.reshape(stages, blocks)
        return outcome


def slots_from(block: Ints, counts: Ints) -> Ints:
    """Return a mapping's slots, (S, R), with these numbers of devices per stage and block."""
    members = [np.flatnonzero(block == name).tolist() for name in range(int(block.max()) + 1)]
    return np.array(
        [
            [members[b].pop(0) for b, count in enumerate(row) for _ in range(count)]
            for row in counts.tolist()
        ]
    )
