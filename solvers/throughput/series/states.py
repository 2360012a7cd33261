"""The ideals within each segment, one for all that cost the same.

A *state* is all segments before one, and an ideal of that one that is not the whole of it; the last
state is the whole graph. Between states I ⊂ J, a stage on a device of kind κ has the load

    ahead_κ(I) + behind_κ(J) − shared_κ(I, J),       ahead = cut − work,  behind = cut + work,

with the work of all units of an ideal, and the weight of all nets that it cuts. Nets that both of
them cut (`table`) are paid for once, or not at all if no pin is between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np

from ....instances.common.arrays import Bools, Ints
from .segments import Branch, Neighbours, Segment

#: Ideals of a branch, and states of a segment at most.
MOST_IDEALS, MOST_STATES = 1_000, 20_000
#: Ideals of a segment up to which each is a state of its own, so that all loads are known.
FEW = 300

#: For each class of branches, which ideals they have, by number, increasing.
Row = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class States:
    """The states of a segment with U units, S of them, by size; the first is the empty ideal.

    Parameters
    ----------
    units
        Shape (U,).
    member
        Shape (S, U): which of them are in each.
    shape
        Of each class how many branches it has, and of how many units.
    rows
        The ideals of the branches in each state.
    larger
        For each class and ideal those with one unit more.
    """

    units: Ints
    member: Bools
    shape: tuple[tuple[int, int], ...]
    rows: Sequence[Row]
    larger: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def size(self) -> int:
        """S."""
        return len(self.member)

    @property
    def alone(self) -> bool:
        """Whether each state stands for itself alone."""
        return all(branches == 1 for branches, _ in self.shape)

    def steps(self) -> tuple[Ints, Ints]:
        """Return the states with one unit more, where those of each begin, and their numbers."""
        number = {row: i for i, row in enumerate(self.rows)}
        begin, to = [0], []
        for row in self.rows:
            more = {number.get(one) for one in self._larger(row)} - {None}
            to += sorted(i for i in more if i is not None)
            begin.append(len(to))
        return np.array(begin), np.array(to, np.int64)

    def _larger(self, row: Row) -> Iterator[Row]:
        for c, ideals in enumerate(row):
            for i, ideal in enumerate(ideals):
                for more in self.larger[c][ideal]:
                    changed = tuple(sorted((*ideals[:i], more, *ideals[i + 1 :])))
                    yield (*row[:c], changed, *row[c + 1 :])


def last_state() -> States:
    """Return the state behind the last segment: the whole graph."""
    return States(np.zeros(0, np.int64), np.ones((1, 0), np.bool_), (), [()], ())


def states(segment: Segment, near: Neighbours) -> States | None:
    """Return the states of a segment; None if there are too many."""
    found = [_ideals(branches[0], near) for branches in segment.alike]
    ideals = [one for one in found if one]
    if len(ideals) < len(found):
        return None
    many = [len(branches) for branches in segment.alike]
    if prod(one.size**n for one, n in zip(ideals, many, strict=True)) <= FEW:
        ideals = [one for one, n in zip(ideals, many, strict=True) for _ in range(n)]
        many = [1] * len(ideals)
    if prod(comb(n + one.size - 1, n) for one, n in zip(ideals, many, strict=True)) > MOST_STATES:
        return None
    choices = [
        combinations_with_replacement(range(one.size), n)
        for one, n in zip(ideals, many, strict=True)
    ]
    rows = list(product(*choices))
    parts = [
        one.member[np.array([row[c] for row in rows])].reshape(len(rows), -1)
        for c, one in enumerate(ideals)
    ]
    member = np.concatenate(parts, axis=1)
    order = np.argsort(member.sum(axis=1), kind="stable")[:-1]
    shape = tuple((n, one.member.shape[1]) for one, n in zip(ideals, many, strict=True))
    kept = [rows[i] for i in order.tolist()]
    return States(segment.units, member[order], shape, kept, tuple(one.larger for one in ideals))


@dataclass(frozen=True, eq=False)
class Ideals:
    """The ideals of a branch, by size.

    Parameters
    ----------
    member
        Shape (ideals, units).
    larger
        For each those with one unit more.
    """

    member: Bools
    larger: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.member)


def _ideals(branch: Branch, near: Neighbours) -> Ideals | None:
    """Return the ideals of a branch; None if there are too many."""
    needed = [sum(1 << i for i, u in enumerate(branch) if u in near.before[v]) for v in branch]
    place, todo = {0: 0}, [0]
    for ideal in todo:
        for i, mask in enumerate(needed):
            larger = ideal | 1 << i
            if larger not in place and not mask & ~ideal:
                place[larger] = len(todo)
                todo.append(larger)
        if len(todo) > MOST_IDEALS:
            return None
    bits = [1 << i for i in range(len(branch))]
    return Ideals(
        np.array([[bool(ideal & bit) for bit in bits] for ideal in todo]),
        tuple(
            tuple(place[ideal | bit] for bit in bits if not ideal & bit and ideal | bit in place)
            for ideal in todo
        ),
    )
