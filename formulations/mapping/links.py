"""The load of links: how many seconds per batch the messages over each link take in turn.

    load_l = Σ {bytes of a message : its route passes l} / bandwidth_l,  l a link and a direction

The objective "busiest-link" is max_l load_l. Activations and gradients go along the matchings;
an all-reduce is counted as a ring, each of whose links carries 2(R−1)/R of the parameters.

What no mapping is below:

1. *Devices*: a device of stage s sends o_s bytes over its own links, of bandwidth c_d together.
   With both sorted, the k-th largest o meets at best the k-th largest c.
2. *Routes*: the narrowest link of a route carries at least its message, so that the conditions of
   `bound.py` hold for message costs bytes / bandwidth, for messages and rings apart.
3. *Islands*: `islands.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...instances import DeviceMapping, StageCosts
from ...instances.common.arrays import Floats, Ints
from ...instances.topologies import Topology
from .costs import MappingCosts


@dataclass(frozen=True, eq=False)
class LinkTraffic:
    """Bytes per batch, and the links on every route.

    Parameters
    ----------
    forward, backward
        Shape (S,): what each message of boundary s carries down and up; 0 for the last stage.
    ring
        Shape (S,): what each link of the ring of stage s carries.
    previous
        Shape (D, N): as in `Routes`.
    via
        Shape (D, N): number of the link between a node and its predecessor on the route from d.
    ends
        Shape (E, 2): the nodes of each link, lower one first. Directed link 2k leads from the
        first to the second, 2k + 1 back.
    bytes_per_s
        Shape (E,): bandwidth of each link, in each direction.
    """

    forward: Floats
    backward: Floats
    ring: Floats
    previous: NDArray[np.int32]
    via: NDArray[np.int32]
    ends: Ints
    bytes_per_s: Floats


def link_traffic(costs: StageCosts, problem: DeviceMapping) -> LinkTraffic:
    """Return what the links carry by the definition; O(D · N · log E) time."""
    topology, r, m = problem.topology, problem.replicas, problem.microbatches
    sends = problem.mode != "allr"
    reduces = problem.mode != "p2p" and r > 1
    ends, bandwidth = best_links(topology)
    nodes = topology.size + topology.switches
    previous = topology.routes.previous
    key = ends[:, 0] * nodes + ends[:, 1]  # increasing
    return LinkTraffic(
        forward=np.append(costs.forward_bytes, 0.0) * m * sends,
        backward=np.append(costs.backward_bytes, 0.0) * m * (sends and problem.gradients),
        ring=costs.parameter_bytes * (2.0 * (r - 1) / r * reduces),
        previous=previous,
        via=_via(previous, key, nodes),
        ends=ends,
        bytes_per_s=bandwidth,
    )


def best_links(topology: Topology) -> tuple[Ints, Floats]:
    """Return ends (E, 2) and bandwidths (E,) of the links, in order; of parallel ones the best."""
    ends = np.sort(topology.links, axis=1)
    order = np.lexsort((-topology.bytes_per_s, ends[:, 1], ends[:, 0]))
    ends, bandwidth = ends[order], topology.bytes_per_s[order]
    first = np.ones(len(ends), np.bool_)
    first[1:] = (ends[1:] != ends[:-1]).any(axis=1)
    return ends[first], bandwidth[first]


def _via(previous: NDArray[np.int32], key: Ints, nodes: int) -> NDArray[np.int32]:
    """Number of the link between each node and its predecessor, −1 without one; as `previous`."""
    via = np.full(previous.shape, -1, np.int32)
    for row, before in zip(via, previous.astype(np.int64), strict=True):
        after = np.flatnonzero(before >= 0)
        low, high = np.minimum(before[after], after), np.maximum(before[after], after)
        row[after] = np.searchsorted(key, low * nodes + high)
    return via


def route_costs(costs: MappingCosts, traffic: LinkTraffic, *, rings: bool) -> MappingCosts:
    """Return the mapping problem of condition 2: no latency, no compute, one kind of message."""
    nothing = np.zeros_like(costs.boundary)
    boundary, ring = nothing.copy(), nothing.copy()
    if rings:
        ring[:, 1] = traffic.ring
    else:
        boundary[:, 1] = np.maximum(traffic.forward, traffic.backward)
    return replace(
        costs,
        latency=np.zeros_like(costs.latency),
        base=np.zeros(costs.stages),
        boundary=boundary,
        ring=ring,
        non_ring_lower_bound=np.full(costs.stages, np.inf),
        lower_bound=0.0,
    )


def device_bound(problem: DeviceMapping, traffic: LinkTraffic) -> float:
    """Return the bound of condition 1, in seconds."""
    bandwidth = np.zeros(problem.topology.size + problem.topology.switches)
    np.add.at(bandwidth, traffic.ends.ravel(), np.repeat(traffic.bytes_per_s, 2))
    usable = np.sort(bandwidth[problem.topology.usable])[::-1][: problem.stages * problem.replicas]
    down, up = traffic.forward, traffic.backward
    leaves = down + np.append(0.0, up[:-1]) + traffic.ring
    enters = np.append(0.0, down[:-1]) + up + traffic.ring
    most = (np.sort(np.repeat(each, problem.replicas))[::-1] / usable for each in (leaves, enters))
    return max(float(each.max()) for each in most)
