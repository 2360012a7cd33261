"""Mapping as a mixed-integer program in Pyomo: the declarative reference, for few devices.

    x_{d,s}  device d serves stage s        Σ_d x_ds = R,  Σ_s x_ds ≤ 1
    y_{s,d,e}  d in stage s sends to e      Σ_e y_sde = x_ds,  Σ_d y_sde = x_{e,s+1}
    w_{s,d,e}  e follows d on ring s        Σ_e w_sde = x_ds = Σ_e w_sed
    P_s ≥ c_sde y_sde,  A_s ≥ g_sde w_sde,  T ≥ base_s + P_s + A_s

or, for the busiest link, with the bytes f_s, b_s, r_s of messages down, up and around a ring, and
V_l the bandwidth of link l in one direction,

    V_l T ≥ Σ_{s, d→e over l} (f_s y_sde + b_s y_sed + r_s w_sde)

A ring must be one cycle: device d gets a position u_sd in 0 … R−1, which w increases by one except
into the root, the device with h_sd = 1 (Miller, Tucker, Zemlin). For R = 2 the two links are one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyomo.environ as pyo

from ..instances.arrays import Ints
from .mapping import MappingCosts
from .mapping_links import LinkTraffic


def mapping_milp(
    costs: MappingCosts, per_s: float, traffic: LinkTraffic | None = None
) -> pyo.ConcreteModel:
    """Return the program, for a handful of devices.

    Parameters
    ----------
    per_s
        Units of the program's times per second.
    traffic
        For the busiest link; without, for the longest stage.
    """
    model = pyo.ConcreteModel("mapping")
    boundaries = [s for s in range(costs.stages - 1) if costs.boundary[s].any()]
    rings = [s for s in range(costs.stages) if costs.ring[s].any()]
    place_stages(model, costs.stages, costs.replicas, costs.size, boundaries, rings)
    send = {s: per_s * costs.boundary_costs(s) for s in boundaries}
    step = {s: per_s * costs.ring_costs(s) for s in rings}
    model.P = pyo.Var(model.S, domain=pyo.NonNegativeReals)
    model.A = pyo.Var(model.S, domain=pyo.NonNegativeReals)
    model.T = pyo.Var(bounds=(per_s * costs.floor, None))
    model.objective = pyo.Objective(expr=model.T)

    def transfer(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        return m.P[s] >= float(send[s][d, e]) * m.y[s, d, e]

    def reduces(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        return m.A[s] >= float(step[s][d, e]) * m.w[s, d, e]

    def longest(m: pyo.ConcreteModel, s: int) -> object:
        return per_s * float(costs.base[s]) + m.P[s] + m.A[s] <= m.T

    model.transfer_rule = pyo.Constraint(model.B, model.pairs, rule=transfer)
    model.reduces_rule = pyo.Constraint(model.O, model.pairs, rule=reduces)
    if traffic is None:
        model.longest_rule = pyo.Constraint(model.S, rule=longest)
        return model
    over = _pairs_by_link(costs, traffic)
    model.L = pyo.RangeSet(0, 2 * len(traffic.ends) - 1)

    def busiest(m: pyo.ConcreteModel, link: int) -> object:
        load = sum(
            float(traffic.forward[s]) * m.y[s, d, e] + float(traffic.backward[s]) * m.y[s, e, d]
            for d, e in over[link]
            for s in m.B
        ) + sum(float(traffic.ring[s]) * m.w[s, d, e] for d, e in over[link] for s in m.O)
        bandwidth = float(traffic.bytes_per_s[link // 2])
        if not over[link] or bandwidth == np.inf:
            return pyo.Constraint.Skip
        return load * (per_s / bandwidth) <= m.T

    model.busiest_rule = pyo.Constraint(model.L, rule=busiest)
    return model


def place_stages(
    model: pyo.ConcreteModel,
    stages: int,
    replicas: int,
    size: int,
    boundaries: list[int],
    rings: list[int],
) -> None:
    """Add x, y, w, h and u to a model: R devices per stage, matchings, and rings of one cycle.

    Parameters
    ----------
    boundaries, rings
        Stages that send to the next, and stages that reduce.
    """
    model.S, model.D = pyo.RangeSet(0, stages - 1), pyo.RangeSet(0, size - 1)
    model.B, model.O = pyo.Set(initialize=boundaries), pyo.Set(initialize=rings)
    model.pairs = pyo.Set(initialize=[(d, e) for d in model.D for e in model.D if d != e])
    model.x = pyo.Var(model.D, model.S, domain=pyo.Binary)
    model.y = pyo.Var(model.B, model.pairs, domain=pyo.Binary)
    model.w = pyo.Var(model.O, model.pairs, domain=pyo.Binary)
    model.h = pyo.Var(model.O, model.D, domain=pyo.Binary)
    model.u = pyo.Var(model.O, model.D, bounds=(0, replicas - 1))

    def full(m: pyo.ConcreteModel, s: int) -> object:
        return sum(m.x[d, s] for d in m.D) == replicas

    def once(m: pyo.ConcreteModel, d: int) -> object:
        return sum(m.x[d, s] for s in m.S) <= 1

    def sends(m: pyo.ConcreteModel, s: int, d: int) -> object:
        return sum(m.y[s, d, e] for e in m.D if e != d) == m.x[d, s]

    def receives(m: pyo.ConcreteModel, s: int, e: int) -> object:
        return sum(m.y[s, d, e] for d in m.D if d != e) == m.x[e, s + 1]

    def follows(m: pyo.ConcreteModel, s: int, d: int) -> object:
        return sum(m.w[s, d, e] for e in m.D if e != d) == m.x[d, s]

    def followed(m: pyo.ConcreteModel, s: int, d: int) -> object:
        return sum(m.w[s, e, d] for e in m.D if e != d) == m.x[d, s]

    def root(m: pyo.ConcreteModel, s: int) -> object:
        return sum(m.h[s, d] for d in m.D) == 1

    def one_cycle(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        return m.u[s, e] >= m.u[s, d] + 1 - replicas * (1 - m.w[s, d, e] + m.h[s, e])

    model.full_rule = pyo.Constraint(model.S, rule=full)
    model.once_rule = pyo.Constraint(model.D, rule=once)
    model.sends_rule = pyo.Constraint(model.B, model.D, rule=sends)
    model.receives_rule = pyo.Constraint(model.B, model.D, rule=receives)
    model.follows_rule = pyo.Constraint(model.O, model.D, rule=follows)
    model.followed_rule = pyo.Constraint(model.O, model.D, rule=followed)
    model.root_rule = pyo.Constraint(model.O, rule=root)
    model.one_cycle_rule = pyo.Constraint(model.O, model.pairs, rule=one_cycle)


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


def read_back(model: pyo.ConcreteModel, value: Callable[[pyo.Var], float]) -> tuple[Ints, Ints]:
    """Return slots (S, R), rings in order, and sends_to (S−1, R), given each variable's value."""
    rows: list[list[int]] = []
    for s in model.S:
        row = [d for d in model.D if value(model.x[d, s]) > 0.5]
        if s in model.O:
            follower = {d: e for d, e in model.pairs if value(model.w[s, d, e]) > 0.5}
            ring = [row[0]]
            while len(ring) < len(row):
                ring.append(follower[ring[-1]])
            row = ring
        rows.append(row)
    sends_to = np.tile(np.arange(len(rows[0])), (len(rows) - 1, 1))
    for s in model.B:
        receiver = {d: e for d, e in model.pairs if value(model.y[s, d, e]) > 0.5}
        sends_to[s] = [rows[s + 1].index(receiver[d]) for d in rows[s]]
    return np.array(rows), sends_to


def mapping_start(
    model: pyo.ConcreteModel, slots: Ints, sends_to: Ints
) -> list[tuple[pyo.Var, float]]:
    """Return the values of the binary variables for a known mapping; inverse of `read_back`."""
    stages, replicas = slots.shape
    held = {(int(d), s) for s in range(stages) for d in slots[s]}
    sent = {
        (s, int(slots[s, i]), int(slots[s + 1, sends_to[s, i]]))
        for s in model.B
        for i in range(replicas)
    }
    follows = {
        (s, int(slots[s, i]), int(slots[s, (i + 1) % replicas]))
        for s in model.O
        for i in range(replicas)
    }
    roots = {(s, int(slots[s, 0])) for s in model.O}
    values = []
    for variable, ones in ((model.x, held), (model.y, sent), (model.w, follows), (model.h, roots)):
        values += [(variable[key], float(key in ones)) for key in variable]
    return values
