"""Mapping as a mixed-integer program in Pyomo: the declarative reference, for few devices.

Who does what is x, y, w with (1) to (8) of `places.py`.

    symbol      meaning                                                         in the model
    P_s         longest message of boundary s                                   P[s]
    A_s         longest message of the ring of stage s                          A[s]
    T           the longest stage, or the busiest link                          T
    base_s      compute of stage s (`MappingCosts`)
    c_{s,d,e}   message from d to e on boundary s
    g_{s,d,e}   message from d to e on the ring of stage s
    f_s, b_s    bytes of messages of boundary s, down and up
    r_s         bytes over each link of the ring of stage s
    V_l         bandwidth of link l in one direction

    minimise  T                                                                           (0)

    P_s ≥ c_{s,d,e} y_{s,d,e}                                                             (9)
    A_s ≥ g_{s,d,e} w_{s,d,e}                                                            (10)
    base_s + P_s + A_s ≤ T                                                               (11)

or, for the busiest link, in place of (11)

    Σ_{s, d→e over l} (f_s y_{s,d,e} + b_s y_{s,e,d} + r_s w_{s,d,e}) ≤ V_l T            (12)
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo

from .costs import MappingCosts
from .links import LinkTraffic
from .places import Places, add_places


def mapping_milp(costs: MappingCosts, per_s: float, traffic: LinkTraffic | None = None) -> Places:
    """Return the program, with its reader. For a handful of devices.

    Parameters
    ----------
    per_s
        Units of the program's times per second.
    traffic
        For the busiest link; without, for the longest stage.
    """
    m = pyo.ConcreteModel("mapping")
    boundaries = [s for s in range(costs.stages - 1) if costs.boundary[s].any()]
    rings = [s for s in range(costs.stages) if costs.ring[s].any()]
    places = Places(m, costs.stages, costs.replicas, costs.size, boundaries, rings)
    add_places(places)
    m.P = pyo.Var(range(costs.stages), domain=pyo.NonNegativeReals)
    m.A = pyo.Var(range(costs.stages), domain=pyo.NonNegativeReals)
    m.T = pyo.Var(bounds=(per_s * costs.lower_bound, None))
    m.objective = pyo.Objective(expr=m.T)
    _messages(places, costs, per_s)
    if traffic is None:
        _stage_times(places, costs, per_s)
    else:
        _link_loads(places, costs, per_s, traffic)
    return places


def _messages(places: Places, costs: MappingCosts, per_s: float) -> None:
    m = places.model
    c = {s: per_s * costs.boundary_costs(s) for s in places.boundaries}
    g = {s: per_s * costs.ring_costs(s) for s in places.rings}

    def transfer(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        """(9) P_s ≥ c_{s,d,e} y_{s,d,e}  for all boundaries s, d ≠ e."""
        return m.P[s] >= float(c[s][d, e]) * m.y[s, d, e]

    def reduces(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        """(10) A_s ≥ g_{s,d,e} w_{s,d,e}  for all rings s, d ≠ e."""
        return m.A[s] >= float(g[s][d, e]) * m.w[s, d, e]

    m.transfer = pyo.Constraint(places.boundaries, places.pairs, rule=transfer)
    m.reduces = pyo.Constraint(places.rings, places.pairs, rule=reduces)


def _stage_times(places: Places, costs: MappingCosts, per_s: float) -> None:
    m = places.model

    def longest(m: pyo.ConcreteModel, s: int) -> object:
        """(11) base_s + P_s + A_s ≤ T  for all stages s."""
        return per_s * float(costs.base[s]) + m.P[s] + m.A[s] <= m.T

    m.longest = pyo.Constraint(range(costs.stages), rule=longest)


def _link_loads(places: Places, costs: MappingCosts, per_s: float, traffic: LinkTraffic) -> None:
    m, over = places.model, _pairs_by_link(costs, traffic)

    def busiest(m: pyo.ConcreteModel, link: int) -> object:
        """(12) Σ_{s, d→e over l} (f_s y_{s,d,e} + b_s y_{s,e,d} + r_s w_{s,d,e}) ≤ V_l T  for all
        links l, each direction by itself."""
        bandwidth = float(traffic.bytes_per_s[link // 2])
        if not over[link] or bandwidth == np.inf:
            return pyo.Constraint.Skip
        load = pyo.quicksum(
            float(traffic.forward[s]) * m.y[s, d, e] + float(traffic.backward[s]) * m.y[s, e, d]
            for d, e in over[link]
            for s in places.boundaries
        ) + pyo.quicksum(
            float(traffic.ring[s]) * m.w[s, d, e] for d, e in over[link] for s in places.rings
        )
        return load * (per_s / bandwidth) <= m.T

    m.busiest = pyo.Constraint(range(len(over)), rule=busiest)


def _pairs_by_link(costs: MappingCosts, traffic: LinkTraffic) -> list[list[tuple[int, int]]]:
    """Return the pairs of usable devices whose route passes each directed link."""
    over: list[list[tuple[int, int]]] = [[] for _ in range(2 * len(traffic.ends))]
    for d, low in enumerate(costs.devices.tolist()):
        for e, high in enumerate(costs.devices.tolist()):
            if low >= high:
                continue
            path = [high]
            while path[-1] != low:
                path.append(int(traffic.previous[low, path[-1]]))
            for v in path[:-1]:
                k = int(traffic.via[low, v])
                up = 2 * k + int(traffic.ends[k, 0] == v)  # down to v
                over[up].append((d, e))
                over[up ^ 1].append((e, d))
    return over
