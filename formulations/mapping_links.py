"""The load of links: how many seconds per batch the messages over each link take in turn.

    load_l = Σ {bytes of a message : its route passes l} / bandwidth_l,  l a link and a direction

The objective "busiest-link" is max_l load_l. Activations and gradients go along the matchings;
an all-reduce is counted as a ring, each of whose links carries 2(R−1)/R of the parameters.

What no mapping is below:

1. *Devices*: a device of stage s sends o_s bytes over its own links, of bandwidth c_d together.
   With both sorted, the k-th largest o meets at best the k-th largest c.
2. *Routes*: the narrowest link of a route carries at least its message, so that the conditions of
   `mapping_bound` hold for message costs bytes / bandwidth, for messages and rings apart.
3. *Islands*: what leaves an island passes the least cut between it and all other devices.
   With n_sb devices of stage s in island b, e_sb messages of boundary s within b, w_sb whether b
   holds the whole ring, u_sb whether the ring leaves b, the program of `island_milp` holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyomo.environ as pyo
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from ..instances import Mapping, StageCosts
from ..instances.arrays import Floats, Ints
from ..instances.topologies import Topology
from .mapping import MappingCosts


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


def link_traffic(costs: StageCosts, problem: Mapping) -> LinkTraffic:
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


@njit(cache=True)
def _via(previous, key, nodes):  # type: ignore[no-untyped-def]
    via = np.full(previous.shape, -1, np.int32)
    for d in range(previous.shape[0]):
        for v in range(previous.shape[1]):
            u = previous[d, v]
            if u >= 0:
                via[d, v] = np.searchsorted(key, min(u, v) * nodes + max(u, v))
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
        detour=np.full(costs.stages, np.inf),
        floor=0.0,
    )


def device_bound(problem: Mapping, traffic: LinkTraffic) -> float:
    """Return the bound of condition 1, in seconds."""
    bandwidth = np.zeros(problem.topology.size + problem.topology.switches)
    np.add.at(bandwidth, traffic.ends.ravel(), np.repeat(traffic.bytes_per_s, 2))
    usable = np.sort(bandwidth[problem.topology.usable])[::-1][: problem.stages * problem.replicas]
    down, up = traffic.forward, traffic.backward
    leaves = down + np.append(0.0, up[:-1]) + traffic.ring
    enters = np.append(0.0, down[:-1]) + up + traffic.ring
    most = (np.sort(np.repeat(each, problem.replicas))[::-1] / usable for each in (leaves, enters))
    return max(float(each.max()) for each in most)


def island_cuts(topology: Topology, traffic: LinkTraffic, names: Ints) -> Floats:
    """Return the bandwidth between each island and all other usable devices, shape (B,)."""
    bandwidth = traffic.bytes_per_s
    island = np.full(topology.size + topology.switches, -1)
    island[topology.usable] = topology.island[topology.usable]
    first, second = island[traffic.ends[:, 0]], island[traffic.ends[:, 1]]
    if (island >= 0).all():  # nothing in between: the cut is the links across
        across = first != second
        return np.array(
            [bandwidth[across & ((first == b) | (second == b))].sum() for b in names.tolist()]
        )
    cuts = []
    nodes = len(island)
    # whole numbers, rounded up, so that the flow is never below the true one
    scale = 2**30 / max(1.0, float(bandwidth[np.isfinite(bandwidth)].sum()))
    capacity = np.ceil(np.minimum(bandwidth * scale, 2**30)).astype(np.int64)
    for b in names.tolist():
        inside = np.flatnonzero(island == b)
        outside = np.flatnonzero((island >= 0) & (island != b))
        rows = np.concatenate([*traffic.ends.T, np.full(len(inside), nodes), outside])
        columns = np.concatenate([*traffic.ends.T[::-1], inside, np.full(len(outside), nodes + 1)])
        free = np.full(len(inside) + len(outside), 2**30)
        values = np.concatenate([capacity, capacity, free]).astype(np.int32)
        graph = coo_array((values, (rows, columns)), shape=(nodes + 2, nodes + 2)).tocsr()
        cuts.append(maximum_flow(graph, nodes, nodes + 1).flow_value / scale)
    return np.array(cuts)


def island_milp(problem: Mapping, traffic: LinkTraffic, names: Ints) -> pyo.ConcreteModel:
    """Return the program of condition 3; its objective in milliseconds."""
    topology, replicas = problem.topology, problem.replicas
    room = np.array([(topology.island[topology.usable] == b).sum() for b in names])
    cut = island_cuts(topology, traffic, names)
    model = pyo.ConcreteModel("busiest link by islands")
    model.S = pyo.RangeSet(0, problem.stages - 1)
    model.E = pyo.RangeSet(0, problem.stages - 2)
    model.B = pyo.RangeSet(0, len(names) - 1)
    most = {b: int(min(room[b], replicas)) for b in model.B}
    model.n = pyo.Var(
        model.S, model.B, domain=pyo.NonNegativeIntegers, bounds=lambda _m, _s, b: (0, most[b])
    )
    model.e = pyo.Var(model.E, model.B, bounds=lambda _m, _s, b: (0, most[b]))
    model.w = pyo.Var(model.S, model.B, domain=pyo.Binary)
    model.u = pyo.Var(model.S, model.B, domain=pyo.Binary)
    model.T = pyo.Var(domain=pyo.NonNegativeReals)
    model.objective = pyo.Objective(expr=model.T)

    def full(m: pyo.ConcreteModel, s: int) -> object:
        return sum(m.n[s, b] for b in m.B) == replicas

    def fits(m: pyo.ConcreteModel, b: int) -> object:
        return sum(m.n[s, b] for s in m.S) <= int(room[b])

    def from_here(m: pyo.ConcreteModel, s: int, b: int) -> object:
        return m.e[s, b] <= m.n[s, b]

    def to_here(m: pyo.ConcreteModel, s: int, b: int) -> object:
        return m.e[s, b] <= m.n[s + 1, b]

    def whole(m: pyo.ConcreteModel, s: int, b: int) -> object:
        return m.n[s, b] >= replicas * m.w[s, b]

    def ring_leaves(m: pyo.ConcreteModel, s: int, b: int) -> object:
        return m.n[s, b] <= most[b] * (m.u[s, b] + m.w[s, b])

    def load(m: pyo.ConcreteModel, b: int, down: Floats, up: Floats) -> object:
        milliseconds = {
            name: 1e3 * values / cut[b]
            for name, values in (("down", down), ("up", up), ("ring", traffic.ring))
        }
        return (
            sum(
                float(milliseconds["down"][s]) * (m.n[s, b] - m.e[s, b])
                + float(milliseconds["up"][s]) * (m.n[s + 1, b] - m.e[s, b])
                for s in m.E
            )
            + sum(float(milliseconds["ring"][s]) * m.u[s, b] for s in m.S)
            <= m.T
        )

    def leaves(m: pyo.ConcreteModel, b: int) -> object:
        return load(m, b, traffic.forward, traffic.backward)

    def enters(m: pyo.ConcreteModel, b: int) -> object:
        return load(m, b, traffic.backward, traffic.forward)

    model.full_rule = pyo.Constraint(model.S, rule=full)
    model.fits_rule = pyo.Constraint(model.B, rule=fits)
    model.from_rule = pyo.Constraint(model.E, model.B, rule=from_here)
    model.to_rule = pyo.Constraint(model.E, model.B, rule=to_here)
    model.whole_rule = pyo.Constraint(model.S, model.B, rule=whole)
    model.ring_rule = pyo.Constraint(model.S, model.B, rule=ring_leaves)
    model.leaves_rule = pyo.Constraint(model.B, rule=leaves)
    model.enters_rule = pyo.Constraint(model.B, rule=enters)
    return model
