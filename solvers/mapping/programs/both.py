"""Messages and rings at a threshold: both programs over the same devices, by HiGHS.

A stage whose slack is T − base sends its messages in P and reduces in A, P + A ≤ slack. The test
goes through *windows*: upper bounds of P and of A for each stage. In a window the programs of
`message_program` and `ring_program`, joined, are a relaxation: each kind of messages keeps its own
bound. If a solution has P + A > slack for some stage, the window is divided at a p between
slack − A and P:

    every mapping has P ≤ p, or A < slack − p,

and the solution is in neither part. No mapping is within T if no window has a solution. As P and A
are costs of pairs, which are finitely many, this ends.

Only boundaries and rings to which few pairs between blocks are admitted are in the programs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

import numpy as np

from ....formulations.mapping.bound import LowerBounds, fitting, pair_upper_bounds
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.message_program import MessageProgram, message_program
from ....formulations.mapping.ring_cuts import cuts
from ....formulations.mapping.ring_program import RingProgram, cells_of
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.highs import run_highs
from ...core.search import S, Search
from ..parameters import BOTH_PAIRS


class BothTest(Generic[S]):
    """A test of thresholds.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    seconds
        For one threshold; what is not refuted by then counts as possible.
    """

    def __init__(self, search: Search[S], block: Ints, seconds: float) -> None:
        self._search = search
        self._block = block
        # without blocks all pairs are told apart
        self._apart = (block[:, None] != block[None, :]) | (not block.any())
        self._seconds = seconds
        self._rng = np.random.default_rng(search.limits.seed)

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> bool | None:
        """Return None where no mapping is within the threshold, False if it is not decided."""
        until = self._search.seconds + self._seconds
        slack = threshold - costs.base
        windows = [lower_bounds]
        while windows:
            window = windows.pop()
            found = self._solve(costs, window, threshold, until)
            if found is None:
                continue
            if isinstance(found, bool):
                return found
            sending, reducing = found
            over = sending + reducing - slack
            s = int(over.argmax())
            if over[s] <= 1e-9 * threshold:
                return True
            # few pairs are left to rings: near what this ring leaves, so that it is looked at once
            p = 0.9 * (slack[s] - reducing[s]) + 0.1 * sending[s]
            transfer, allreduce = window.transfer.copy(), window.allreduce.copy()
            transfer[s], allreduce[s] = p, slack[s] - p
            windows.append(replace(window, transfer=transfer))
            windows.append(replace(window, allreduce=allreduce))
        return None

    def _solve(
        self, costs: MappingCosts, window: LowerBounds, threshold: float, until: float
    ) -> tuple[Floats, Floats] | bool | None:
        """Return what each stage's messages and ring take in a solution, shape (S,) both.

        None if there is none; True if no boundary is tight; False if it is not decided.
        """
        bounds = pair_upper_bounds(costs, window, threshold)
        fits = None if bounds is None else fitting(costs, window, threshold)
        if bounds is None or fits is None:
            return None
        admitted = self._tight(costs, "boundary", bounds[0], fits)
        if not admitted:
            return True
        rings = RingProgram(costs, self._block)
        used = {t for s in admitted for t in (s, s + 1)}
        reducing = np.zeros(costs.stages)
        for s, able in self._tight(costs, "ring", bounds[1], fits).items():
            if s not in used or costs.replicas < 3:
                continue
            cell = cells_of(able, self._block, costs.replicas)
            if cell is None:
                return None
            rings.add(s, able, cell)
            inside = (cell[:, None] == cell[None, :]) & able
            reducing[s] = costs.ring_costs(s).max(where=inside, initial=0.0)
        messages = message_program(admitted, fits, self._block, costs.replicas, rings=rings)
        x = self._values(rings, until)
        if x is None or isinstance(x, bool):
            return x
        for ring in rings.rings:
            linked = x[ring.link] > 0.5
            pair_costs = costs.ring_costs(ring.stage)[ring.a[linked], ring.c[linked]]
            reducing[ring.stage] = pair_costs.max(initial=reducing[ring.stage])
        return _sending(costs, admitted, messages, x), reducing

    def _tight(
        self, costs: MappingCosts, kind: str, bounds: Floats, fits: Bools
    ) -> dict[int, Bools]:
        """Return the admitted pairs of boundaries, or rings, to which few between blocks are."""
        found: dict[int, Bools] = {}
        of_boundary = kind == "boundary"
        factors = costs.boundary if of_boundary else costs.ring
        for s in np.flatnonzero(factors.any(axis=1) & np.isfinite(bounds)).tolist():
            pair_costs = costs.boundary_costs(s) if of_boundary else costs.ring_costs(s)
            able = (pair_costs <= bounds[s]) & fits[s][:, None]
            able &= fits[s + 1 if of_boundary else s][None, :]
            np.fill_diagonal(able, False)
            if int((able & self._apart).sum()) // 2 <= BOTH_PAIRS * costs.size:
                found[s] = able
        return found

    def _values(self, rings: RingProgram, until: float) -> Floats | bool | None:
        """Return values whose rings are in one piece, None without any, False if undecided."""
        search, rows = self._search, rings.rows
        cost = self._rng.integers(0, 2, len(rows.upper)).astype(float)
        while search.seconds < until and not search.should_stop():
            outcome = run_highs(
                replace(rows.build(), cost=cost),
                search,
                on_incumbent=lambda _: True,
                seconds=until - search.seconds,
            )
            if outcome.status == "infeasible":
                return None
            if outcome.x is None:
                return False
            found = [cut for ring in rings.rings for cut in cuts(ring, outcome.x)]
            if not found:
                return outcome.x
            for cut in found:
                rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return False


def _sending(
    costs: MappingCosts, admitted: dict[int, Bools], messages: MessageProgram, x: Floats
) -> Floats:
    """Return the dearest message of each stage, shape (S,); inside cells any that is admitted."""
    found = np.zeros(costs.stages)
    for s, able in admitted.items():
        pair_costs, (a, c) = costs.boundary_costs(s), messages.pairs[s]
        sent = x[messages.sent[s]] > 0.5
        untold = able.copy()
        untold[a, c] = False
        found[s] = max(
            pair_costs[a[sent], c[sent]].max(initial=0.0),
            pair_costs.max(where=untold, initial=0.0),
        )
    return found
