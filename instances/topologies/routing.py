"""Routes between all pairs of devices, as a look-up table of latency and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import coo_array

from ..arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Routes:
    """Point-to-point look-up table of D devices among N nodes, the same in both directions.

    Parameters
    ----------
    latency_s
        Shape (D, D): sum of the latencies on the route; 0 on the diagonal.
    bytes_per_s
        Shape (D, D): least bandwidth on the route; `inf` on the diagonal, 0 without a route.
    previous
        Shape (D, N): node before each node on its route from device d, −1 at d itself. The route
        between d < e is the one in row d.
    """

    latency_s: Floats
    bytes_per_s: Floats
    previous: NDArray[np.int32]

    def path(self, a: int, b: int) -> list[int]:
        """Return the nodes on the route from device a to device b, both included."""
        low, high = min(a, b), max(a, b)
        nodes = [high]
        while nodes[-1] != low:
            nodes.append(int(self.previous[low, nodes[-1]]))
        return nodes[::-1] if a == low else nodes

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
) -> Routes:
    """Return the routes over a graph; of parallel links the widest, then the fastest, is used."""
    order = np.lexsort((latency_s, -bytes_per_s, links.max(axis=1), links.min(axis=1)))
    ends = np.sort(links[order], axis=1)
    first = np.ones(len(ends), bool)
    first[1:] = (ends[1:] != ends[:-1]).any(axis=1)
    ends, latency, bandwidth = ends[first], latency_s[order][first], bytes_per_s[order][first]
    both = np.concatenate([ends, ends[:, ::-1]])
    which = np.tile(np.arange(len(ends)), 2)
    matrix = coo_array((which + 1, (both[:, 0], both[:, 1])), shape=(nodes, nodes)).tocsr()
    matrix.sort_indices()
    start, target, link = matrix.indptr, matrix.indices, matrix.data - 1
    search = _widest if widest else _fewest_hops
    lat, band, previous = search(
        devices,
        nodes,
        start.astype(np.int64),
        target.astype(np.int64),
        latency[link] if len(link) else np.zeros(0),
        bandwidth[link] if len(link) else np.zeros(0),
    )
    upper = np.triu_indices(devices, 1) if devices < 2000 else None
    for table in (lat, band):
        if upper is not None:
            table.T[upper] = table[upper]
        else:  # without two index arrays of the size of the table
            for d in range(devices):
                table[d + 1 :, d] = table[d, d + 1 :]
        table.setflags(write=False)
    previous.setflags(write=False)
    return Routes(lat, band, previous)


@njit(cache=True)
def _fewest_hops(devices, nodes, start, target, latency, bandwidth):  # type: ignore[no-untyped-def]
    lat = np.zeros((devices, devices))
    band = np.zeros((devices, devices))
    previous = np.full((devices, nodes), -1, np.int32)
    hops = np.empty(nodes, np.int64)
    far = np.empty(nodes)
    wide = np.empty(nodes)
    queue = np.empty(nodes, np.int64)
    for source in range(devices):
        hops[:] = -1
        far[:] = 0.0
        wide[:] = 0.0
        hops[source] = 0
        wide[source] = np.inf
        queue[0] = source
        head, tail = 0, 1
        while head < tail:
            u = queue[head]
            head += 1
            for k in range(start[u], start[u + 1]):
                v = target[k]
                if hops[v] < 0:
                    hops[v] = hops[u] + 1
                    queue[tail] = v
                    tail += 1
                elif hops[v] != hops[u] + 1:
                    continue
                w = min(wide[u], bandwidth[k])
                f = far[u] + latency[k]
                if previous[source, v] < 0 or w > wide[v] or (w == wide[v] and f < far[v]):
                    wide[v], far[v] = w, f
                    previous[source, v] = u
        for d in range(devices):
            lat[source, d] = far[d]
            band[source, d] = wide[d]
    return lat, band, previous


@njit(cache=True)
def _widest(devices, nodes, start, target, latency, bandwidth):  # type: ignore[no-untyped-def]
    lat = np.zeros((devices, devices))
    band = np.zeros((devices, devices))
    previous = np.full((devices, nodes), -1, np.int32)
    hops = np.empty(nodes, np.int64)
    far = np.empty(nodes)
    wide = np.empty(nodes)
    done = np.empty(nodes, np.bool_)
    for source in range(devices):
        hops[:] = 0
        far[:] = 0.0
        wide[:] = 0.0
        done[:] = False
        wide[source] = np.inf
        for _ in range(nodes):
            u = -1
            for v in range(nodes):
                if done[v] or wide[v] == 0.0:
                    continue
                if (
                    u < 0
                    or wide[v] > wide[u]
                    or (
                        wide[v] == wide[u]
                        and (hops[v] < hops[u] or (hops[v] == hops[u] and far[v] < far[u]))
                    )
                ):
                    u = v
            if u < 0:
                break
            done[u] = True
            for k in range(start[u], start[u + 1]):
                v = target[k]
                if done[v]:
                    continue
                w = min(wide[u], bandwidth[k])
                h = hops[u] + 1
                f = far[u] + latency[k]
                if w > wide[v] or (w == wide[v] and (h < hops[v] or (h == hops[v] and f < far[v]))):
                    wide[v], hops[v], far[v] = w, h, f
                    previous[source, v] = u
        for d in range(devices):
            lat[source, d] = far[d]
            band[source, d] = wide[d]
    return lat, band, previous
