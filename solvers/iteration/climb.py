"""Local search over a chain: units move between neighbouring stages, one ideal at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...instances.model.arrays import Floats, Ints
from ..core.search import Stoppable
from .stage_paths import StagePaths

#: Steps that a boundary moves at most in one move.
REACH = 3


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

    def makespan(self, ideals: Ints) -> float:
        """Return the makespan of a chain of ideals; `inf` if it breaks a rule."""
        numbers = self.stages(ideals)
        if numbers is None or not self.paths.fits(numbers, self.kinds):
            return np.inf
        return self.paths.chain.makespan(self.durations(numbers))


def climb(chains: Chains, ideals: Ints, search: Stoppable) -> tuple[float, Ints]:
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
    better = True
    while better and not search.should_stop():
        better = False
        for candidate in _moves(best, up, down):
            found = chains.makespan(candidate)
            if found < value * (1 - 1e-12):
                best, value, better = candidate, found, True
                break
    return value, best


def _moves(ideals: Ints, up: list[list[int]], down: list[list[int]]) -> Iterator[Ints]:
    inner = range(1, len(ideals) - 1)
    for way in (up, down):
        for s in inner:
            level = [int(ideals[s])]
            for _ in range(REACH):
                level = sorted({j for i in level for j in way[i]})
                for ideal in level:
                    moved = ideals.copy()
                    moved[s] = ideal
                    yield moved
        for first in inner:
            for last in range(first + 1, len(ideals) - 1):
                moved = ideals.copy()
                for s in range(first, last + 1):
                    ahead = way[int(ideals[s])]
                    if ahead:
                        moved[s] = ahead[0]
                yield moved
