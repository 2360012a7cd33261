"""Rules of the compact program about order: contiguity, positions, and symmetry.

Symbols as in `compact`. Contiguity per device is the paper's; edges and nodes are forward ones:

    z_{v,d} ≥ x_{v,d}                            a slot reaches the nodes on it              (8)
    z_{v,d} ≤ z_{u,d}                            and all before them: edge (u, v)            (9)
    z_{v,d} ≤ x_{v,d} − x_{u,d} + 1              none is on it that follows one outside     (10)

Positions s = 0 … S, each with a slot per kind of device; S + 1 is behind the last. Where CPUs are
free, each node on one is a piece of its own and lies in a gap before, between or behind the
positions, so the order is stated node by node:

    b_{v,s+1} = b_{v,s} + Σ_{d at s} x_{v,d}     before s + 1: before s or at it            (11)
    b_{u,s} ≥ b_{v,s}                            edge (u, v): u is before s if v is         (12)
    b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}        and at or before s if v is, with gaps      (13)
    Σ_{d at s} y_d = 1                           one kind takes each position               (14)
    Σ_{d of kind k} y_d = n_k                    every device has a position                (15)
    x_{v,d} ≤ y_d                                and what is there is on it                 (16)

Devices of a kind are otherwise interchangeable; of what differs only in that, one is kept:

    x_{v,d} ≤ Σ_{u before v} x_{u,d−1}           slots of a kind by their first units       (17)
"""

from __future__ import annotations

import pyomo.environ as pyo

from ...instances.model.contiguity import pipeline_edges
from ..program import at
from .compact_data import CompactData
from .compact_slots import SYMMETRY_UNITS, heaviest_first


def convex_per_device(m: pyo.ConcreteModel, data: CompactData) -> None:
    """No path of forward nodes leaves a device and comes back (the paper's contiguity)."""
    task, unit = data.task, data.graph.unit_of.tolist()
    backward, free = task.workload.backward, task.problem.cpu_split == "free"
    edges = [(u, v) for u, v in task.workload.edges.tolist() if not (backward[u] or backward[v])]
    nodes = sorted({v for edge in edges for v in edge})
    convex = [d for d, k in enumerate(data.kind) if not (free and task.costs.host[k])]
    m.z = pyo.Var(nodes, convex, bounds=(0, 1))

    def here(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(8) z_{v,d} ≥ x_{v,d}  for all nodes v, slots d."""
        placed = at(m, unit[v], d)
        return pyo.Constraint.Skip if isinstance(placed, float) else m.z[v, d] >= placed

    def or_later(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(9) z_{v,d} ≤ z_{u,d}  for all edges (u, v), slots d."""
        return m.z[v, d] <= m.z[u, d]

    def never_again(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(10) z_{v,d} ≤ x_{v,d} − x_{u,d} + 1  for all edges (u, v), slots d."""
        if unit[u] == unit[v]:
            return pyo.Constraint.Skip
        return m.z[v, d] <= at(m, unit[v], d) - at(m, unit[u], d) + 1

    m.here = pyo.Constraint(nodes, convex, rule=here)
    m.or_later = pyo.Constraint(edges, convex, rule=or_later)
    m.never_again = pyo.Constraint(edges, convex, rule=never_again)


def in_pipeline_order(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Every pipeline edge goes forward or stays: the pieces can run one after the other."""
    task, gaps = data.task, data.gaps
    edges = (
        pipeline_edges(task.workload) if gaps else [(u, v) for u, v in data.graph.edges.tolist()]
    )
    unit = data.graph.unit_of.tolist() if gaps else list(range(data.graph.size))
    points = sorted({v for edge in edges for v in edge})
    last = max((s.position for s in data.slots if s.position is not None), default=-1)
    positions = range(last + 1)
    slots_at = [[d for d, s in enumerate(data.slots) if s.position == i] for i in positions]
    m.b = pyo.Var(points, positions, bounds=(0, 1))
    if not gaps:
        for v in points:
            m.b[v, 0].fix(0)

    def on(m: pyo.ConcreteModel, v: int, s: int) -> pyo.Expression:
        return pyo.quicksum(at(m, unit[v], d) for d in slots_at[s])

    def before_next(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """(11) b_{v,s+1} = b_{v,s} + x_{v,s}, b_{v,S+1} = 1  for all v, s; ≥ with gaps."""
        after = m.b[v, s] + on(m, v, s)
        then = m.b[v, s + 1] if s < last else 1.0
        return then >= after if gaps else then == after

    def not_behind(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(12) b_{u,s} ≥ b_{v,s}  for all edges (u, v), positions s."""
        return m.b[u, s] >= m.b[v, s]

    def not_behind_at(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(13) b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}  for all edges (u, v), positions s."""
        return m.b[u, s] + on(m, u, s) >= m.b[v, s] + on(m, v, s)

    m.before_next = pyo.Constraint(points, positions, rule=before_next)
    m.not_behind = pyo.Constraint(edges, positions, rule=not_behind)
    if gaps:
        m.not_behind_at = pyo.Constraint(edges, positions, rule=not_behind_at)
    _kinds_take_positions(m, data, slots_at)


def _kinds_take_positions(
    m: pyo.ConcreteModel, data: CompactData, slots_at: list[list[int]]
) -> None:
    kind, count = data.kind, data.task.costs.count

    def one_kind(m: pyo.ConcreteModel, s: int) -> object:
        """(14) Σ_{d at s} y_d = 1  for all positions s that are offered to several kinds."""
        return pyo.quicksum(m.y[d] for d in slots_at[s]) == 1

    def so_many(m: pyo.ConcreteModel, k: int) -> object:
        """(15) Σ_{d of kind k} y_d = n_k  for all kinds k, of n_k devices."""
        return pyo.quicksum(m.y[d] for d in m.y if kind[d] == k) == int(count[k])

    def taken(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(16) x_{v,d} ≤ y_d  for all units v, slots d."""
        return m.x[v, d] <= m.y[d]

    offered = [s for s, slots in enumerate(slots_at) if slots and slots[0] in m.y]
    m.one_kind = pyo.Constraint(offered, rule=one_kind)
    m.so_many = pyo.Constraint(sorted({kind[d] for d in m.y}), rule=so_many)
    m.taken = pyo.Constraint([(v, d) for v, d in m.x if d in m.y], rule=taken)


def break_symmetry(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Devices of a kind are used in the order of their first units, heaviest unit first.

    What lies on a device needs something earlier on the one before it. (Positions in a pipeline
    cannot be exchanged.) Only for the heaviest SYMMETRY_UNITS: the rows grow with the square.
    """
    rank, slots = heaviest_first(data.graph), data.slots
    ranked = [sorted(units, key=rank.__getitem__)[:SYMMETRY_UNITS] for units in data.units_on]
    rows = [
        (i, d)
        for d in range(1, len(slots))
        if slots[d].position is None and slots[d].kind == slots[d - 1].kind
        for i in range(len(ranked[d]))
    ]

    def in_order(m: pyo.ConcreteModel, i: int, d: int) -> object:
        """(17) x_{v,d} ≤ Σ_{u before v} x_{u,d−1}  for the i-th heaviest unit v of slot d."""
        before = [m.x[u, d - 1] for u in ranked[d][:i]]
        return m.x[ranked[d][i], d] <= (pyo.quicksum(before) if before else 0.0)

    m.in_order = pyo.Constraint(rows, rule=in_order)
