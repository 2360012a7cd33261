"""Local search over a chain: units move between neighbouring stages, one ideal at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances.model.arrays import Floats, Ints
from ..core.search import Stoppable
from .stage_paths import StagePaths

#: Steps that a boundary moves at most in one move.
REACH = 3


class Chains:
    """Evaluates chains of ideals: durations and memory from the list of stages.

    One kind of device.
    """

    def __init__(self, paths: StagePaths, kind: int = 0) -> None:
        self.paths = paths
        stages = paths.stages
        self._key = stages.end * stages.lattice.size + stages.start
        self._order = np.argsort(self._key)
        self._sorted = self._key[self._order]
        self._durations = paths.durations(kind)
        self._room = float(paths.line.room[kind])
        self._blocked = ~np.isfinite(stages.forward[kind])

    def stages(self, ideals: Ints) -> Ints | None:
        """Return the numbers of the stages between the ideals; None if one is not listed."""
        key = ideals[1:] * self.paths.stages.lattice.size + ideals[:-1]
        at = np.minimum(np.searchsorted(self._sorted, key), len(self._sorted) - 1)
        if (self._sorted[at] != key).any():
            return None
        found: Ints = self._order[at]
        return None if self._blocked[found].any() else found

    def durations(self, numbers: Ints) -> Floats:
        """Return the durations of the stages' actions, shape (P, 4)."""
        return np.ascontiguousarray(self._durations[:, numbers].T)

    def fits(self, numbers: Ints) -> bool:
        """Whether every device has room for its stages under the schedule."""
        stages, order = self.paths.stages, self.paths.chain.order
        for d, vectors in enumerate(order.in_flight):
            own = numbers[order.device == d]
            peak = stages.resident[own].sum() + (vectors @ stages.activation[own]).max()
            if peak > self._room:
                return False
        return True

    def makespan(self, ideals: Ints) -> float:
        """Return the makespan of a chain of ideals; `inf` if it breaks a rule."""
        numbers = self.stages(ideals)
        if numbers is None or not self.fits(numbers):
            return np.inf
        return self.paths.chain.makespan(self.durations(numbers))


def climb(chains: Chains, ideals: Ints, search: Stoppable) -> tuple[float, Ints]:
    """Move boundaries until no move shortens the makespan; return it and the ideals.

    A move shifts one boundary by up to `REACH` units, or a run of boundaries by one unit each.
    """
    lattice = chains.paths.stages.lattice
    up = [lattice.to[lattice.start[i] : lattice.start[i + 1]] for i in range(lattice.size)]
    down: list[list[int]] = [[] for _ in range(lattice.size)]
    for i, reached in enumerate(up):
        for j in reached.tolist():
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


def _moves(ideals: Ints, up: list[Ints], down: list[list[int]]) -> Iterator[Ints]:
    inner = range(1, len(ideals) - 1)
    for way in (up, down):
        for s in inner:
            level = [int(ideals[s])]
            for _ in range(REACH):
                level = sorted({int(j) for i in level for j in way[i]})
                for ideal in level:
                    moved = ideals.copy()
                    moved[s] = ideal
                    yield moved
        for first in inner:
            for last in range(first + 1, len(ideals) - 1):
                moved = ideals.copy()
                for s in range(first, last + 1):
                    ahead = list(way[int(ideals[s])])
                    if ahead:
                        moved[s] = ahead[0]
                yield moved
