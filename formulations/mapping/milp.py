"""Mapping as a mixed-integer program in Pyomo: the reference statement, for few devices.

*Devices*, matchings and rings, which `joint.py` shares (`add_places`); S stages, R replicas, D
devices:

    symbol      meaning                                                         in the model
    x_{d,s}     1 if device d serves stage s                                    x[d,s]
    y_{s,d,e}   1 if d in stage s sends to e in stage s + 1                     y[s,d,e]
    w_{s,d,e}   1 if e follows d on the ring of stage s                         w[s,d,e]
    h_{s,d}     1 if d is the *root* of the ring of stage s                     h[s,d]
    u_{s,d}     position of d on the ring of stage s, from 0                    u[s,d]

    Σ_d x_{d,s} = R                                                                       (1)
    Σ_s x_{d,s} ≤ 1                                                                       (2)
    Σ_e y_{s,d,e} = x_{d,s}                                                               (3)
    Σ_d y_{s,d,e} = x_{e,s+1}                                                             (4)
    Σ_e w_{s,d,e} = x_{d,s}                                                               (5)
    Σ_e w_{s,e,d} = x_{d,s}                                                               (6)
    Σ_d h_{s,d} = 1                                                                       (7)
    u_{s,e} ≥ u_{s,d} + 1 − R (1 − w_{s,d,e} + h_{s,e})                                   (8)

A ring must be one cycle: along it positions increase by one except into the root (Miller, Tucker,
Zemlin). For R = 2 the two links are one. Only boundaries that send something have y, and only
stages that reduce something have w, h and u.

*Objective*:

    symbol      meaning                                                         in the model
    P_s         longest message of boundary s                                   P[s]
    A_s         longest message of the ring of stage s                          A[s]
    T           the longest stage, or the busiest link                          T
    base_s      compute of stage s on the fastest device (`MappingCosts`)
    o_{s,d}     what device d takes more, or with overlap all that it takes
    c_{s,d,e}   message from d to e on boundary s
    g_{s,d,e}   message from d to e on the ring of stage s
    f_s, b_s    bytes of messages of boundary s, down and up
    r_s         bytes over each link of the ring of stage s
    V_l         bandwidth of link l in one direction

    minimise  T                                                                           (0)

    P_s ≥ c_{s,d,e} y_{s,d,e}                                                             (9)
    A_s ≥ g_{s,d,e} w_{s,d,e}                                                            (10)
    base_s + P_s + A_s ≤ T                                                               (11)
    base_s + P_s + A_s + o_{s,d} x_{d,s} ≤ T;  with overlap o_{s,d} x_{d,s} ≤ T          (12)

or, for the busiest link, in place of (11) and (12)

    Σ_{s, d→e over l} (f_s y_{s,d,e} + b_s y_{s,e,d} + r_s w_{s,d,e}) ≤ V_l T            (13)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances.common.arrays import Ints
from ..program import Start, Value
from .busiest_link import LinkTraffic
from .costs import MappingCosts


@dataclass(frozen=True, eq=False)
class Places:
    """Variables of a model for devices, matchings and rings."""

    model: pyo.ConcreteModel  # the Pyomo model
    stages: int  # stages, replicas, size: S, R and D
    replicas: int
    size: int
    # boundaries, rings: stages that send to the next, and stages that reduce
    boundaries: Sequence[int]
    rings: Sequence[int]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Ordered pairs of different devices."""
        return [(d, e) for d in range(self.size) for e in range(self.size) if d != e]

    def read(self, value: Value) -> tuple[Ints, Ints]:
        """Return slots (S, R), rings in order, and sends_to (S−1, R), given variables' values."""
        m = self.model
        rows: list[list[int]] = []
        for s in range(self.stages):
            row = [d for d in range(self.size) if value(m.x[d, s]) > 0.5]
            if s in self.rings:
                follower = {d: e for d, e in self.pairs if value(m.w[s, d, e]) > 0.5}
                ring = [row[0]]
                while len(ring) < len(row):
                    ring.append(follower[ring[-1]])
                row = ring
            rows.append(row)
        sends_to = np.tile(np.arange(self.replicas), (self.stages - 1, 1))
        for s in self.boundaries:
            receiver = {d: e for d, e in self.pairs if value(m.y[s, d, e]) > 0.5}
            sends_to[s] = [rows[s + 1].index(receiver[d]) for d in rows[s]]
        return np.array(rows), sends_to

    def start(self, slots: Ints, sends_to: Ints) -> Start:
        """Return the values of the binary variables for a known mapping."""
        m, columns = self.model, range(self.replicas)
        after = np.roll(slots, -1, axis=1)
        serves = {(int(d), s) for s in range(self.stages) for d in slots[s]}
        sends = {
            (s, int(slots[s, i]), int(slots[s + 1, sends_to[s, i]]))
            for s in self.boundaries
            for i in columns
        }
        follows = {(s, int(slots[s, i]), int(after[s, i])) for s in self.rings for i in columns}
        roots = {(s, int(slots[s, 0])) for s in self.rings}
        values: Start = []
        for variable, ones in ((m.x, serves), (m.y, sends), (m.w, follows), (m.h, roots)):
            values += [(variable[index], float(index in ones)) for index in variable]
        return values


