"""The busiest link by islands: what leaves an island passes the least cut between it and the rest.

With n_sb devices of stage s in island b, e_sb messages of boundary s within b, w_sb whether b holds
the whole ring, u_sb whether the ring leaves b, the program of `island_milp` bounds the load of
links (`mapping_links`).
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from ..instances import Mapping
from ..instances.arrays import Floats, Ints
from ..instances.topologies import Topology
from .mapping_links import LinkTraffic


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


def island_milp(
    problem: Mapping, traffic: LinkTraffic, names: Ints, per_s: float
) -> pyo.ConcreteModel:
    """Return the program; its objective in units of which `per_s` are a second."""
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
        time = {
            name: per_s * values / cut[b]
            for name, values in (("down", down), ("up", up), ("ring", traffic.ring))
        }
        return (
            sum(
                float(time["down"][s]) * (m.n[s, b] - m.e[s, b])
                + float(time["up"][s]) * (m.n[s + 1, b] - m.e[s, b])
                for s in m.E
            )
            + sum(float(time["ring"][s]) * m.u[s, b] for s in m.S)
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
