"""Who does what in a mapping: devices per stage, matchings between stages, rings of one cycle.

The part that `mapping_milp` and `joint.py` share; S stages, R replicas, D devices.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances.common.arrays import Ints
from ..program import Start, Value


@dataclass(frozen=True, eq=False)
class Places:
    """The variables of a model that say who does what.

    Parameters
    ----------
    model
        The Pyomo model.
    stages, replicas, size
        S, R and D.
    boundaries, rings
        Stages that send to the next, and stages that reduce.
    """

    model: pyo.ConcreteModel
    stages: int
    replicas: int
    size: int
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
