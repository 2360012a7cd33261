"""Links between devices in the compact integer program of throughput.

With links it matters where data comes from, so nets are told by their sources: a *flow* f goes
from its unit s to its target units. Slots are devices, numbered alike.

    sends_{f,d,e}   1 if the flow passes over the link from device d to device e
    fetches_{f,d}   1 if d brings it in from host memory
    stores_{f,d}    1 if d brings it out to host memory

For integer x the rows below leave the least values, which are those of the definition: for a
target t of f, `sends` is 1 where s is on d and t on e; `fetches` where t is on d, and s on no
linked device; `stores` where s is on d, and t on no linked one. Whatever enters or leaves a device
does so in one of these ways, which keeps the relaxation as strong as without links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyomo.environ as pyo

from ..instances.contiguity import pipeline_edges
from .compact_slots import Slot
from .hypergraph import Hypergraph
from .task import Task

#: x_{v,d} of the program: a variable, or 0 where unit v cannot be on slot d.
X = Callable[[int, int], "pyo.Var | float"]
#: Terms of what a slot pays for the transfers of some passes.
Paid = Callable[[int, Sequence[int]], "list[pyo.Expression]"]


def over_links(m: pyo.ConcreteModel, task: Task, graph: Hypergraph, x: X, scale: float) -> Paid:
    """Add transfers over links and through host memory; return what they cost each device.

    F flows of P pins in all, D devices, L linked pairs: F (D + L) columns, P (2 D + L) rows.
    """
    costs = task.linked_costs
    assert costs.messages is not None
    link = costs.messages.link
    unit = graph.unit_of.tolist()
    nodes_of: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for u, successors in enumerate(task.workload.successors):
        targets = tuple(sorted({unit[v] for v in successors} - {unit[u]}))
        if targets:
            side = int(task.workload.backward[u])
            nodes_of.setdefault((unit[u], targets, side), []).append(u)
    flows = list(nodes_of)
    message = np.array([costs.messages.time[:, nodes_of[f]].sum(axis=1) for f in flows]) / scale
    host = np.array([costs.transfer[:, nodes_of[f]].sum(axis=1) for f in flows]) / scale
    devices = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    linked = {d: [e for e in devices if link[d, e] >= 0] for d in devices}
    numbers = range(len(flows))
    pairs = [(d, e) for d in devices for e in linked[d]]
    m.sends = pyo.Var(numbers, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(numbers, devices, bounds=(0, 1))
    m.stores = pyo.Var(numbers, devices, bounds=(0, 1))
    pins = [(f, t) for f in numbers for t in flows[f][1]]

    def sending(m: pyo.ConcreteModel, f: int, t: int, d: int, e: int) -> object:
        """sends_{f,d,e} ≥ x_{s,d} + x_{t,e} − 1."""
        return m.sends[f, d, e] >= x(flows[f][0], d) + x(t, e) - 1

    def fetching(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """fetches_{f,d} ≥ x_{t,d} − x_{s,d} − Σ_{e linked with d} x_{s,e}."""
        near = pyo.quicksum(x(flows[f][0], e) for e in (d, *linked[d]))
        return m.fetches[f, d] >= x(t, d) - near

    def storing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """stores_{f,d} ≥ x_{s,d} − x_{t,d} − Σ_{e linked with d} x_{t,e}."""
        near = pyo.quicksum(x(t, e) for e in (d, *linked[d]))
        return m.stores[f, d] >= x(flows[f][0], d) - near

    def arriving(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """fetches_{f,d} + Σ_e sends_{f,e,d} ≥ x_{t,d} − x_{s,d}."""
        ways = pyo.quicksum(m.sends[f, e, d] for e in linked[d]) + m.fetches[f, d]
        return ways >= x(t, d) - x(flows[f][0], d)

    def departing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """stores_{f,d} + Σ_e sends_{f,d,e} ≥ x_{s,d} − x_{t,d}."""
        ways = pyo.quicksum(m.sends[f, d, e] for e in linked[d]) + m.stores[f, d]
        return ways >= x(flows[f][0], d) - x(t, d)

    m.sending = pyo.Constraint(pins, pairs, rule=sending)
    m.fetching = pyo.Constraint(pins, devices, rule=fetching)
    m.storing = pyo.Constraint(pins, devices, rule=storing)
    m.arriving = pyo.Constraint(pins, devices, rule=arriving)
    m.departing = pyo.Constraint(pins, devices, rule=departing)

    def paid(d: int, sides: Sequence[int]) -> list[pyo.Expression]:
        terms = []
        for f in numbers if d in linked else ():
            if flows[f][2] in sides:
                terms += [
                    float(message[f, link[d, e]]) * (m.sends[f, d, e] + m.sends[f, e, d])
                    for e in linked[d]
                ]
                fee = float(host[f, costs.kind_of[d]])
                terms.append(fee * (m.fetches[f, d] + m.stores[f, d]))
        return terms

    return paid


def in_some_order(
    m: pyo.ConcreteModel, task: Task, graph: Hypergraph, slots: tuple[Slot, ...], x: X, gaps: bool
) -> None:
    """The pieces can run one after the other, in whatever order of devices.

    rank_v is the place of node v's piece, place_d that of device d; an edge between different
    pieces goes up by at least one. Where CPUs are free (`gaps`), each node on one is a piece.
    """
    unit = graph.unit_of.tolist()
    edges = sorted({(u, v) for u, v in pipeline_edges(task.workload) if unit[u] != unit[v]})
    nodes = sorted({v for edge in edges for v in edge})
    whole = [d for d, s in enumerate(slots) if not (gaps and task.costs.host[s.kind])]
    most = len(whole) - 1 + (len(nodes) if gaps else 0)
    m.place = pyo.Var(whole, bounds=(0, max(most, 0)))
    m.rank = pyo.Var(nodes, bounds=(0, max(most, 0)))
    m.same = pyo.Var(edges, bounds=(0, 1))

    def at_most(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """rank_v ≤ place_d if v is on d."""
        return m.rank[v] <= m.place[d] + most * (1 - x(unit[v], d))

    def at_least(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """rank_v ≥ place_d if v is on d."""
        return m.rank[v] >= m.place[d] - most * (1 - x(unit[v], d))

    def later(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """rank_v ≥ rank_u + 1, or the same piece."""
        return m.rank[v] >= m.rank[u] + 1 - m.same[u, v]

    def together(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """same_{u,v} ≤ 1 + x_{u,d} − x_{v,d}."""
        return m.same[u, v] <= 1 + x(unit[u], d) - x(unit[v], d)

    def in_a_piece(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """same_{u,v} ≤ Σ_{d with one piece} x_{v,d}."""
        return m.same[u, v] <= pyo.quicksum(x(unit[v], d) for d in whole)

    m.at_most = pyo.Constraint(nodes, whole, rule=at_most)
    m.at_least = pyo.Constraint(nodes, whole, rule=at_least)
    m.later = pyo.Constraint(edges, rule=later)
    m.together = pyo.Constraint(edges, whole, rule=together)
    if gaps:
        m.in_a_piece = pyo.Constraint(edges, rule=in_a_piece)