def mapping_milp(costs: MappingCosts, per_s: float, traffic: LinkTraffic | None = None) -> Places:
    """Return the program of a mapping, with its reader; for a handful of devices.

    It minimises the busiest link with traffic, else the longest stage, at `per_s` units of time per
    second.
    """
    m = pyo.ConcreteModel("mapping")
    boundaries = [s for s in range(costs.stages - 1) if costs.boundary[s].any()]
    rings = [s for s in range(costs.stages) if costs.ring[s].any()]
    places = Places(m, costs.stages, costs.replicas, costs.size, boundaries, rings)
    add_places(places)
    for s, d in np.argwhere(~costs.fits).tolist():
        m.x[d, s].fix(0)
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

    slower = np.argwhere(costs.own > 0).tolist()

    def longest(m: pyo.ConcreteModel, s: int) -> object:
        """(11) base_s + P_s + A_s ≤ T  for all stages s."""
        return per_s * float(costs.base[s]) + m.P[s] + m.A[s] <= m.T

    def slowest(m: pyo.ConcreteModel, k: int) -> object:
        """(12) base_s + P_s + A_s + o_{s,d} x_{d,s} ≤ T  for all s, d with o_{s,d} > 0."""
        s, d = slower[k]
        sent = 0.0 if costs.overlap else per_s * float(costs.base[s]) + m.P[s] + m.A[s]
        return per_s * float(costs.own[s, d]) * m.x[d, s] + sent <= m.T

    m.longest = pyo.Constraint(range(costs.stages), rule=longest)
    m.slowest = pyo.Constraint(range(len(slower)), rule=slowest)


def _link_loads(places: Places, costs: MappingCosts, per_s: float, traffic: LinkTraffic) -> None:
    m, over = places.model, _pairs_by_link(costs, traffic)

    def busiest(m: pyo.ConcreteModel, link: int) -> object:
        """(13) Σ_{s, d→e over l} (f_s y_{s,d,e} + b_s y_{s,e,d} + r_s w_{s,d,e}) ≤ V_l T  for all
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


def add_places(places: Places) -> None:
    """Add the variables and the constraints (1) to (8) to the model."""
    m, stages, devices = places.model, range(places.stages), range(places.size)
    m.x = pyo.Var(devices, stages, domain=pyo.Binary)
    m.y = pyo.Var(places.boundaries, places.pairs, domain=pyo.Binary)
    m.w = pyo.Var(places.rings, places.pairs, domain=pyo.Binary)
    m.h = pyo.Var(places.rings, devices, domain=pyo.Binary)
    m.u = pyo.Var(places.rings, devices, bounds=(0, places.replicas - 1))
    _stages(places)
    _matchings(places)
    _rings(places)


def _stages(places: Places) -> None:
    m, stages, devices = places.model, range(places.stages), range(places.size)

    def full(m: pyo.ConcreteModel, s: int) -> object:
        """(1) Σ_d x_{d,s} = R  for all stages s."""
        return pyo.quicksum(m.x[d, s] for d in devices) == places.replicas

    def once(m: pyo.ConcreteModel, d: int) -> object:
        """(2) Σ_s x_{d,s} ≤ 1  for all devices d."""
        return pyo.quicksum(m.x[d, s] for s in stages) <= 1

    m.full = pyo.Constraint(stages, rule=full)
    m.once = pyo.Constraint(devices, rule=once)


def _matchings(places: Places) -> None:
    m, devices = places.model, range(places.size)

    def sends(m: pyo.ConcreteModel, s: int, d: int) -> object:
        """(3) Σ_e y_{s,d,e} = x_{d,s}  for all boundaries s, devices d."""
        return pyo.quicksum(m.y[s, d, e] for e in devices if e != d) == m.x[d, s]

    def receives(m: pyo.ConcreteModel, s: int, e: int) -> object:
        """(4) Σ_d y_{s,d,e} = x_{e,s+1}  for all boundaries s, devices e."""
        return pyo.quicksum(m.y[s, d, e] for d in devices if d != e) == m.x[e, s + 1]

    m.sends = pyo.Constraint(places.boundaries, devices, rule=sends)
    m.receives = pyo.Constraint(places.boundaries, devices, rule=receives)


def _rings(places: Places) -> None:
    m, devices, replicas = places.model, range(places.size), places.replicas

    def follows(m: pyo.ConcreteModel, s: int, d: int) -> object:
        """(5) Σ_e w_{s,d,e} = x_{d,s}  for all rings s, devices d."""
        return pyo.quicksum(m.w[s, d, e] for e in devices if e != d) == m.x[d, s]

    def followed(m: pyo.ConcreteModel, s: int, d: int) -> object:
        """(6) Σ_e w_{s,e,d} = x_{d,s}  for all rings s, devices d."""
        return pyo.quicksum(m.w[s, e, d] for e in devices if e != d) == m.x[d, s]

    def root(m: pyo.ConcreteModel, s: int) -> object:
        """(7) Σ_d h_{s,d} = 1  for all rings s."""
        return pyo.quicksum(m.h[s, d] for d in devices) == 1

    def one_cycle(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        """(8) u_{s,e} ≥ u_{s,d} + 1 − R (1 − w_{s,d,e} + h_{s,e})  for all rings s, d ≠ e."""
        return m.u[s, e] >= m.u[s, d] + 1 - replicas * (1 - m.w[s, d, e] + m.h[s, e])

    m.follows = pyo.Constraint(places.rings, devices, rule=follows)
    m.followed = pyo.Constraint(places.rings, devices, rule=followed)
    m.root = pyo.Constraint(places.rings, rule=root)
    m.one_cycle = pyo.Constraint(places.rings, places.pairs, rule=one_cycle)
