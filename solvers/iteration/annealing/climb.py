"""Local search over a chain: units move between neighbouring stages, one ideal at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ...core.search import Clock
from ..stage_paths import StagePaths

#: Steps that a boundary moves at most in one move, and ideals tried at each.
REACH, WIDTH = 3, 8
#: Part by which a chain must be better to be taken.
IMPROVES = 1e-9


class Chains:
    """Evaluates chains of ideals by the list of stages.

    Parameters
    ----------
    paths
        Of P stages.
    kinds
        Kind of device of each stage.
    """

    def __init__(self, paths: StagePaths, kinds: Sequence[int]) -> None:
        self.paths, self.kinds = paths, np.array(kinds, np.int64)
        stages = paths.stages
        key = stages.end * stages.lattice.size + stages.start
        self._order = np.argsort(key)
        self._sorted = key[self._order]
        self._durations = np.array([paths.durations(k) for k in range(len(paths.line.kinds))])
        self._blocked = ~np.isfinite(stages.forward)

    def stages(self, ideals: Ints) -> Ints | None:
        """Return the numbers of the stages between the ideals; None if one is not listed."""
        key = ideals[1:] * self.paths.stages.lattice.size + ideals[:-1]
        at = np.minimum(np.searchsorted(self._sorted, key), len(self._sorted) - 1)
        if (self._sorted[at] != key).any():
            return None
        found: Ints = self._order[at]
        return None if self._blocked[self.kinds, found].any() else found

    def durations(self, numbers: Ints) -> Floats:
        """Return the durations of the stages' actions, shape (P, 4)."""
        return np.ascontiguousarray(self._durations[self.kinds, :, numbers])

    def makespan(self, ideals: Ints, below: float = np.inf) -> float:
        """Return the makespan of a chain of ideals; `inf` if it breaks a rule or is not below."""
        numbers = self.stages(ideals)
        if numbers is None:
            return np.inf
        makespan = self.paths.chain.makespan(self.durations(numbers))
        fits = makespan < below and self.paths.fits(numbers, self.kinds)
        return makespan if fits else np.inf


def climb(chains: Chains, ideals: Ints, search: Clock) -> tuple[float, Ints]:
    """Move boundaries until no move shortens the makespan; return it and the ideals.

    A move shifts one boundary by up to `REACH` units, or a run of boundaries by one unit each.
    """
    lattice = chains.paths.stages.lattice
    up = [lattice.to[lattice.start[i] : lattice.start[i + 1]].tolist() for i in range(lattice.size)]
    down: list[list[int]] = [[] for _ in range(lattice.size)]
    for i, reached in enumerate(up):
        for j in reached:
            down[j].append(i)
    best, value = ideals.copy(), chains.makespan(ideals)
    moves = _moves(len(ideals) - 2)
    since, at = 0, 0
    while since < len(moves) and not search.should_stop():
        since += 1
        for candidate in _moved(best, moves[at], up, down):
            found = chains.makespan(candidate, value * (1 - IMPROVES))
            if np.isfinite(found):
                best, value, since = candidate, found, 0
        at = (at + 1) % len(moves)
    return value, best


def _moves(inner: int) -> list[tuple[bool, int, int]]:
    """Return the moves of `inner` boundaries: upwards or not, first and last boundary."""
    return [
        (upwards, first, last)
        for upwards in (True, False)
        for first in range(1, inner + 1)
        for last in range(first, inner + 1)
    ]


def _moved(
    ideals: Ints, move: tuple[bool, int, int], up: list[list[int]], down: list[list[int]]
) -> Iterator[Ints]:
    """Yield the chains that a move gives."""
    upwards, first, last = move
    way = up if upwards else down
    if first == last:
        level = [int(ideals[first])]
        for _ in range(REACH):
            level = sorted({j for i in level for j in way[i]})[:WIDTH]
            for ideal in level:
                moved = ideals.copy()
                moved[first] = ideal
                yield moved
        return
    moved = ideals.copy()
    for s in range(first, last + 1):
        if not way[int(ideals[s])]:
            return
        moved[s] = way[int(ideals[s])][0]
    yield moved
