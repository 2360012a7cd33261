"""Rules of the compact program about order: contiguity, positions, and symmetry."""

from __future__ import annotations

from collections.abc import Callable

import pyomo.environ as pyo

from ..instances.contiguity import pipeline_edges
from .compact_slots import Slot, heaviest_first
from .hypergraph import Hypergraph
from .task import Task

#: Units whose order of devices is told; beyond it rows are dear and symmetry is broken anyway.
SYMMETRY_UNITS = 20

#: x_{v,d} of the program: a variable, or 0 where unit v cannot be on slot d.
X = Callable[[int, int], "pyo.Var | float"]


def convex_per_device(
    m: pyo.ConcreteModel, task: Task, graph: Hypergraph, slots: tuple[Slot, ...], x: X
) -> None:
    """No path of forward nodes leaves a device and comes back (the paper's contiguity)."""
    unit = graph.unit_of.tolist()
    backward, free = task.workload.backward, task.throughput.cpu_split == "free"
    edges = [(u, v) for u, v in task.workload.edges.tolist() if not (backward[u] or backward[v])]
    nodes = sorted({v for edge in edges for v in edge})
    convex = [d for d, s in enumerate(slots) if not (free and task.costs.host[s.kind])]
    m.z = pyo.Var(nodes, convex, bounds=(0, 1))

    def here(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """z_{v,d} ≥ x_{v,d}."""
        there = x(unit[v], d)
        return pyo.Constraint.Skip if isinstance(there, float) else m.z[v, d] >= there

    def or_later(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """z_{v,d} ≤ z_{u,d}."""
        return m.z[v, d] <= m.z[u, d]

    def never_again(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """z_{v,d} ≤ x_{v,d} − x_{u,d} + 1."""
        if unit[u] == unit[v]:
            return pyo.Constraint.Skip
        return m.z[v, d] <= x(unit[v], d) - x(unit[u], d) + 1

    m.here = pyo.Constraint(nodes, convex, rule=here)
    m.or_later = pyo.Constraint(edges, convex, rule=or_later)
    m.never_again = pyo.Constraint(edges, convex, rule=never_again)


def in_pipeline_order(
    m: pyo.ConcreteModel,
    task: Task,
    graph: Hypergraph,
    slots: tuple[Slot, ...],
    x: X,
    gaps: bool,
) -> None:
    """Every pipeline edge goes forward or stays: the pieces can run one after the other.

    Slots have positions 1 … S. Where CPUs are free, each node on one is a piece of its own and
    lies in a gap before, between or behind the positions, so order is told node by node.
    """
    edges = pipeline_edges(task.workload) if gaps else [(u, v) for u, v in graph.edges.tolist()]
    unit = graph.unit_of.tolist() if gaps else list(range(graph.size))
    points = sorted({v for edge in edges for v in edge})
    last = max((s.position for s in slots if s.position is not None), default=-1)
    positions = range(last + 1)
    at = [[d for d, s in enumerate(slots) if s.position == i] for i in positions]
    m.b = pyo.Var(points, positions, bounds=(0, 1))

    def on(v: int, s: int) -> object:
        return pyo.quicksum(x(unit[v], d) for d in at[s])

    def before_next(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """b_{v,s+1} = b_{v,s} + x_{v,s}, ≥ if v may lie in the gap between; b_{v,S+1} = 1."""
        after = m.b[v, s] + on(v, s)
        then = m.b[v, s + 1] if s < last else 1.0
        return then >= after if gaps else then == after

    def not_behind(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """b_{u,s} ≥ b_{v,s}: u is before position s if v is."""
        return m.b[u, s] >= m.b[v, s]

    def not_behind_at(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}: u is at or before position s if v is."""
        return m.b[u, s] + on(u, s) >= m.b[v, s] + on(v, s)

    if not gaps:
        for v in points:
            m.b[v, 0].fix(0)
    m.before_next = pyo.Constraint(points, positions, rule=before_next)
    m.not_behind = pyo.Constraint(edges, positions, rule=not_behind)
    if gaps:
        m.not_behind_at = pyo.Constraint(edges, positions, rule=not_behind_at)
    # Kinds of devices take their positions.
    m.one_kind = pyo.Constraint(
        [i for i in positions if at[i] and at[i][0] in m.w],
        rule=lambda m, i: pyo.quicksum(m.w[d] for d in at[i]) == 1,
    )
    kinds = sorted({slots[d].kind for d in m.w})
    m.so_many = pyo.Constraint(
        kinds,
        rule=lambda m, k: (
            pyo.quicksum(m.w[d] for d in m.w if slots[d].kind == k) == int(task.costs.count[k])
        ),
    )
    m.taken = pyo.Constraint(
        [(v, d) for v, d in m.x if d in m.w],
        rule=lambda m, v, d: m.x[v, d] <= m.w[d],
    )


def break_symmetry(
    m: pyo.ConcreteModel, graph: Hypergraph, slots: tuple[Slot, ...], units_on: list[list[int]]
) -> None:
    """Devices of a kind are used in the order of their first units, heaviest unit first.

    x_{v,d} ≤ Σ_{u before v} x_{u,d−1}: what lies on a device needs something earlier on the one
    before it. (Positions in a pipeline cannot be exchanged.)
    Only for the heaviest SYMMETRY_UNITS: the rows grow with the square.
    """
    rank = heaviest_first(graph)
    ranked = [sorted(units, key=rank.__getitem__)[:SYMMETRY_UNITS] for units in units_on]
    rows = [
        (i, d)
        for d in range(1, len(slots))
        if slots[d].position is None and slots[d].kind == slots[d - 1].kind
        for i in range(len(ranked[d]))
    ]

    def in_order(m: pyo.ConcreteModel, i: int, d: int) -> object:
        before = [m.x[u, d - 1] for u in ranked[d][:i]]
        return m.x[ranked[d][i], d] <= (pyo.quicksum(before) if before else 0.0)

    m.in_order = pyo.Constraint(rows, rule=in_order)
