"""Routes between all pairs of devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import Floats, Ints
from ..common.kernel import kernel


@dataclass(frozen=True, eq=False)
class Routes:
    """Point-to-point routes of D devices among N nodes, the same in both directions.

    The tables are computed when first asked for, in O(D · E) time and O(D · N) memory.
    """

    devices: int  # D
    # start, target: neighbours of node u are target[start[u] : start[u + 1]], increasing; shapes (N
    # + 1,) and (2E,)
    start: Ints
    target: Ints
    latency: Floats  # latency, bandwidth: (2E,): of each of these links
    bandwidth: Floats
    widest: bool  # whether the widest route is taken, else that of fewest hops

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

    @property
    def latency_s(self) -> Floats:
        """Shape (D, D): sum of the latencies on the route; 0 on the diagonal."""
        return self._searched[0]

    @property
    def bytes_per_s(self) -> Floats:
        """Shape (D, D): least bandwidth on the route; `inf` on the diagonal, 0 without a route."""
        return self._searched[1]

    @property
    def previous(self) -> NDArray[np.int32]:
        """Shape (D, N): node before each node on its route from device d, −1 at d itself.

        The route between d < e is the one in row d.
        """
        return self._searched[2]

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

    def path(self, a: int, b: int) -> list[int]:
        """Return the nodes on the route from device a to device b, both included."""
        low, high = min(a, b), max(a, b)
        nodes = [high]
        while nodes[-1] != low:
            nodes.append(int(self.previous[low, nodes[-1]]))
        return nodes if a == high else nodes[::-1]

    def hops(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Return the links on the route from a to b, each in the direction of travel."""
        return pairwise(self.path(a, b))


def route(
    devices: int, nodes: int, links: Ints, latency_s: Floats, bytes_per_s: Floats, *, widest: bool
) -> Routes:
    """Return the routes over a graph; of parallel links the widest, then the fastest, is used."""
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
    )


@kernel
def fewest_hops(devices, nodes, start, target, latency, bandwidth):
    """Return routes of fewest links; of those the widest, then the fastest.

    Devices come before switches among the nodes; arcs are sorted by their first node. Returns
    latency and bandwidth of each pair of devices, and the node before each on the route from a
    device, (devices, nodes).
    """
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
            if tail == nodes and hops[u] == hops[queue[tail - 1]]:
                break  # nothing is farther than u
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


@kernel
def widest(devices, nodes, start, target, latency, bandwidth):
    """Return routes of greatest bandwidth; arguments and results as of `fewest_hops`."""
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
