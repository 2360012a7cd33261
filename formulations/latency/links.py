"""Links between devices in the integer program of latency.

Beside the symbols of `milp.py`

    symbol         meaning                                                       in the model
    sends_{u,s,r}  1 if the output of u passes over the link from call s to r    sends[u,s,r]
    fetches_{u,s}  1 if call s brings it in from host memory                     fetches[u,s]
    stores_{u,s}   1 if call s brings it out to host memory                      stores[u,s]
    l_{u,s,r}      time of u's output over the link
    c_{u,s}        time through host memory

    sends_{u,s,r} ≥ x_{u,s} + x_{v,r} − 1                                                (20)
    fetches_{u,s} ≥ x_{v,s} − x_{u,s} − Σ_{r linked with s} x_{u,r}                      (21)
    stores_{u,s} ≥ x_{u,s} − x_{v,s} − Σ_{r linked with s} x_{v,r}                       (22)
    fetches_{u,s} + Σ_r sends_{u,r,s} ≥ x_{v,s} − x_{u,s}                                (23)
    stores_{u,s} + Σ_r sends_{u,s,r} ≥ x_{u,s} − x_{v,s}                                 (24)

and the transfers in (6) are, in place of Σ_u c_{u,s} (in_{u,s} + out_{u,s}),

    Σ_u c_{u,s} (fetches_{u,s} + stores_{u,s}) + Σ_u Σ_r l_{u,s,r} (sends_{u,s,r} + sends_{u,r,s})

For integer x the rows leave the least values, which are those of the definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyomo.environ as pyo

from ...instances import Latency
from ...instances.common.arrays import Floats
from ..task import Task
from .milp_data import LatencyData


@dataclass(frozen=True, eq=False)
class CallLinks:
    """What transfers take between calls; S calls, n nodes.

    Parameters
    ----------
    linked
        For each call, those on devices that its device has a link with.
    by_link
        For each ordered pair of linked calls, shape (n,): l_{u,s,r}.
    by_host
        Shape (S, n): c_{u,s}.
    """

    linked: tuple[tuple[int, ...], ...]
    by_link: dict[tuple[int, int], Floats]
    by_host: Floats

    def paid(self, m: pyo.ConcreteModel, s: int) -> pyo.Expression:
        """Return what call s pays for its transfers."""
        senders = list(dict.fromkeys(u for u, _ in m.fetches))
        return pyo.quicksum(
            float(self.by_host[s, u]) * (m.fetches[u, s] + m.stores[u, s]) for u in senders
        ) + pyo.quicksum(
            float(self.by_link[s, r][u]) * (m.sends[u, s, r] + m.sends[u, r, s])
            for u in senders
            for r in self.linked[s]
        )


def call_links(task: Task[Latency], device: Sequence[int], scale: float) -> CallLinks:
    """Return what transfers take between calls, in units of `scale`, given their devices."""
    costs = task.linked_costs
    assert costs.messages is not None
    link, time = costs.messages.link, costs.messages.time / scale
    slots = range(len(device))
    linked = [tuple(r for r in slots if link[device[s], device[r]] >= 0) for s in slots]
    return CallLinks(
        linked=tuple(linked),
        by_link={(s, r): time[link[device[s], device[r]]] for s in slots for r in linked[s]},
        by_host=costs.transfer[costs.kind_of[list(device)]] / scale,
    )


def add_links(m: pyo.ConcreteModel, links: CallLinks, data: LatencyData) -> None:
    """Add transfers over links and through host memory.

    S calls, m edges: up to n S² columns and m S² rows more.
    """
    edges, unit, linked = data.edges, data.unit, links.linked
    slots, pairs = range(len(linked)), list(links.by_link)
    m.sends = pyo.Var(data.senders, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(data.senders, slots, bounds=(0, 1))
    m.stores = pyo.Var(data.senders, slots, bounds=(0, 1))

    def sending(m: pyo.ConcreteModel, u: int, v: int, s: int, r: int) -> object:
        """(20) sends_{u,s,r} ≥ x_{u,s} + x_{v,r} − 1  for all edges (u, v), linked s and r."""
        return m.sends[u, s, r] >= m.x[unit[u], s] + m.x[unit[v], r] - 1

    def fetching(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(21) fetches_{u,s} ≥ x_{v,s} − x_{u,s} − Σ_{r linked with s} x_{u,r}  for edges, s."""
        near = pyo.quicksum(m.x[unit[u], r] for r in (s, *linked[s]))
        return m.fetches[u, s] >= m.x[unit[v], s] - near

    def storing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(22) stores_{u,s} ≥ x_{u,s} − x_{v,s} − Σ_{r linked with s} x_{v,r}  for edges, s."""
        near = pyo.quicksum(m.x[unit[v], r] for r in (s, *linked[s]))
        return m.stores[u, s] >= m.x[unit[u], s] - near

    def arriving(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(23) fetches_{u,s} + Σ_r sends_{u,r,s} ≥ x_{v,s} − x_{u,s}  for all edges (u, v), s."""
        ways = m.fetches[u, s] + pyo.quicksum(m.sends[u, r, s] for r in linked[s])
        return ways >= m.x[unit[v], s] - m.x[unit[u], s]

    def departing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(24) stores_{u,s} + Σ_r sends_{u,s,r} ≥ x_{u,s} − x_{v,s}  for all edges (u, v), s."""
        ways = m.stores[u, s] + pyo.quicksum(m.sends[u, s, r] for r in linked[s])
        return ways >= m.x[unit[u], s] - m.x[unit[v], s]

    m.sending = pyo.Constraint(edges, pairs, rule=sending)
    m.fetching = pyo.Constraint(edges, slots, rule=fetching)
    m.storing = pyo.Constraint(edges, slots, rule=storing)
    m.arriving = pyo.Constraint(edges, slots, rule=arriving)
    m.departing = pyo.Constraint(edges, slots, rule=departing)
