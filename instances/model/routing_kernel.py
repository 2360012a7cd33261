"""Kernels for shortest routes between all pairs of devices."""

from __future__ import annotations

import numpy as np

from ..common.kernel import kernel


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
