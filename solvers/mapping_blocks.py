"""Bounds from counts per island: the program of `formulations.mapping_islands`, by HiGHS."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array

from ..formulations.mapping import MappingCosts
from ..formulations.mapping_bound import Floors
from ..formulations.mapping_islands import count_islands, program
from ..instances.arrays import Ints
from .highs import Linear, run_highs
from .search import S, Search

#: Seconds for one threshold; what is not refuted by then counts as possible.
SECONDS = 2.0
#: Nodes for one threshold, likewise.
MAX_NODES = 2000


class IslandTest:
    """A test for `threshold_bound`, which keeps the counts at the least threshold not refuted."""

    def __init__(self, search: Search[S]) -> None:
        self._search = search
        self._least = np.inf
        self.counts: Ints | None = None

    def __call__(self, costs: MappingCosts, least: Floors, threshold: float) -> object | None:
        """Return None where the counts per island are infeasible."""
        counts = count_islands(costs, least, threshold)
        if counts is None:
            return None
        rows = program(counts)
        size = len(rows.column_upper)
        linear = Linear(
            cost=np.zeros(size),
            column_lower=np.zeros(size),
            column_upper=rows.column_upper,
            integer=rows.integer,
            matrix=csc_array(rows.matrix),
            row_lower=rows.lower,
            row_upper=rows.upper,
        )
        outcome = run_highs(linear, self._search, seconds=SECONDS, gap=0.0, nodes=MAX_NODES)
        if outcome.status == "infeasible":
            return None
        if outcome.x is not None and threshold < self._least:
            stages, islands = counts.fits.shape
            self._least = threshold
            self.counts = outcome.x[: stages * islands].reshape(stages, islands).astype(np.int64)
        return outcome


def slots_from(costs: MappingCosts, counts: Ints) -> Ints:
    """Return a mapping's slots, (S, R), with these numbers of devices per stage and island."""
    members = [np.flatnonzero(costs.island == name).tolist() for name in np.unique(costs.island)]
    return np.array(
        [
            [members[b].pop(0) for b, count in enumerate(row) for _ in range(count)]
            for row in counts.tolist()
        ]
    )
