"""Series of *segments* of a graph, with symmetry classes of branches, and their ideals as states.

All units of a segment come before all units of the next one. A segment of several units falls into
*branches* between which no edges run. Branches are of one *symmetry class* if exchanging two of
them, unit by unit, changes neither times, bytes, edges nor nets. An ideal that is a prefix of the
series and some part of the next segment then costs the same whichever branches of a class have
which part of it, so that one ideal stands for all of those: a layer of eight experts with seven
ideals each has not 7^8 but C(14, 8).

A *state* is all segments before one, and an ideal of that one that is not the whole of it; the last
state is the whole graph. Between states I ⊂ J, a stage on a device of kind κ has the load

    start_κ(I) + end_κ(J) − shared_κ(I, J),       start = cut − work,  end = cut + work,

with the work of all units of an ideal, and the weight of all nets that it cuts. Nets that both of
them cut (`table`) are paid for once, or not at all if no pin is between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np

from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.common.arrays import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class SeriesNet:
    """Net with its pins by segment.

    Parameters
    ----------
    weight
        Shape (K,): what a device of each kind pays for it.
    segments
        Those with pins of it, increasing.
    before
        How many pins are before each of them, and how many there are.
    columns
        For each of them, which of its units are pins.
    """

    weight: Floats
    segments: Sequence[int]
    before: Sequence[int]
    columns: Sequence[Ints]

    @property
    def pins(self) -> int:
        """Number of pins."""
        return self.before[-1]

    def until(self, a: int) -> int:
        """Return how many pins are in the segments before one."""
        return self.before[bisect_left(self.segments, a)]

    def between(self, a: int, b: int) -> bool:
        """Whether a pin is in a segment after `a` and before `b`."""
        at = bisect_right(self.segments, a)
        return at < len(self.segments) and self.segments[at] < b

    def pins_held(self, a: int, states: SegmentStates) -> Ints:
        """Return how many pins each state of a segment holds, shape (S,)."""
        at = bisect_left(self.segments, a)
        if at == len(self.segments) or self.segments[at] != a:
            return np.full(states.size, self.before[at])
        inside: Ints = states.member[:, self.columns[at]].sum(axis=1)
        return self.before[at] + inside


#: Ideals of a branch, and states of a segment at most.
MOST_IDEALS, MOST_STATES = 1_000, 20_000


#: Ideals of a segment up to which each is a state of its own, so that all loads are known.
FEW = 300


#: For each class of branches, the numbers of their ideals, increasing.
Row = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class SegmentStates:
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
        """Number of states, S."""
        return len(self.member)

    @property
    def distinct(self) -> bool:
        """Whether each state stands for one ideal, as no class has two branches."""
        return all(branches == 1 for branches, _ in self.shape)

    def steps(self) -> tuple[Ints, Ints]:
        """Return the states with one unit more than each, as compressed rows."""
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


@dataclass(frozen=True, eq=False)
class BranchIdeals:
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
        """Number of ideals."""
        return len(self.member)


#: Rounds of colour refinement.
ROUNDS = 3


Branch = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Units that follow all units before the segment, and precede all after it.

    Parameters
    ----------
    classes
        Its branches by symmetry class; the units of each are in an order in which they correspond
        to those of the others in the class.
    """

    classes: tuple[tuple[Branch, ...], ...]

    @property
    def units(self) -> Ints:
        """Its units, branch by branch."""
        return np.array([u for branches in self.classes for units in branches for u in units])


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of each unit in the graph.

    Parameters
    ----------
    before, after
        Units at the other ends of edges that enter, and that leave.
    nets
        Numbers of the nets with the unit as a pin.
    """

    before: Sequence[set[int]]
    after: Sequence[set[int]]
    nets: Sequence[list[int]]


def neighbours(graph: Hypergraph) -> Neighbours:
    """Return the neighbours of each unit."""
    found = Neighbours(
        [set() for _ in range(graph.size)],
        [set() for _ in range(graph.size)],
        [[] for _ in range(graph.size)],
    )
    for u, v in graph.edges.tolist():
        found.before[v].add(u)
        found.after[u].add(v)
    for e, pins in enumerate(graph.pins):
        for u in pins:
            found.nets[u].append(e)
    return found


def series(near: Neighbours, order: Ints) -> Iterator[list[int]]:
    """Yield the units of each segment.

    A prefix of a topological order ends one if each unit that can come next follows all units that
    can come last.

    Parameters
    ----------
    order
        The units in a topological order.
    """
    missing = [len(before) for before in near.before]
    following = {u for u, left in enumerate(missing) if not left}
    last: set[int] = set()
    segment: list[int] = []
    for u in order.tolist():
        following.discard(u)
        segment.append(u)
        last -= near.before[u]
        last.add(u)
        for v in near.after[u]:
            missing[v] -= 1
            if not missing[v]:
                following.add(v)
        if all(last <= near.before[v] for v in following):
            yield segment
            segment = []


def divide(graph: Hypergraph, near: Neighbours, units: list[int]) -> Segment:
    """Return a segment with its branches in symmetry classes."""
    branches = _branches(near, units)
    if len(branches) == 1:
        return Segment(((tuple(branches[0]),),))
    colour = _colours(graph, near, units)
    classes: dict[Hashable, list[list[Branch]]] = {}
    for units_of in branches:
        branch = tuple(sorted(units_of, key=lambda u: (colour[u], u)))
        same = classes.setdefault(tuple(colour[u] for u in branch), [])
        for others in same:
            if _interchangeable(graph, near, others[-1], branch):
                others.append(branch)
                break
        else:
            same.append([branch])
    return Segment(tuple(tuple(others) for same in classes.values() for others in same))


def _branches(near: Neighbours, units: list[int]) -> list[list[int]]:
    """Return the connected components of some units."""
    left, found = set(units), []
    for first in units:
        if first not in left:
            continue
        left.discard(first)
        part = [first]
        for u in part:
            more = (near.before[u] | near.after[u]) & left
            left -= more
            part += sorted(more)
        found.append(part)
    return found


def _colours(graph: Hypergraph, near: Neighbours, units: list[int]) -> dict[int, int]:
    """Return a colour for each unit by colour refinement: equal colours may be interchangeable."""

    def numbered(keys: Mapping[int, Hashable]) -> dict[int, int]:
        numbers: dict[Hashable, int] = {}
        return {u: numbers.setdefault(key, len(numbers)) for u, key in keys.items()}

    alone: dict[int, Hashable] = {}
    for u in units:
        alone[u] = (graph.compute[:, :, u].tobytes(), graph.memory_bytes[u])
    colour = numbered(alone)
    weight = {e: graph.weight[:, :, e].tobytes() for u in units for e in near.nets[u]}
    for _ in range(ROUNDS):

        def seen(u: int, colour: dict[int, int] = colour) -> tuple[int, int]:
            return (colour[u], -1) if u in colour else (-1, u)

        around: dict[int, Hashable] = {
            u: (
                colour[u],
                tuple(sorted(map(seen, near.before[u]))),
                tuple(sorted(map(seen, near.after[u]))),
                tuple(sorted((weight[e], *sorted(map(seen, graph.pins[e]))) for e in near.nets[u])),
            )
            for u in units
        }
        colour = numbered(around)
    return colour


def _interchangeable(graph: Hypergraph, near: Neighbours, one: Branch, other: Branch) -> bool:
    """Whether exchanging two branches, unit by unit, changes nothing."""
    to = dict(zip((*one, *other), (*other, *one), strict=True))
    if any(
        not np.array_equal(graph.compute[:, :, u], graph.compute[:, :, v])
        or graph.memory_bytes[u] != graph.memory_bytes[v]
        or {to.get(x, x) for x in near.before[u]} != near.before[v]
        or {to.get(x, x) for x in near.after[u]} != near.after[v]
        for u, v in zip(one, other, strict=True)
    ):
        return False
    touched = {e for u in to for e in near.nets[u]}
    nets = [(graph.pins[e], graph.weight[:, :, e].tobytes()) for e in touched]
    moved = [(tuple(sorted(to.get(x, x) for x in pins)), weight) for pins, weight in nets]
    return Counter(nets) == Counter(moved)


def last_state() -> SegmentStates:
    """Return the state after the last segment: the whole graph."""
    return SegmentStates(np.zeros(0, np.int64), np.ones((1, 0), np.bool_), (), [()], ())


def states(segment: Segment, near: Neighbours) -> SegmentStates | None:
    """Return the states of a segment; None if there are too many."""
    found = [_ideals(branches[0], near) for branches in segment.classes]
    ideals = [one for one in found if one]
    if len(ideals) < len(found):
        return None
    many = [len(branches) for branches in segment.classes]
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
    return SegmentStates(
        segment.units, member[order], shape, kept, tuple(one.larger for one in ideals)
    )


def _ideals(branch: Branch, near: Neighbours) -> BranchIdeals | None:
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
    return BranchIdeals(
        np.array([[bool(ideal & bit) for bit in bits] for ideal in todo]),
        tuple(
            tuple(place[ideal | bit] for bit in bits if not ideal & bit and ideal | bit in place)
            for ideal in todo
        ),
    )


def nets(graph: Hypergraph, states: Sequence[SegmentStates], weight: Floats) -> list[SeriesNet]:
    """Return the nets of positive weight.

    Parameters
    ----------
    weight
        Shape (K, E).
    """
    segment, column = np.empty(graph.size, np.int64), np.empty(graph.size, np.int64)
    for a, one in enumerate(states):
        segment[one.units], column[one.units] = a, np.arange(len(one.units))
    found: list[SeriesNet] = []
    for e in np.flatnonzero(weight.any(axis=0)):
        units = np.array(graph.pins[e])
        units = units[np.argsort(segment[units], kind="stable")]
        segments, start = np.unique(segment[units], return_index=True)
        columns = np.split(column[units], start[1:])
        before = [*start.tolist(), len(units)]
        found.append(SeriesNet(weight[:, e], segments.tolist(), before, columns))
    return found


def opened(nets: Sequence[SeriesNet], length: int) -> Iterator[list[SeriesNet]]:
    """Yield for each segment the nets with pins there or before, and after; the longest first."""
    begins: list[list[SeriesNet]] = [[] for _ in range(length)]
    for net in nets:
        begins[net.segments[0]].append(net)
    found: list[SeriesNet] = []
    for a in range(length):
        found = [net for net in found + begins[a] if net.segments[-1] > a]
        found.sort(key=lambda net: -net.segments[-1])
        yield found
