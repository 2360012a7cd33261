"""Routes between devices: tables of all pairs, or single pairs on demand.

Those of some pairs are found by breadth-first searches that go on side by side, in NumPy alone, so
that the first mapping waits neither for a compiler nor for all pairs. Distances of grids whose
links are all alike have a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import Floats, Ints
from .routing_kernel import fewest_hops, widest

Number = TypeVar("Number", int, Ints)

#: Nodes on a route, both ends included; sum of its latencies in seconds, least bandwidth.
Found = tuple[list[int], float, float]

#: Nodes times pairs searched side by side.
TOGETHER = 2**26

#: Links looked at in all; beyond this the table of all pairs is faster.
MOST_LINKS = 4_000_000


@dataclass(frozen=True, eq=False)
class Routes:
    """Point-to-point routes of D devices among N nodes, the same in both directions.

    The tables are computed when first asked for, in O(D · E) time and O(D · N) memory; until then
    the routes that `find` and `path` are asked for are searched one by one.
    """

    devices: int  # D
    # start, target: neighbours of node u are target[start[u] : start[u + 1]], increasing; shapes (N
    # + 1,) and (2E,)
    start: Ints
    target: Ints
    latency: Floats  # latency, bandwidth: (2E,): of each of these links
    bandwidth: Floats
    widest: bool  # whether the widest route is taken, else that of fewest hops
    # sides of the grid that the links are, all alike, and whether it wraps; () for others
    grid: tuple[tuple[int, ...], bool] = ((), False)
    _known: dict[tuple[int, int], Found] = field(default_factory=dict)

    @cached_property
    def _searched(self) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """Tables of latency, bandwidth and the node before, by a search from each device."""
        search = widest if self.widest else fewest_hops
        lat, band, previous = search(
            self.devices, len(self.start) - 1, self.start, self.target, self.latency, self.bandwidth
        )
        for table in (lat, band):
            for d in range(self.devices):  # `triu_indices` would take as much memory again
                table[d + 1 :, d] = table[d, d + 1 :]
        for table in (lat, band, previous):
            table.setflags(write=False)
        return lat, band, previous

    @cached_property
    def latency_s(self) -> Floats:
        """Shape (D, D): sum of the latencies on the route; 0 on the diagonal."""
        if not self.grid[0]:
            return self._searched[0]
        every = np.arange(self.devices)
        table = np.empty((self.devices, self.devices))
        for d in range(self.devices):
            table[d] = self._grid_latency[grid_hops(*self.grid, d, every)]
        table.setflags(write=False)
        return table

    @cached_property
    def bytes_per_s(self) -> Floats:
        """Shape (D, D): least bandwidth on the route; `inf` on the diagonal, 0 without a route."""
        if not self.grid[0]:
            return self._searched[1]
        table = np.full((self.devices, self.devices), self.bandwidth[0])
        np.fill_diagonal(table, np.inf)
        table.setflags(write=False)
        return table

    @property
    def previous(self) -> NDArray[np.int32]:
        """Shape (D, N): node before each node on its route from device d, −1 at d itself.

        The route between d < e is the one in row d.
        """
        return self._searched[2]

    @cached_property
    def _grid_latency(self) -> Floats:
        """Latency of a route of so many hops, summed up as a search sums it."""
        most = int(sum(self.grid[0]))
        return np.concatenate([[0.0], np.cumsum(np.full(most, self.latency[0]))])

    @cached_property
    def component(self) -> Ints:
        """Shape (N,): connected component of each node."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        size = len(self.start) - 1
        some = (np.ones(len(self.target), np.int64), self.target, self.start)
        graph: csr_array[np.int64, tuple[int, int]] = csr_array(some, shape=(size, size))
        found: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
        return found

    def find(self, pairs: Ints, *, paths: bool = False) -> None:
        """Search the routes of these pairs of devices together, which is faster than one by one.

        Where they are far apart, or the widest are asked for, the tables of all pairs are computed.
        With `paths`, `path` may be asked for; else only `cost`.
        """
        if "_searched" in vars(self) or (self.grid[0] and not paths):
            return
        ends = np.unique(np.sort(pairs.reshape(-1, 2), axis=1), axis=0)
        new = [(a, b) for a, b in ends.tolist() if (a, b) not in self._known]
        found = None
        if new and not self.widest:
            asked = np.array(new, np.int64)
            found = fewest_hops_between(
                self.start, self.target, self.latency, self.bandwidth, asked
            )
        if found is not None:
            self._known.update(zip(new, found, strict=True))
        elif new:
            _ = self._searched

    def path(self, a: int, b: int) -> list[int]:
        """Return the nodes on the route from device a to device b, both included."""
        low, high = min(a, b), max(a, b)
        known = self._single(low, high)
        if known is not None:
            nodes = known[0]
        else:
            nodes = [high]
            while nodes[-1] != low:
                nodes.append(int(self.previous[low, nodes[-1]]))
            nodes.reverse()
        return nodes if a == low else nodes[::-1]

    def cost(self, a: int, b: int) -> tuple[float, float]:
        """Return the sum of the latencies from device a to b, in s, and the least bandwidth."""
        if self.grid[0]:
            hops = grid_hops(*self.grid, a, b)
            return float(self._grid_latency[hops]), float(self.bandwidth[0]) if hops else np.inf
        known = self._single(min(a, b), max(a, b))
        if known is not None:
            return known[1:]
        return float(self.latency_s[a, b]), float(self.bytes_per_s[a, b])

    def _single(self, low: int, high: int) -> Found | None:
        """Return the route of a single pair; None once all routes are in tables."""
        if "_searched" in vars(self):
            return None
        if (low, high) not in self._known:
            self.find(np.array([[low, high]]), paths=True)
        return self._known.get((low, high))

    def hops(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Return the links on the route from a to b, each in the direction of travel."""
        return pairwise(self.path(a, b))


def route(
    devices: int,
    nodes: int,
    links: Ints,
    latency_s: Floats,
    bytes_per_s: Floats,
    *,
    widest: bool,
    grid: tuple[tuple[int, ...], bool] = ((), False),
) -> Routes:
    """Return the routes over a graph; of parallel links the widest, then the fastest, is used.

    `grid` has the sides of the grid that it may be, and whether it wraps.
    """
    from scipy.sparse import coo_array

    ends, latency, bandwidth = np.sort(links, axis=1), latency_s, bytes_per_s
    pair = ends[:, 0] * nodes + ends[:, 1]
    if (pair[1:] <= pair[:-1]).any():  # else they are in order: sorting millions takes seconds
        order = np.lexsort((latency_s, -bytes_per_s, pair))
        order = order[np.diff(pair[order], prepend=-1) > 0]
        ends, latency, bandwidth = ends[order], latency_s[order], bytes_per_s[order]
    both = np.concatenate([ends, ends[:, ::-1]])
    which = np.tile(np.arange(len(ends)), 2)
    matrix = coo_array((which + 1, (both[:, 0], both[:, 1])), shape=(nodes, nodes)).tocsr()
    matrix.sort_indices()
    link = matrix.data - 1
    return Routes(
        devices,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int64),
        latency[link] if len(link) else np.zeros(0),
        bandwidth[link] if len(link) else np.zeros(0),
        widest,
        grid if is_even_grid(*grid, links, latency_s, bytes_per_s) else ((), False),
    )


def fewest_hops_between(
    start: Ints, target: Ints, latency: Floats, bandwidth: Floats, pairs: Ints
) -> list[Found] | None:
    """Return the route of each pair of nodes; None if `MOST_LINKS` are looked at before.

    The route of fewest hops, of those the widest, of those the fastest, of those the one found
    first, as `routing.Routes` finds it in a search of its first node's whole row.
    """
    if not len(target):
        return [([a], 0.0, math.inf) for a, _ in pairs.tolist()]
    nodes, degree = len(start) - 1, np.diff(start)
    low, high = pairs.T
    # devices on one link each, all alike, behind one switch: one search serves them all
    only = np.append(target, -1)[np.minimum(start[:-1], len(target))]
    leaves = (degree[low] == 1) & (only[low] != high)
    begins = np.where(leaves, only[low], low)
    leaf_ends = (degree[high] == 1) & (begins != high)
    ends = np.where(leaf_ends, only[high], high)
    wide = np.where(leaves, bandwidth[start[low] * leaves], np.inf)
    far = np.where(leaves, latency[start[low] * leaves], 0.0)
    kinds, which = np.unique(np.stack([begins, ends, wide, far]), axis=1, return_inverse=True)
    sought = kinds[:2].T.astype(np.int64)
    found: list[Found] = []
    looked = 0
    step = max(1, TOGETHER // nodes)
    for at in range(0, len(sought), step):
        some = slice(at, at + step)
        paths, more = _side_by_side(
            start, target, latency, bandwidth, sought[some], kinds[2, some], kinds[3, some],
            MOST_LINKS - looked,
        )  # fmt: skip
        looked += more
        if paths is None:
            return None
        found += paths
    result = []
    for k, ((a, b), kind) in enumerate(zip(pairs.tolist(), which.ravel().tolist(), strict=True)):
        path, length, width = found[kind]
        if leaf_ends[k]:
            last = start[b]
            length, width = length + float(latency[last]), min(width, float(bandwidth[last]))
        path = [a] * bool(leaves[k]) + path + [b] * bool(leaf_ends[k])
        result.append((path, length, width))
    return result


def _side_by_side(
    start: Ints,
    target: Ints,
    latency: Floats,
    bandwidth: Floats,
    pairs: Ints,
    wide: Floats,
    far: Floats,
    most: int,
) -> tuple[list[Found] | None, int]:
    """Return the routes, None if more than `most` links are looked at; and how many were.

    Searches begin with a least bandwidth and a latency that are given.
    """  # fmt: skip
    count, nodes = len(pairs), len(start) - 1
    seen = np.zeros((count, nodes), np.bool_)
    pair, node = np.arange(count), pairs[:, 0].copy()
    seen[pair, node] = True
    levels: list[tuple[Ints, Ints]] = []  # nodes, and places of their parents a level before
    paths: list[Found] = [([end], 0.0, np.inf) for end in pairs[:, 0].tolist()]
    parent = np.full(count, -1)
    looked = 0
    while True:
        levels.append((node, parent))
        arrived = node == pairs[pair, 1]
        for place in np.flatnonzero(arrived).tolist():
            path = _back(levels, place)
            paths[int(pair[place])] = path, float(far[place]), float(wide[place])
        done = np.zeros(count, np.bool_)
        done[pair[arrived]] = True
        going = np.flatnonzero(~done[pair])
        if not len(going):
            return paths, looked
        degree = start[node[going] + 1] - start[node[going]]
        looked += int(degree.sum())
        if looked > most:
            return None, looked
        old = np.repeat(going, degree)
        within = np.arange(len(old)) - np.repeat(np.cumsum(degree) - degree, degree)
        link = start[node[old]] + within
        fresh = ~seen[pair[old], target[link]]
        old, link = old[fresh], link[fresh]
        width = np.minimum(wide[old], bandwidth[link])
        length = far[old] + latency[link]
        key = pair[old] * nodes + target[link]
        order = np.lexsort((length, -width, key))  # stable: of equals the one found first
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        best = order[first]
        # a search goes on in the order in which it has met the nodes, as a queue would
        best = best[np.argsort(np.minimum.reduceat(order, first))] if len(first) else best
        pair, node, parent = pair[old[best]], target[link[best]], old[best]
        wide, far = width[best], length[best]
        seen[pair, node] = True


def _back(levels: list[tuple[Ints, Ints]], place: int) -> list[int]:
    path = []
    for node, parent in reversed(levels):
        path.append(int(node[place]))
        place = int(parent[place])
    return path[::-1]


def grid_links(sides: tuple[int, ...], wraps: bool) -> Ints:
    """Return the links of a mesh, or of a torus if it wraps; shape (E, 2), lower number first.

    Devices are numbered in row-major order.
    """
    index = np.arange(int(np.prod(sides))).reshape(sides)
    pairs = []
    for axis, side in enumerate(sides):
        ahead = np.roll(index, -1, axis)
        # around a side of two, the link back is the link there
        keep = slice(None) if wraps and side > 2 else slice(0, side - 1)
        cut = tuple(keep if a == axis else slice(None) for a in range(len(sides)))
        pairs.append(np.stack([index[cut].ravel(), ahead[cut].ravel()], axis=1))
    return np.sort(np.concatenate(pairs), axis=1)


def is_even_grid(
    sides: tuple[int, ...], wraps: bool, links: Ints, latency_s: Floats, bytes_per_s: Floats
) -> bool:
    """Whether the links form the grid, each once, with equal costs."""
    if not sides or not len(links):
        return False
    wanted = grid_links(sides, wraps)
    if wanted.shape != links.shape:
        return False
    ends = np.sort(links, axis=1)
    same = all(
        np.array_equal(a, b) for a, b in zip(_ordered(wanted).T, _ordered(ends).T, strict=True)
    )
    return same and bool(
        (latency_s == latency_s[0]).all() and (bytes_per_s == bytes_per_s[0]).all()
    )


def grid_hops(sides: tuple[int, ...], wraps: bool, a: int, b: Number) -> Number:
    """Return the number of links on a shortest route from device a to b, or to each of b."""
    hops, step = b - b, 1
    for side in reversed(sides):
        away = abs(b // step % side - a // step % side)
        # of x and side − x the smaller: devices may be many, or one
        hops += (side - abs(side - 2 * away)) // 2 if wraps else away
        step *= side
    return hops


def _ordered(links: Ints) -> Ints:
    ordered: Ints = links[np.lexsort(links.T)]
    return ordered
