"""Links between devices in the integer program of latency: see `latency_milp` for the rest.

    sends_{u,s,r}   1 if the output of u passes over the link from call s to call r
    fetches_{u,s}   1 if call s brings it in from host memory
    stores_{u,s}    1 if call s brings it out to host memory

For integer x the rows leave the least values, which are those of the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyomo.environ as pyo

from .task import Task

X = Callable[[int, int], "pyo.Var"]


def over_links(
    m: pyo.ConcreteModel,
    task: Task,
    device: Sequence[int],
    edges: Sequence[tuple[int, int]],
    x: X,
    scale: float,
) -> Callable[[int], pyo.Expression]:
    """Add transfers over links and through host memory; return what they cost each call.

    S calls, m edges: up to n S² columns and m S² rows more.

    Parameters
    ----------
    device
        Device of each call.
    edges
        Those between nodes that can be in different calls.
    """
    costs = task.linked_costs
    assert costs.messages is not None
    link, time = costs.messages.link, costs.messages.time / scale
    host = costs.transfer / scale
    slots = range(len(device))
    linked = [[r for r in slots if link[device[s], device[r]] >= 0] for s in slots]
    pairs = [(s, r) for s in slots for r in linked[s]]
    senders = sorted({u for u, _ in edges})
    m.sends = pyo.Var(senders, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(senders, slots, bounds=(0, 1))
    m.stores = pyo.Var(senders, slots, bounds=(0, 1))

    def sending(m: pyo.ConcreteModel, u: int, v: int, s: int, r: int) -> pyo.Expression:
        return m.sends[u, s, r] >= x(u, s) + x(v, r) - 1

    def fetching(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.fetches[u, s] >= x(v, s) - pyo.quicksum(x(u, r) for r in (s, *linked[s]))

    def storing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.stores[u, s] >= x(u, s) - pyo.quicksum(x(v, r) for r in (s, *linked[s]))

    def arriving(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        ways = m.fetches[u, s] + pyo.quicksum(m.sends[u, r, s] for r in linked[s])
        return ways >= x(v, s) - x(u, s)

    def departing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        ways = m.stores[u, s] + pyo.quicksum(m.sends[u, s, r] for r in linked[s])
        return ways >= x(u, s) - x(v, s)

    m.sending = pyo.Constraint(edges, pairs, rule=sending)
    m.fetching = pyo.Constraint(edges, slots, rule=fetching)
    m.storing = pyo.Constraint(edges, slots, rule=storing)
    m.arriving = pyo.Constraint(edges, slots, rule=arriving)
    m.departing = pyo.Constraint(edges, slots, rule=departing)

    def moved(s: int) -> pyo.Expression:
        fee = host[costs.kind_of[device[s]]]
        return pyo.quicksum(
            float(fee[u]) * (m.fetches[u, s] + m.stores[u, s]) for u in senders
        ) + pyo.quicksum(
            float(time[link[device[s], device[r]], u]) * (m.sends[u, s, r] + m.sends[u, r, s])
            for u in senders
            for r in linked[s]
        )

    return moved
