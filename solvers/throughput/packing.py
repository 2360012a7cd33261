"""Any split that fits the memories, for memories so tight that greedy filling fails.

Sizes are integers, so bin packing (`pack`) is exact: branch and bound over items, the largest
first. Rooms of a class differ only by their free space, so of equally full rooms only one is tried;
and an item that fills a room of a class exactly is tried in that room only, as whatever else would
go there can be exchanged with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph
from ...formulations.throughput.whole_bytes import whole_bytes
from ...instances import Placement, Solution, Throughput
from ..core.search import Search

#: Partial packings after which the search gives up.
STATES = 50_000

#: Free space in the rooms of each class, in increasing order.
Left = tuple[tuple[int, ...], ...]


def packing(task: Task[Throughput], graph: Hypergraph, search: Search[Solution]) -> None:
    """Offer a split that fits all memories, prove that there is none, or give up.

    Transfers and contiguity are ignored, so the proof holds for every split whose units contain
    those of `graph`. Sizes are integer numbers of bytes, so no tolerance is involved.
    """
    costs = task.costs
    whole = whole_bytes(task, graph)
    supported = np.isfinite(graph.compute).all(axis=1) & (costs.count > 0)[:, None]  # (K, U)
    device = np.full(graph.size, -1)
    first = np.concatenate([[0], np.cumsum(costs.count)])
    for k in [k for k, room in enumerate(whole.rooms) if room is None]:
        device[(device < 0) & supported[k]] = first[k]  # unlimited memory: they displace none
    rest = np.flatnonzero(device < 0).tolist()
    packed = pack(
        [whole.units[u] for u in rest],
        [
            RoomClass(room or 0, int(count))
            for room, count in zip(whole.rooms, costs.count, strict=True)
        ],
        [np.flatnonzero(supported[:, u]).tolist() for u in rest],
        search.should_stop,
    )
    if packed.place is not None:
        device[rest] = [first[k] + number for k, number in packed.place]
        search.offer(Placement(graph.expand(device)))
    elif packed.proved:
        search.prove_infeasible(
            f"no assignment of the {graph.size} units (nodes that must stay together) to the "
            "devices keeps all memories; give more memory or more devices"
        )


@dataclass(frozen=True)
class RoomClass:
    """Rooms of one size."""

    room: int  # size of each
    count: int  # number of rooms


@dataclass(frozen=True)
class Packed:
    """Outcome of a bin packing: places, a proof that there are none, or neither."""

    # class of each item, and number of its room in the class; None if no packing was found
    place: tuple[tuple[int, int], ...] | None
    proved: bool = False  # whether it is proved that there is none


def pack(
    sizes: Sequence[int],
    classes: Sequence[RoomClass],
    able: Sequence[Sequence[int]],
    should_stop: Callable[[], bool] = lambda: False,
    states: int = STATES,
) -> Packed:
    """Find a room for every item such that no room holds more than its size.

    `able` lists for each item the classes that it may be in. The search gives up after `states`
    partial packings.
    """
    unit = reduce(math.gcd, sizes, 0) or 1
    items = sorted(range(len(sizes)), key=lambda i: (-sizes[i], sorted(able[i])))
    size = [sizes[i] // unit for i in items]
    allowed = [sorted(c for c in able[i] if classes[c].count) for i in items]
    bounds = _Bounds(size, allowed)
    start: Left = tuple((c.room // unit,) * c.count for c in classes)
    if not all(allowed) or not bounds.possible(0, start):
        return Packed(None, proved=True)
    failed: set[tuple[int, Left]] = set()
    lefts = [start]  # before each item on the path
    ways = [_ways(size[0], allowed[0], start)] if items else []
    chosen: list[tuple[int, int]] = []  # class and room left, by item
    while len(chosen) < len(items):
        depth = len(lefts) - 1
        step = next(ways[-1], None)
        if step is None:
            failed.add((depth, lefts.pop()))
            ways.pop()
            if not lefts:
                return Packed(None, proved=True)
            chosen.pop()
            continue
        c, room = step
        left = _put(lefts[-1], c, room, size[depth])
        if depth + 1 == len(items):
            chosen.append(step)
            break
        if (depth + 1, left) in failed or not bounds.possible(depth + 1, left):
            continue
        if states <= 0 or should_stop():
            return Packed(None)
        states -= 1
        chosen.append(step)
        lefts.append(left)
        ways.append(_ways(size[depth + 1], allowed[depth + 1], left))
    return Packed(_places(items, size, chosen, start))


class _Bounds:
    """Lower bounds on the room that the items not yet placed need."""

    def __init__(self, size: list[int], allowed: list[list[int]]) -> None:
        sets = {frozenset(own) for own in allowed}
        sets.add(frozenset().union(*sets))
        self._sums = {
            which: _from_the_end([s if which.issuperset(own) else 0 for s, own in pairs])
            for which in sets
            for pairs in [list(zip(size, allowed, strict=True))]
        }
        # Sizes decrease, so the last item that may be in a class is the smallest there.
        self._least: dict[int, int] = {}
        for s, own in zip(size, allowed, strict=True):
            self._least.update(dict.fromkeys(own, s))

    def possible(self, depth: int, left: Left) -> bool:
        """Return whether the items from `depth` on may fit, by total free space in usable rooms."""
        room = [sum(r for r in rooms if r >= self._least.get(c, 0)) for c, rooms in enumerate(left)]
        return all(sums[depth] <= sum(room[c] for c in which) for which, sums in self._sums.items())


def _from_the_end(values: list[int]) -> list[int]:
    """Return the suffix sums of values."""
    sums = [0]
    for value in reversed(values):
        sums.append(sums[-1] + value)
    return sums[::-1]


def _ways(size: int, allowed: list[int], left: Left) -> Iterator[tuple[int, int]]:
    """Yield the class and free space of each useful room, the fullest rooms first."""
    for c in allowed:
        rooms = dict.fromkeys(room for room in left[c] if room >= size)
        yield from ((c, room) for room in ([size] if size in rooms else rooms))


def _put(left: Left, c: int, room: int, size: int) -> Left:
    rooms = list(left[c])
    rooms.remove(room)
    return (*left[:c], tuple(sorted([*rooms, room - size])), *left[c + 1 :])


def _places(
    items: list[int], size: list[int], chosen: list[tuple[int, int]], start: Left
) -> tuple[tuple[int, int], ...]:
    """Return the place of each item; rooms are numbered as they are filled."""
    rooms = [list(own) for own in start]
    place = [(0, 0)] * len(items)
    for item, s, (c, room) in zip(items, size, chosen, strict=True):
        number = rooms[c].index(room)
        rooms[c][number] -= s
        place[item] = (c, number)
    return tuple(place)
