"""Rings at a threshold, exactly: the program of `formulations.mapping.ring_program`, by HiGHS.

The program is solved, solutions whose rings are not connected are cut off, and it is solved again,
until every ring is in one piece or the program is infeasible. Only stages for whose rings few pairs
are admitted are in it: those with many find their rings in what the others leave, as a rule, and
without them it is a relaxation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

import numpy as np

from ....formulations.mapping.bound import LowerBounds, pair_upper_bounds
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.ring_cuts import cuts, orders
from ....formulations.mapping.ring_program import RingProgram, cells_of
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.highs import Outcome, run_highs
from ...core.search import S, Search
from ..parameters import RING_PROGRAM_SECONDS


class RingTest(Generic[S]):
    """A test for `threshold_bound`, which keeps the rings of the least threshold with any.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    most_pairs
        Admitted pairs between blocks, per device, up to which a stage's ring is in the program.

    Attributes
    ----------
    threshold, devices
        The least threshold with rings, and the ring of each stage of the program there.
    """

    def __init__(self, search: Search[S], block: Ints, most_pairs: float) -> None:
        self._search = search
        self._block = block
        self._most_pairs = most_pairs
        self._rng = np.random.default_rng(search.limits.seed)
        self.threshold = np.inf
        self.devices: dict[int, Ints] = {}

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> dict[int, Ints] | bool | None:
        """Return None where the stages cannot have their rings, of three or more, at the threshold.

        Else the ring of each tight stage, others if it is asked again for the least threshold;
        empty if it is not decided; True if no stage is tight.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        if bounds is None:
            return None
        program = RingProgram(costs, self._block)
        around = costs.ring.any(axis=1) & np.isfinite(bounds[1]) & (costs.replicas > 2)
        apart = self._block[:, None] != self._block[None, :]
        for s in np.flatnonzero(around).tolist():
            admitted = costs.ring_costs(s) <= bounds[1][s]
            np.fill_diagonal(admitted, False)
            if self._pairs(admitted, apart) > self._most_pairs * costs.size:
                continue
            cell = cells_of(admitted, self._block, costs.replicas)
            if cell is None:
                return None
            program.add(s, admitted, cell)
        if not program.rings:
            return True
        program.share()
        cost = np.zeros(len(program.rows.upper))
        if threshold == self.threshold:
            cost = self._rng.uniform(0.0, 1.0, len(cost))
        found = self._solve(program, cost)
        if found is None:
            return None
        if found and threshold <= self.threshold:
            self.threshold, self.devices = threshold, found
        return found

    def _pairs(self, admitted: Bools, apart: Bools) -> int:
        among = admitted & apart if self._block.any() else admitted
        return int(among.sum()) // 2

    def _solve(self, program: RingProgram, cost: Floats) -> dict[int, Ints] | None:
        """Return rings by stage, empty if it is not known whether there are, None if not."""
        search = self._search
        until = search.seconds + RING_PROGRAM_SECONDS
        while search.seconds < until and not search.should_stop():
            outcome = self._run(program, cost, until - search.seconds)
            if outcome.status == "infeasible":
                return None
            if outcome.x is None:
                return {}
            found = [cut for ring in program.rings for cut in cuts(ring, outcome.x)]
            if not found:
                rows = orders(program.rings, outcome.x)
                return {} if rows is None else rows
            for cut in found:
                program.rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return {}

    def _run(self, program: RingProgram, cost: Floats, seconds: float) -> Outcome:
        linear = replace(program.rows.build(), cost=cost)
        return run_highs(linear, self._search, on_incumbent=lambda _: True, seconds=seconds)
