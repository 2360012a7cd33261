"""The strong form of latency's integer program: every path pays every cut, whatever H is. Ours.

Beside the symbols of `milp.py`

    symbol       meaning                                                       in the model
    in_{u,v,s}   1 if edge (u, v) enters call s                                into[u,v,s]
    out_{u,v,s}  1 if edge (u, v) leaves call s                                out_of[u,v,s]
    π_v          time that any path ending in v takes at least                 potential[v]

    in_{u,v,s} ≥ x_{v,s} − x_{u,s}                                                       (14)
    out_{u,v,s} ≥ x_{u,s} − x_{v,s}                                                      (15)
    π_v ≥ π_u + time_v + Σ_s c_{u,s} (in_{u,v,s} + out_{u,v,s})                          (16)
    π_v ≥ time_v,   with time_v = q_v x_{v,C} + Σ_s p_{v,s} x_{v,s}                      (17)
    π_v ≤ done_v                                                                         (18)
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo

from .milp_data import CPUS, LatencyData


def add_potentials(m: pyo.ConcreteModel, data: LatencyData) -> None:
    """Add that every path pays for its nodes and for each call that it enters or leaves."""
    unit, p, q, c = data.unit, data.p, data.q, data.c
    nodes, slots = range(len(unit)), range(len(data.calls))
    m.into = pyo.Var(data.edges, slots, bounds=(0, 1))
    m.out_of = pyo.Var(data.edges, slots, bounds=(0, 1))
    m.potential = pyo.Var(nodes, domain=pyo.NonNegativeReals)

    def time(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        where = [(float(q[v]), CPUS), *((float(p[s, v]), s) for s in slots)]
        return pyo.quicksum(t * m.x[unit[v], s] for t, s in where if np.isfinite(t))

    def enters_edge(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(14) in_{u,v,s} ≥ x_{v,s} − x_{u,s}  for all edges (u, v), calls s."""
        return m.into[u, v, s] >= m.x[unit[v], s] - m.x[unit[u], s]

    def leaves_edge(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(15) out_{u,v,s} ≥ x_{u,s} − x_{v,s}  for all edges (u, v), calls s."""
        return m.out_of[u, v, s] >= m.x[unit[u], s] - m.x[unit[v], s]

    def onward(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(16) π_v ≥ π_u + time_v + Σ_s c_{u,s} (in_{u,v,s} + out_{u,v,s})  for all edges."""
        paid = 0.0
        if unit[u] != unit[v]:
            paid = pyo.quicksum(
                float(c[s, u]) * (m.into[u, v, s] + m.out_of[u, v, s]) for s in slots
            )
        return m.potential[v] >= m.potential[u] + time(m, v) + paid

    def begin(m: pyo.ConcreteModel, v: int) -> object:
        """(17) π_v ≥ time_v  for all nodes v."""
        return m.potential[v] >= time(m, v)

    def below(m: pyo.ConcreteModel, v: int) -> object:
        """(18) π_v ≤ done_v  for all nodes v."""
        return m.potential[v] <= m.done[v]

    m.enters_edge = pyo.Constraint(data.edges, slots, rule=enters_edge)
    m.leaves_edge = pyo.Constraint(data.edges, slots, rule=leaves_edge)
    m.onward = pyo.Constraint(data.task.workload.edges.tolist(), rule=onward)
    m.begin = pyo.Constraint(nodes, rule=begin)
    m.below = pyo.Constraint(nodes, rule=below)
