"""The busiest link by islands: what leaves an island passes the least cut between it and the rest.

A relaxation of the mapping for the busiest link (`links.py`). S stages × R replicas, islands i
of V_i usable devices:

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

import numpy as np
import pyomo.environ as pyo
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from ...instances import DeviceMapping
from ...instances.common.arrays import Floats, Ints
from ...instances.topologies import Topology
from .links import LinkTraffic


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
    """Which islands hold how much of a stage, its messages and its ring."""
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
    """What passes the cut of each island, either way; its bandwidth in bytes per unit of time."""
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
