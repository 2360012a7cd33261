"""A graph as a series of *segments*, and branches of them that can change places.

All units of a segment come before all units of the next one. A segment of several units falls into
*branches* between which no edges run. Branches are *alike* if exchanging two of them, unit by unit,
changes neither times, bytes, edges nor nets. An ideal that is a prefix of the series and some part
of the next segment then costs the same whichever of the branches that are alike have which part of
it, so that one ideal stands for all of those: a layer of eight experts with seven ideals each has
not 7^8 but C(14, 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.common.arrays import Ints

#: Rounds in which units of branches are told apart by their neighbours.
ROUNDS = 3

Branch = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Some units that come after all those before and before all those behind.

    Parameters
    ----------
    alike
        Its branches, in classes of those that are alike; the units of each are in an order in which
        they correspond to those of the others in the class.
    """

    alike: tuple[tuple[Branch, ...], ...]

    @property
    def units(self) -> Ints:
        """Its units, branch by branch."""
        return np.array([u for branches in self.alike for units in branches for u in units])


@dataclass(frozen=True)
class Neighbours:
    """The graph, by unit.

    Parameters
    ----------
    before, after
        Units at the other ends of edges.
    nets
        Numbers of the nets that it is a pin of.
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
    """Return a segment with its branches, in classes of those that are alike."""
    branches = _branches(near, units)
    if len(branches) == 1:
        return Segment(((tuple(branches[0]),),))
    colour = _colours(graph, near, units)
    classes: dict[Hashable, list[list[Branch]]] = {}
    for units_of in branches:
        branch = tuple(sorted(units_of, key=lambda u: (colour[u], u)))
        same = classes.setdefault(tuple(colour[u] for u in branch), [])
        for others in same:
            if _alike(graph, near, others[-1], branch):
                others.append(branch)
                break
        else:
            same.append([branch])
    return Segment(tuple(tuple(others) for same in classes.values() for others in same))


def _branches(near: Neighbours, units: list[int]) -> list[list[int]]:
    """Return the parts of some units between which no edges run."""
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
    """Return a number for each unit, the same for those that nothing tells apart so far."""

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


def _alike(graph: Hypergraph, near: Neighbours, one: Branch, other: Branch) -> bool:
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
