"""How values move in the integer program of an iteration: (9) to (13) of `milp`."""

from __future__ import annotations

import pyomo.environ as pyo

from .milp_data import IterationData, MovedOutput
from .orders import BACKWARD, FORWARD


def up_to(m: pyo.ConcreteModel, v: int, p: int, s: int) -> pyo.Expression:
    """Return Σ_{s' ≤ s} x_{v,P,s'}: 1 if unit v is in stage s or before."""
    return pyo.quicksum(m.x[v, p, t] for t in range(s + 1))


def moves(m: pyo.ConcreteModel, data: IterationData, p: int, s: int, side: int) -> list[object]:
    """Return what a stage pays for the values that it moves in a pass."""
    terms: list[object] = []
    for e, (value, time) in enumerate(zip(data.makers, data.c, strict=True)):
        if data.problem.relayed:
            crossing = m.up if side == FORWARD else m.down
            terms += [time * crossing[e, p, t] for t in (s - 1, s) if (e, p, t) in crossing]
        elif (e, p, s, side) in m.enters:
            terms.append(time * m.enters[e, p, s, side])
            if side == value.side:
                terms.append(time * m.leaves[e, p, s])
    return terms


def add_direct(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Data goes straight to the devices that need it."""
    makers = data.makers

    def on_device(v: int, p: int, s: int) -> pyo.Expression:
        return pyo.quicksum(m.x[v, p, t] for t in data.mates(p, s))

    def entering(m: pyo.ConcreteModel, e: int, p: int, s: int, side: int, v: int) -> object:
        """(9) Σ_{(s',τ') ≤ (s,τ) on d} in_{e,P,s',τ'} ≥ x_{v,P,s} − Σ_{s' on d} x_{u,P,s'}  for
        all values e, passes τ of stages s, d its device, users v of e in τ."""
        so_far = pyo.quicksum(m.enters[e, p, t, other] for t, other in data.before(p, s, side))
        return so_far >= m.x[v, p, s] - on_device(makers[e].unit, p, s)

    def not_before(m: pyo.ConcreteModel, e: int, p: int, s: int, side: int) -> object:
        """(10) in_{e,P,s,τ} ≤ Σ_{v needs e in τ} x_{v,P,s}  for all values e, passes τ of stages
        s."""
        return m.enters[e, p, s, side] <= pyo.quicksum(m.x[v, p, s] for v in makers[e].users[side])

    def leaving(m: pyo.ConcreteModel, e: int, p: int, s: int, v: int) -> object:
        """(11) out_{e,P,s} ≥ x_{u,P,s} − Σ_{s' on d} x_{v,P,s'}  for all values e, stages s, d its
        device, users v of e."""
        return m.leaves[e, p, s] >= m.x[makers[e].unit, p, s] - on_device(v, p, s)

    m.entering = pyo.Constraint(
        [(*key, v) for key in m.enters for v in makers[key[0]].users[key[3]]], rule=entering
    )
    m.not_before = pyo.Constraint(list(m.enters), rule=not_before)
    m.leaving = pyo.Constraint(
        [(*key, v) for key in m.leaves for v in _users(makers[key[0]])], rule=leaving
    )


def add_relayed(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Data moves from stage to stage."""
    makers = data.makers

    def passed_up(m: pyo.ConcreteModel, e: int, p: int, s: int, v: int) -> object:
        """(12) up_{e,P,s} ≥ Σ_{s' ≤ s} x_{u,P,s'} − Σ_{s' ≤ s} x_{v,P,s'}  for all values e, stages
        s of P before one of another device, users v of e."""
        return m.up[e, p, s] >= up_to(m, makers[e].unit, p, s) - up_to(m, v, p, s)

    def passed_down(m: pyo.ConcreteModel, e: int, p: int, s: int, v: int) -> object:
        """(13) down_{e,P,s} ≥ Σ_{s' ≤ s} x_{v,P,s'} − Σ_{s' ≤ s} x_{u,P,s'}  for all values e,
        stages s of P before one of another device, users v of e."""
        return m.down[e, p, s] >= up_to(m, v, p, s) - up_to(m, makers[e].unit, p, s)

    crossings = [(*key, v) for key in m.up for v in _users(makers[key[0]])]
    m.passed_up = pyo.Constraint(crossings, rule=passed_up)
    m.passed_down = pyo.Constraint(crossings, rule=passed_down)


def _users(value: MovedOutput) -> list[int]:
    """Return the units that need a value in any pass."""
    return sorted({*value.users[FORWARD], *value.users[BACKWARD]})
