"""Messages and rings at a threshold: both programs over the same devices, by HiGHS.

A stage whose slack is T − base sends its messages in P and reduces in A, P + A ≤ slack. The test
goes through *windows*: intervals of P for each stage, which leave A what the lower end leaves of
the slack. In a window the programs of `message_program` and `ring_program`, joined, are a
relaxation: each kind of messages keeps its own bound. If a solution has P + A > slack for some
stage, the window is divided at a p between slack − A and P:

    every mapping has P ≤ p, or P > p and A < slack − p,

and the solution is in neither part. No mapping is within T if no window has a solution. As P and A
are costs of pairs, which are finitely many, this ends. Whether rings are in one piece is looked at
only where P + A ≤ slack: a solution that is divided away need not be mended.

Windows do not depend on T, and one that is refuted is so for every lower threshold, too. So they
are kept, each with the largest threshold at which it was refuted: a threshold that was not decided
in time goes on where it ended, a lower one looks at the open windows alone, and a higher one begins
with the last division.

Only boundaries and rings to which few pairs between blocks are admitted are in the programs. The
others are *loose*: they are taken to cost what leaves them few pairs, so that a window is divided
where one of a stage's two kinds leaves the other few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal

import numpy as np

from ...formulations.mapping.bound import LowerBounds, fitting, pair_upper_bounds
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.message_program import MessageProgram, message_program
from ...formulations.mapping.ring_program import RingProgram, cells_of, cuts, orders
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.highs import run_highs
from ..core.search import S, Search
from .parameters import BOTH_HEURISTICS, BOTH_PAIRS


@dataclass(frozen=True, eq=False)
class _Window:
    """What the messages of each stage take in seconds, shape (S,): more than least, at most most.

    No mapping within the threshold `refuted` is in it.
    """

    least: Floats
    most: Floats
    refuted: float = 0.0


@dataclass(frozen=True, eq=False)
class _Found:
    """A solution of the program of a window: what messages and rings take, shape (S,) both.

    Loose ones take what leaves them few pairs; `loose` says of rings and boundaries, shape (2, S),
    which these are. `devices` of each stage are in ring order.
    """

    sending: Floats
    reducing: Floats
    loose: Bools
    devices: dict[int, Ints]


class BothTest(Generic[S]):
    """A test of thresholds.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    seconds
        For one threshold; what is not refuted by then counts as possible.
    complete
        Called with devices by stage and a threshold: whether a mapping within the threshold is
        found that begins with them.

    Attributes
    ----------
    refuted
        The largest threshold that all windows are refuted at.
    """

    def __init__(
        self,
        search: Search[S],
        block: Ints,
        seconds: float,
        complete: Callable[[dict[int, Ints], float], object] = lambda *_: None,
    ) -> None:
        self._search = search
        self._complete = complete
        self._block = block
        # without blocks all pairs are told apart
        self._apart = (block[:, None] != block[None, :]) | (not block.any())
        self._seconds = seconds
        self._windows: list[_Window] = []

    @property
    def refuted(self) -> float:
        """The largest threshold at which all windows are refuted."""
        return min((window.refuted for window in self._windows), default=0.0)

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> bool | None:
        """Return None where no mapping is within the threshold, False if it is not decided."""
        until = self._search.seconds + self._seconds
        slack = threshold - costs.base
        if not self._windows:
            self._windows.append(_Window(np.zeros(costs.stages), np.full(costs.stages, np.inf)))
        while True:
            at = next((k for k, w in enumerate(self._windows) if w.refuted < threshold), -1)
            if at < 0:
                return None
            window = self._windows[at]
            narrowed = LowerBounds(
                np.maximum(lower_bounds.transfer, window.least),
                np.maximum(lower_bounds.allreduce, slack - window.most),
            )
            found = self._solve(costs, narrowed, threshold, until)
            if found is False:
                return False
            if found is None:
                self._windows[at] = replace(window, refuted=threshold)
                continue
            over = found.sending + found.reducing - slack
            s = int(over.argmax())
            if over[s] <= 1e-9 * threshold:
                if found.devices:
                    self._complete(found.devices, threshold)
                return True
            p = (slack[s] - found.reducing[s] + found.sending[s]) / 2
            if found.loose[0, s]:
                p = slack[s] - found.reducing[s] * (1 - 1e-9)
            elif found.loose[1, s]:
                p = found.sending[s] * (1 - 1e-9)
            least, most = window.least.copy(), window.most.copy()
            least[s] = most[s] = p
            parts = [replace(window, most=most), replace(window, least=least)]
            self._windows[at : at + 1] = parts

    def _solve(
        self, costs: MappingCosts, window: LowerBounds, threshold: float, until: float
    ) -> _Found | Literal[False] | None:
        """Return a solution of a window's program, None if there is none, False if undecided."""
        bounds = pair_upper_bounds(costs, window, threshold)
        fits = None if bounds is None else fitting(costs, window, threshold)
        if bounds is None or fits is None:
            return None
        admitted, sending = self._tight(costs, "boundary", bounds[0], fits)
        able_on, reducing = self._tight(costs, "ring", bounds[1], fits)
        loose = np.array([reducing > 0, sending > 0])
        if not admitted and not able_on:
            return _Found(sending, reducing, loose, {})
        rings = RingProgram(costs, self._block)
        for s, able in able_on.items():
            cell = cells_of(able, self._block, costs.replicas)
            if cell is None:
                return None
            rings.add(s, able, cell, self._capacity(admitted, s))
            inside = (cell[:, None] == cell[None, :]) & able
            reducing[s] = costs.ring_costs(s).max(where=inside, initial=0.0)
        messages = message_program(admitted, fits, self._block, costs.replicas, rings=rings)
        slack = threshold - costs.base
        while self._search.seconds < until and not self._search.should_stop():
            outcome = run_highs(
                rings.rows.build(),
                self._search,
                on_incumbent=lambda _: True,
                seconds=until - self._search.seconds,
                options={"mip_heuristic_effort": BOTH_HEURISTICS, "mip_allow_restart": False},
            )
            x = outcome.x
            if outcome.status == "infeasible":
                return None
            if x is None:
                return False
            found = _Found(
                sending + _sending(costs, admitted, messages, x),
                np.maximum(reducing, _reducing(costs, rings, x)),
                loose,
                {},
            )
            if (found.sending + found.reducing - slack).max() > 1e-9 * threshold:
                return found
            broken = [cut for ring in rings.rings for cut in cuts(ring, x)]
            if not broken:
                return replace(found, devices=_rows(rings, messages, x))
            for cut in broken:
                rings.rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return False

    def _capacity(self, admitted: dict[int, Bools], s: int) -> Ints:
        """Return how many devices of each block may serve stage s, shape (B,).

        Stages in a row whose messages all stay in their blocks have equally many there.
        """
        kept = {t for t, able in admitted.items() if not (able & self._apart).any()}
        first = last = s
        while first - 1 in kept:
            first -= 1
        while last in kept:
            last += 1
        return np.asarray(np.bincount(self._block) // (last - first + 1))

    def _tight(
        self, costs: MappingCosts, kind: str, bounds: Floats, fits: Bools
    ) -> tuple[dict[int, Bools], Floats]:
        """Return the admitted pairs of boundaries, or rings, to which few between blocks are.

        And for each other stage, shape (S,), the cost below which few would be.
        """
        found: dict[int, Bools] = {}
        loose = np.zeros(costs.stages)
        of_boundary = kind == "boundary"
        factors = costs.boundary if of_boundary else costs.ring
        most = int(2 * BOTH_PAIRS * costs.size)
        if not of_boundary and costs.replicas < 3:
            return found, loose
        for s in np.flatnonzero(factors.any(axis=1) & np.isfinite(bounds)).tolist():
            pair_costs = costs.boundary_costs(s) if of_boundary else costs.ring_costs(s)
            able = (pair_costs <= bounds[s]) & fits[s][:, None]
            able &= fits[s + 1 if of_boundary else s][None, :]
            np.fill_diagonal(able, False)
            told = pair_costs[able & self._apart]
            if len(told) <= most:
                found[s] = able
            else:
                loose[s] = np.partition(told, most)[most]
        return found, loose


def _rows(rings: RingProgram, messages: MessageProgram, x: Floats) -> dict[int, Ints]:
    """Return the devices of each stage, in ring order; empty if fill finds no devices."""
    members = messages.members(x)
    if members is None:
        return {}
    found = orders(rings.rings, x, members) if rings.rings else {}
    return {} if found is None else {**members, **found}


def _reducing(costs: MappingCosts, rings: RingProgram, x: Floats) -> Floats:
    """Return the dearest message between cells on the ring of each stage, shape (S,)."""
    found = np.zeros(costs.stages)
    for ring in rings.rings:
        linked = x[ring.link] > 0.5
        pair_costs = costs.ring_costs(ring.stage)[ring.a[linked], ring.c[linked]]
        found[ring.stage] = pair_costs.max(initial=0.0)
    return found


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
