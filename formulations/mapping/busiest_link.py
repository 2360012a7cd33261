"""Traffic on links per batch, and lower bounds on the busiest link.

    load_l = Σ {bytes of a message : its route passes l} / bandwidth_l,  l a link and a direction

The objective "busiest-link" is max_l load_l, in seconds. Activations and gradients go along the
matchings; an all-reduce is counted as a ring, each of whose links carries 2(R−1)/R of the
parameters. Three lower bounds:

1. *Devices*: a device of stage s sends o_s bytes over its own links, of bandwidth c_d together.
   With both sorted, the k-th largest o meets at best the k-th largest c.
2. *Routes*: the narrowest link of a route carries at least its message, so that the conditions of
   `bound.py` hold for message costs bytes / bandwidth, for messages and rings apart.
3. *Islands*: the data that leaves an island passes the least cut between it and the rest. The bound
   is that of an integer program. S stages × R replicas, islands i of V_i usable devices:

    symbol      meaning                                                         in the model
    n_{s,i}     devices of stage s in island i                                  n[s,i]
    k_{s,i}     messages of boundary s that stay within island i                stay[s,i]
    z_{s,i}     1 if island i holds the whole ring of stage s                   z[s,i]
    l_{s,i}     1 if the ring of stage s leaves island i                        leave[s,i]
    T           the busiest link                                                T
    f_s, b_s    bytes of messages of boundary s, down and up
    r_s         bytes over each link of the ring of stage s
    B_i         bandwidth of the least cut between island i and all other usable devices

    minimise  T                                                                           (0)

    Σ_i n_{s,i} = R                                                                       (1)
    Σ_s n_{s,i} ≤ V_i                                                                     (2)
    k_{s,i} ≤ n_{s,i}                                                                     (3)
    k_{s,i} ≤ n_{s+1,i}                                                                   (4)
    n_{s,i} ≥ R z_{s,i}                                                                   (5)
    n_{s,i} ≤ min(V_i, R) (l_{s,i} + z_{s,i})                                             (6)
    Σ_s f_s (n_{s,i} − k_{s,i}) + b_s (n_{s+1,i} − k_{s,i}) + r_s l_{s,i} ≤ B_i T         (7)
    Σ_s b_s (n_{s,i} − k_{s,i}) + f_s (n_{s+1,i} − k_{s,i}) + r_s l_{s,i} ≤ B_i T         (8)

The data that leaves an island (7) is the messages down from its devices and up from those of the
next stage, less those that stay, and one link of each ring that is not all inside; what enters (8)
is the mirror image. The links of the cut carry all of it, so the busiest one at least its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from ...instances import DeviceMapping, StageCosts
from ...instances.common.arrays import Floats, Ints
from ...instances.model.topology import Topology
from .costs import MappingCosts


@dataclass(frozen=True, eq=False)
class LinkTraffic:
    """Bytes per batch of each message, and the links on every route."""

    # forward, backward: (S,): what each message of boundary s carries down and up; 0 for the last
    # stage
    forward: Floats
    backward: Floats
    ring: Floats  # (S,): what each link of the ring of stage s carries
    previous: NDArray[np.int32]  # (D, N): as in `Routes`
    # (D, N): number of the link between a node and its predecessor on the route from d
    via: NDArray[np.int32]
    # (E, 2): the nodes of each link, lower one first. Directed link 2k leads from the first to the
    # second, 2k + 1 back.
    ends: Ints
    bytes_per_s: Floats  # (E,): bandwidth of each link, in each direction


def link_traffic(costs: StageCosts, problem: DeviceMapping) -> LinkTraffic:
    """Return the traffic of a mapping problem; O(D · N · log E) time."""
    topology, r, m = problem.topology, problem.replicas, problem.microbatches
    sends = problem.mode != "allr"
    reduces = problem.mode != "p2p" and r > 1
    nodes, routes = topology.size + topology.switches, topology.routes
    first = np.repeat(np.arange(nodes), np.diff(routes.start))
    up = first < routes.target  # each link once, in order
    ends = np.stack([first, routes.target], axis=1)[up]
    key = ends[:, 0] * nodes + ends[:, 1]
    return LinkTraffic(
        forward=np.append(costs.forward_bytes, 0.0) * m * sends,
        backward=np.append(costs.backward_bytes, 0.0) * m * (sends and problem.gradients),
        ring=costs.parameter_bytes * (2.0 * (r - 1) / r * reduces),
        previous=routes.previous,
        via=_via(routes.previous, key, nodes),
        ends=ends,
        bytes_per_s=routes.bandwidth[up],
    )


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
    scale = 2**30 / (float(bandwidth[np.isfinite(bandwidth)].sum()) or 1.0)
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


def island_milp(
    problem: DeviceMapping, traffic: LinkTraffic, names: Ints, per_s: float
) -> pyo.ConcreteModel:
    """Return the program over the islands `names`, in units of which `per_s` are a second."""
    topology = problem.topology
    size = np.array([(topology.island[topology.usable] == i).sum() for i in names])
    m = pyo.ConcreteModel("busiest link by islands")
    _variables(m, problem, size)
    _devices(m, problem, size)
    _loads(m, problem, traffic, island_cuts(topology, traffic, names) / per_s)
    m.objective = pyo.Objective(expr=m.T)
    return m


def _variables(m: pyo.ConcreteModel, problem: DeviceMapping, size: Ints) -> None:
    stages, islands = range(problem.stages), range(len(size))

    def most(_m: pyo.ConcreteModel, _s: int, i: int) -> tuple[int, int]:
        return 0, int(min(size[i], problem.replicas))

    m.n = pyo.Var(stages, islands, domain=pyo.NonNegativeIntegers, bounds=most)
    m.stay = pyo.Var(stages[:-1], islands, bounds=most)
    m.z = pyo.Var(stages, islands, domain=pyo.Binary)
    m.leave = pyo.Var(stages, islands, domain=pyo.Binary)
    m.T = pyo.Var(domain=pyo.NonNegativeReals)


def _devices(m: pyo.ConcreteModel, problem: DeviceMapping, size: Ints) -> None:
    """Add (1) to (6): devices, messages and rings by island."""
    stages, islands, replicas = range(problem.stages), range(len(size)), problem.replicas

    def full(m: pyo.ConcreteModel, s: int) -> object:
        """(1) Σ_i n_{s,i} = R  for all stages s."""
        return pyo.quicksum(m.n[s, i] for i in islands) == replicas

    def fits(m: pyo.ConcreteModel, i: int) -> object:
        """(2) Σ_s n_{s,i} ≤ V_i  for all islands i."""
        return pyo.quicksum(m.n[s, i] for s in stages) <= int(size[i])

    def from_here(m: pyo.ConcreteModel, s: int, i: int) -> object:
        """(3) k_{s,i} ≤ n_{s,i}  for all boundaries s, islands i."""
        return m.stay[s, i] <= m.n[s, i]

    def to_here(m: pyo.ConcreteModel, s: int, i: int) -> object:
        """(4) k_{s,i} ≤ n_{s+1,i}  for all boundaries s, islands i."""
        return m.stay[s, i] <= m.n[s + 1, i]

    def whole(m: pyo.ConcreteModel, s: int, i: int) -> object:
        """(5) n_{s,i} ≥ R z_{s,i}  for all stages s, islands i."""
        return m.n[s, i] >= replicas * m.z[s, i]

    def ring_leaves(m: pyo.ConcreteModel, s: int, i: int) -> object:
        """(6) n_{s,i} ≤ min(V_i, R) (l_{s,i} + z_{s,i})  for all stages s, islands i."""
        return m.n[s, i] <= int(min(size[i], replicas)) * (m.leave[s, i] + m.z[s, i])

    m.full = pyo.Constraint(stages, rule=full)
    m.fits = pyo.Constraint(islands, rule=fits)
    m.from_here = pyo.Constraint(stages[:-1], islands, rule=from_here)
    m.to_here = pyo.Constraint(stages[:-1], islands, rule=to_here)
    m.whole = pyo.Constraint(stages, islands, rule=whole)
    m.ring_leaves = pyo.Constraint(stages, islands, rule=ring_leaves)


def _loads(m: pyo.ConcreteModel, problem: DeviceMapping, traffic: LinkTraffic, cut: Floats) -> None:
    """Add (7) and (8); `bandwidth` of each island's cut is in bytes per unit of time."""
    stages = range(problem.stages)

    def load(m: pyo.ConcreteModel, i: int, down: Floats, up: Floats) -> pyo.Expression:
        down, up, ring = (sent / cut[i] for sent in (down, up, traffic.ring))
        messages = pyo.quicksum(
            float(down[s]) * (m.n[s, i] - m.stay[s, i])
            + float(up[s]) * (m.n[s + 1, i] - m.stay[s, i])
            for s in stages[:-1]
        )
        return messages + pyo.quicksum(float(ring[s]) * m.leave[s, i] for s in stages)

    def leaves(m: pyo.ConcreteModel, i: int) -> object:
        """(7) Σ_s f_s (n_{s,i} − k_{s,i}) + b_s (n_{s+1,i} − k_{s,i}) + r_s l_{s,i} ≤ B_i T  for
        all islands i."""
        return load(m, i, traffic.forward, traffic.backward) <= m.T

    def enters(m: pyo.ConcreteModel, i: int) -> object:
        """(8) Σ_s b_s (n_{s,i} − k_{s,i}) + f_s (n_{s+1,i} − k_{s,i}) + r_s l_{s,i} ≤ B_i T  for
        all islands i."""
        return load(m, i, traffic.backward, traffic.forward) <= m.T

    m.leaves = pyo.Constraint(range(len(cut)), rule=leaves)
    m.enters = pyo.Constraint(range(len(cut)), rule=enters)
