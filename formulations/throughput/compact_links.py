"""Links between devices in the compact integer program of throughput.

With links it matters where data comes from, so nets are split by their sources: a *flow* f goes
from its unit o to its target units t. Slots are devices, numbered alike. Beside `compact`'s symbols

    symbol           meaning                                                     in the model
    sends_{f,d,e}    1 if f passes over the link from device d to device e       sends[f,d,e]
    fetches_{f,d}    1 if d brings f in from host memory                         fetches[f,d]
    stores_{f,d}     1 if d brings f out to host memory                          stores[f,d]
    place_d          place of device d's piece, in whatever order                place[d]
    rank_v           place of node v's piece                                     rank[v]
    same_{u,v}       1 if the nodes of edge (u, v) are in one piece              same[u,v]
    l_{f,d,e}, h_f   time of f over a link, and through host memory

    sends_{f,d,e} ≥ x_{o,d} + x_{t,e} − 1                                                   (18)
    fetches_{f,d} ≥ x_{t,d} − x_{o,d} − Σ_{e linked with d} x_{o,e}                         (19)
    stores_{f,d}  ≥ x_{o,d} − x_{t,d} − Σ_{e linked with d} x_{t,e}                         (20)
    fetches_{f,d} + Σ_e sends_{f,e,d} ≥ x_{t,d} − x_{o,d}                                   (21)
    stores_{f,d}  + Σ_e sends_{f,d,e} ≥ x_{o,d} − x_{t,d}                                   (22)

and device d pays, in (6), for what it sends, gets, fetches and stores:

    Σ_f Σ_e l_{f,d,e} (sends_{f,d,e} + sends_{f,e,d}) + Σ_f h_f (fetches_{f,d} + stores_{f,d})

What alone takes longer than H is 0, without a coefficient. For integer x these rows leave the least
values, which are those of the definition: for a target t of f, `sends` is 1 where o is on d and t
on e; `fetches` where t is on d, and o on no linked device; `stores` where o is on d, and t on no
linked one. Whatever enters or leaves a device does so in one of these ways: (21) and (22), implied,
keep the relaxation as strong as without links.

Contiguous pieces can run one after the other in whatever order of devices, with N places. Where
CPUs are free, each node on one is a piece:

    rank_v ≤ place_d + N (1 − x_{v,d})                                                      (23)
    rank_v ≥ place_d − N (1 − x_{v,d})                                                      (24)
    rank_v ≥ rank_u + 1 − same_{u,v}                                                        (25)
    same_{u,v} ≤ 1 + x_{u,d} − x_{v,d}                                                      (26)
    same_{u,v} ≤ Σ_{d with one piece} x_{v,d}                                               (27)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances.common.arrays import Floats
from ...instances.model.contiguity import pipeline_edges
from ..program import at
from .compact_data import CompactData


@dataclass(frozen=True, eq=False)
class Flows:
    """What passes between units; F flows, times in the program's unit.

    Parameters
    ----------
    source, targets
        Units o and t of each flow.
    side
        Pass of each flow: 0 forward, 1 backward.
    linked
        For each accelerator, those it has a link with.
    by_link
        For each flow and ordered pair of linked devices, l_{f,d,e}.
    by_host
        Shape (F, D): h_f on each device.
    limit
        H.
    """

    source: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]
    side: tuple[int, ...]
    linked: dict[int, list[int]]
    by_link: dict[tuple[int, int], Floats]
    by_host: Floats
    limit: float

    @property
    def pins(self) -> list[tuple[int, int]]:
        """Pairs of a flow and one of its targets."""
        return [(f, t) for f, targets in enumerate(self.targets) for t in targets]

    def paid(self, m: pyo.ConcreteModel, d: int, passes: Sequence[int]) -> list[pyo.Expression]:
        """Return terms of what device d pays for the flows of some passes."""
        terms = []
        for f in (f for f, side in enumerate(self.side) if side in passes and d in self.linked):
            terms += [
                float(self.by_link[d, e][f]) * (m.sends[f, d, e] + m.sends[f, e, d])
                for e in self.linked[d]
                if self.by_link[d, e][f] <= self.limit
            ]
            if self.by_host[f, d] <= self.limit:
                terms.append(float(self.by_host[f, d]) * (m.fetches[f, d] + m.stores[f, d]))
        return terms


def flows_of(data: CompactData) -> Flows:
    """Return the flows of a task with links."""
    task, unit = data.task, data.graph.unit_of.tolist()
    costs = task.linked_costs
    assert costs.messages is not None
    link = costs.messages.link
    nodes_of: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for u, successors in enumerate(task.workload.successors):
        targets = tuple(sorted({unit[v] for v in successors} - {unit[u]}))
        if targets:
            side = int(task.workload.backward[u])
            nodes_of.setdefault((unit[u], targets, side), []).append(u)
    flows = list(nodes_of)
    member = np.zeros((len(flows), task.workload.n))
    for f, nodes in enumerate(nodes_of.values()):
        member[f, nodes] = 1.0
    message, host = (
        member @ times.T / data.scale for times in (costs.messages.time, costs.transfer)
    )
    devices = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    linked = {d: [e for e in devices if link[d, e] >= 0] for d in devices}
    return Flows(
        source=tuple(o for o, _, _ in flows),
        targets=tuple(targets for _, targets, _ in flows),
        side=tuple(side for _, _, side in flows),
        linked=linked,
        by_link={(d, e): message[:, link[d, e]] for d in devices for e in linked[d]},
        by_host=host[:, costs.kind_of],
        limit=data.limit,
    )


def add_flows(m: pyo.ConcreteModel, flows: Flows) -> None:
    """Add transfers over links and through host memory.

    F flows of P pins in all, D devices, L linked pairs: F (D + L) columns, P (2 D + L) rows.
    """
    linked, source = flows.linked, flows.source
    devices, pairs, pins = list(linked), list(flows.by_link), flows.pins
    numbers = range(len(source))
    m.sends = pyo.Var(numbers, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(numbers, devices, bounds=(0, 1))
    m.stores = pyo.Var(numbers, devices, bounds=(0, 1))
    for f, d, e in m.sends:
        if flows.by_link[d, e][f] > flows.limit:
            m.sends[f, d, e].fix(0)
    for f, d in m.fetches:
        if flows.by_host[f, d] > flows.limit:
            m.fetches[f, d].fix(0)
            m.stores[f, d].fix(0)

    def sending(m: pyo.ConcreteModel, f: int, t: int, d: int, e: int) -> object:
        """(18) sends_{f,d,e} ≥ x_{o,d} + x_{t,e} − 1  for all pins (f, t), linked d and e."""
        return m.sends[f, d, e] >= at(m, source[f], d) + at(m, t, e) - 1

    def fetching(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(19) fetches_{f,d} ≥ x_{t,d} − x_{o,d} − Σ_{e linked with d} x_{o,e}  for all pins, d."""
        near = pyo.quicksum(at(m, source[f], e) for e in (d, *linked[d]))
        return m.fetches[f, d] >= at(m, t, d) - near

    def storing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(20) stores_{f,d} ≥ x_{o,d} − x_{t,d} − Σ_{e linked with d} x_{t,e}  for all pins, d."""
        near = pyo.quicksum(at(m, t, e) for e in (d, *linked[d]))
        return m.stores[f, d] >= at(m, source[f], d) - near

    def arriving(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(21) fetches_{f,d} + Σ_e sends_{f,e,d} ≥ x_{t,d} − x_{o,d}  for all pins, d."""
        ways = pyo.quicksum(m.sends[f, e, d] for e in linked[d]) + m.fetches[f, d]
        return ways >= at(m, t, d) - at(m, source[f], d)

    def departing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(22) stores_{f,d} + Σ_e sends_{f,d,e} ≥ x_{o,d} − x_{t,d}  for all pins, d."""
        ways = pyo.quicksum(m.sends[f, d, e] for e in linked[d]) + m.stores[f, d]
        return ways >= at(m, source[f], d) - at(m, t, d)

    m.sending = pyo.Constraint(pins, pairs, rule=sending)
    m.fetching = pyo.Constraint(pins, devices, rule=fetching)
    m.storing = pyo.Constraint(pins, devices, rule=storing)
    m.arriving = pyo.Constraint(pins, devices, rule=arriving)
    m.departing = pyo.Constraint(pins, devices, rule=departing)


def in_some_order(m: pyo.ConcreteModel, data: CompactData) -> None:
    """The pieces can run one after the other, in whatever order of devices."""
    unit, gaps = data.graph.unit_of.tolist(), data.gaps
    edges = sorted({(u, v) for u, v in pipeline_edges(data.task.workload) if unit[u] != unit[v]})
    nodes = sorted({v for edge in edges for v in edge})
    whole = [d for d, k in enumerate(data.kind) if not (gaps and data.task.costs.host[k])]
    most = max(0, len(whole) - 1 + (len(nodes) if gaps else 0))
    m.place = pyo.Var(whole, bounds=(0, most))
    m.rank = pyo.Var(nodes, bounds=(0, most))
    m.same = pyo.Var(edges, bounds=(0, 1))

    def at_most(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(23) rank_v ≤ place_d + N (1 − x_{v,d})  for all nodes v, devices d with one piece."""
        return m.rank[v] <= m.place[d] + most * (1 - at(m, unit[v], d))

    def at_least(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(24) rank_v ≥ place_d − N (1 − x_{v,d})  for all nodes v, devices d with one piece."""
        return m.rank[v] >= m.place[d] - most * (1 - at(m, unit[v], d))

    def later(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(25) rank_v ≥ rank_u + 1 − same_{u,v}  for all edges (u, v)."""
        return m.rank[v] >= m.rank[u] + 1 - m.same[u, v]

    def together(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(26) same_{u,v} ≤ 1 + x_{u,d} − x_{v,d}  for all edges (u, v), devices d."""
        return m.same[u, v] <= 1 + at(m, unit[u], d) - at(m, unit[v], d)

    def in_a_piece(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(27) same_{u,v} ≤ Σ_{d with one piece} x_{v,d}  for all edges (u, v), with gaps."""
        return m.same[u, v] <= pyo.quicksum(at(m, unit[v], d) for d in whole)

    m.at_most = pyo.Constraint(nodes, whole, rule=at_most)
    m.at_least = pyo.Constraint(nodes, whole, rule=at_least)
    m.later = pyo.Constraint(edges, rule=later)
    m.together = pyo.Constraint(edges, whole, rule=together)
    if gaps:
        m.in_a_piece = pyo.Constraint(edges, rule=in_a_piece)
