"""Routes between devices: of all pairs as look-up tables, or of the few pairs asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import Floats, Ints
from .few_routes import Found, fewest_hops_between
from .grids import grid_hops, is_even_grid
from .routing_kernel import fewest_hops, widest


@dataclass(frozen=True, eq=False)
class Routes:
    """Point-to-point routes of D devices among N nodes, the same in both directions.

    The tables are computed when first asked for, in O(D · E) time and O(D · N) memory; until then
    the routes that `find` and `path` are asked for are searched one by one.

    Parameters
    ----------
    devices
        D.
    start, target
        Neighbours of node u are target[start[u] : start[u + 1]], increasing; shapes (N + 1,) and
        (2E,).
    latency, bandwidth
        Shape (2E,): of each of these links.
    widest
        Whether the widest route is taken, else that of fewest hops.
    grid
        Sides of the grid that the links are, all alike, and whether it wraps; () for others.
    """

    devices: int
    start: Ints
    target: Ints
    latency: Floats
    bandwidth: Floats
    widest: bool
    grid: tuple[tuple[int, ...], bool] = ((), False)
    _known: dict[tuple[int, int], Found] = field(default_factory=dict)

    @cached_property
    def _searched(self) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """Tables of latency, bandwidth and the node before, by a search from each device."""
        search = widest if self.widest else fewest_hops
        lat, band, previous = search(
            self.devices, len(self.start) - 1, self.start, self.target, self.latency, self.bandwidth
        )
        upper = np.triu_indices(self.devices, 1) if self.devices < 2000 else None
        for table in (lat, band):
            if upper is not None:
                table.T[upper] = table[upper]
            else:  # without two index arrays of the size of the table
                for d in range(self.devices):
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

        Parameters
        ----------
        pairs
            Shape (M, 2).
        paths
            Whether `path` will be asked for; else only `cost`.
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
        """What is known of one route besides the tables; None if they have to be asked."""
        if "_searched" in vars(self):
            return None
        if (low, high) not in self._known:
            self.find(np.array([[low, high]]), paths=True)
        return self._known.get((low, high))

    def hops(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Yield the links on the route from a to b, each in the direction of travel."""
        path = self.path(a, b)
        yield from pairwise(path)


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

    Parameters
    ----------
    grid
        Sides of the grid that it may be, and whether it wraps.
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
