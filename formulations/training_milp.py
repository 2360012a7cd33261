"""Training plans as an integer program: slots for stages, and one option for each slot.

Slots i = 0 … R−1 are the stages in pipeline order; a slot takes at most one option
o = (kind k, degree t, replicas d, microbatches in flight y). Variables:

    u[i,o] ∈ {0,1}       slot i takes option o
    z[i,o,c] ∈ {0,1}     a unit is in slot i and has configuration c there, under option o
    m[e,end,i] ≥ 0       time that edge e costs slot i, where its `end` is

with x[v,i] = Σ_{o, c of v} z[i,o,c]. For given options everything is linear; `Menu` has the
coefficients. Kinds may differ in count, memory and speed: that is what the DP cannot take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyomo.environ as pyo

from ..instances import Stage, Stages
from .training import Staging
from .training_slots import Menu, Option

#: A device's memory in the program: far above the solvers' absolute tolerances.
MEMORY_SCALE = 1000.0


@dataclass(frozen=True, eq=False)
class Slots:
    """The program, and what is needed to read it; times are in units of `menu.scale`."""

    menu: Menu
    model: pyo.ConcreteModel

    def stages(self, value: Callable[[pyo.Var], float]) -> list[Stage]:
        """Return the stages of a solution, given the value of each variable."""
        staging, model = self.menu.staging, self.model
        stages = []
        for i, o in model.u:
            if value(model.u[i, o]) < 0.5:
                continue
            option = self.menu.options[o]
            chosen = [
                (v, c)
                for v, own in enumerate(self.menu.choices)
                for p, c in own
                if p == o and value(model.z[i, o, c]) > 0.5
            ]
            units, options = zip(*chosen, strict=True) if chosen else ((), ())
            replicas = self.menu.replicas(o)
            stages.append(staging.stage(units, options, replicas, option.degree, option.kind))
        return stages

    def start(self, plan: Stages) -> list[tuple[pyo.Var, float]] | None:
        """Return the values of the binaries for a plan; None if it has too many stages."""
        staging, model = self.menu.staging, self.model
        if len(plan.stages) > self.menu.slots:
            return None
        number = {option: o for o, option in enumerate(self.menu.options)}
        row = {int(c): k for k, c in enumerate(staging.configuration)}
        chosen, taken = set(), set()
        behind = sum(stage.replicas for stage in plan.stages)
        for i, stage in enumerate(plan.stages):
            behind -= stage.replicas
            option = Option(
                staging.kinds.tolist().index(stage.kind),
                staging.degrees.tolist().index(stage.degree),
                staging.divisors.tolist().index(stage.replicas),
                staging.in_flight(stage.replicas, behind),
            )
            chosen.add((i, number[option]))
            taken |= {(i, number[option], row[c]) for c in stage.configuration}
        values = [(var, float(key in chosen)) for key, var in model.u.items()]
        return values + [(var, float(key in taken)) for key, var in model.z.items()]


def training_milp(staging: Staging, scale: float) -> Slots:
    """State the program.

    Parameters
    ----------
    scale
        Unit of time: far below the objective, because solvers' tolerances are absolute.

    Raises
    ------
    InfeasibleError
        If a layer alone fits on no device.
    """
    problem, menu = staging.problem, Menu(staging, scale)
    slots, options, units = range(menu.slots), range(len(menu.options)), range(staging.size)
    edges = staging.edges.tolist()
    ends = [(e, end) for e in range(len(edges)) for end in (0, 1)]
    taken_by: list[list[int]] = [[] for _ in options]
    for own in menu.choices:
        for o, c in own:
            taken_by[o].append(c)

    model = pyo.ConcreteModel(staging.workload.name)
    model.u = pyo.Var(slots, options, domain=pyo.Binary)
    model.z = pyo.Var(
        [(i, o, c) for i in slots for own in menu.choices for o, c in own], domain=pyo.Binary
    )
    model.m = pyo.Var(ends, slots, domain=pyo.NonNegativeReals)
    model.t = pyo.Var(slots, domain=pyo.NonNegativeReals)
    model.T = pyo.Var(domain=pyo.NonNegativeReals)

    def x(v: int, i: int) -> pyo.Expression:
        return pyo.quicksum(model.z[i, o, c] for o, c in menu.choices[v])

    def used(i: int) -> pyo.Expression:
        return pyo.quicksum(model.u[i, o] for o in options)

    def up_to(v: int, i: int) -> pyo.Expression:
        return pyo.quicksum(x(v, j) for j in range(i + 1))

    def placed_once(m: pyo.ConcreteModel, v: int) -> object:
        """Σ_i x_{v,i} = 1."""
        return pyo.quicksum(m.z[i, o, c] for i in slots for o, c in menu.choices[v]) == 1

    def one_option(m: pyo.ConcreteModel, i: int) -> object:
        """Σ_o u_{i,o} ≤ 1."""
        return pyo.quicksum(m.u[i, o] for o in options) <= 1

    def under_its_option(m: pyo.ConcreteModel, i: int, o: int, v: int) -> object:
        """Σ_{c of v} z_{i,o,c} ≤ u_{i,o}."""
        own = [m.z[i, o, c] for p, c in menu.choices[v] if p == o]
        return pyo.quicksum(own) <= m.u[i, o] if own else pyo.Constraint.Skip

    def in_turn(_: pyo.ConcreteModel, i: int) -> object:
        """Slots are used from the first on."""
        return used(i) >= used(i + 1)

    def not_empty(_: pyo.ConcreteModel, i: int) -> object:
        """A slot in use has a unit."""
        return pyo.quicksum(x(v, i) for v in units) >= used(i)

    def forward(_: pyo.ConcreteModel, e: int, i: int) -> object:
        """Edge (a, b): b is in slots 0 … i only if a is."""
        return up_to(edges[e][1], i) <= up_to(edges[e][0], i)

    def uncut(_: pyo.ConcreteModel, a: int, b: int, i: int) -> object:
        """x_{a,i} = x_{b,i}."""
        return x(a, i) == x(b, i)

    def fits(m: pyo.ConcreteModel, i: int, o: int) -> object:
        """Σ_c (a_c y + b_c) z_{i,o,c} ≤ M u_{i,o}."""
        capacity = float(staging.capacity[menu.options[o].kind])
        if math.isinf(capacity) or not taken_by[o]:
            return pyo.Constraint.Skip
        unit = capacity / MEMORY_SCALE if capacity > 0 else 1.0
        sizes = [menu.size(c, o) / unit * m.z[i, o, c] for c in taken_by[o]]
        return pyo.quicksum(sizes) <= capacity / unit * m.u[i, o]

    def in_flight(m: pyo.ConcreteModel, i: int) -> object:
        """d_i + … + d_r ≤ y_i d_i."""
        behind = [menu.replicas(o) * m.u[j, o] for j in range(i, menu.slots) for o in options]
        room = [menu.replicas(o) * menu.options[o].in_flight * m.u[i, o] for o in options]
        return pyo.quicksum(behind) <= pyo.quicksum(room)

    def enough_devices(m: pyo.ConcreteModel, k: int) -> object:
        """Σ d_i t_i over the stages on a kind is at most its count."""
        own = [o for o in options if menu.options[o].kind == k]
        taken = [menu.width(o) * m.u[i, o] for i in slots for o in own]
        return pyo.quicksum(taken) <= int(staging.count[k]) if own else pyo.Constraint.Skip

    def cut_edge(m: pyo.ConcreteModel, e: int, end: int, i: int) -> object:
        """m_{e,end,i} ≥ Σ_{o, c of end} moved_{c,o,e} z_{i,o,c} − (largest) x_{other end,i}."""
        own = [(menu.moved(c, o, e), o, c) for o, c in menu.choices[edges[e][end]]]
        most = max(time for time, _, _ in own)
        if most == 0:
            return pyo.Constraint.Skip
        paid = pyo.quicksum(time * m.z[i, o, c] for time, o, c in own)
        return m.m[e, end, i] >= paid - most * x(edges[e][1 - end], i)

    def stage_time(m: pyo.ConcreteModel, i: int) -> object:
        """TPS_i = Σ_{o,c} time_{c,o} z_{i,o,c} + Σ m_{e,end,i}."""
        compute = [menu.time(c, o) * m.z[i, o, c] for o in options for c in taken_by[o]]
        return m.t[i] >= pyo.quicksum(compute) + pyo.quicksum(m.m[e, end, i] for e, end in ends)

    def slowest(m: pyo.ConcreteModel, i: int) -> object:
        """T ≥ TPS_i."""
        return m.t[i] <= m.T

    model.placed_once = pyo.Constraint(units, rule=placed_once)
    model.one_option = pyo.Constraint(slots, rule=one_option)
    model.under_its_option = pyo.Constraint(slots, options, units, rule=under_its_option)
    model.in_turn = pyo.Constraint(slots[:-1], rule=in_turn)
    model.not_empty = pyo.Constraint(slots, rule=not_empty)
    model.forward = pyo.Constraint(range(len(edges)), slots[:-1], rule=forward)
    pairs = [(a, b, i) for a, b in staging.uncut.tolist() if a != b for i in slots]
    model.uncut = pyo.Constraint(pairs, rule=uncut)
    model.fits = pyo.Constraint(slots, options, rule=fits)
    if problem.schedule != "gpipe":
        model.in_flight = pyo.Constraint(slots, rule=in_flight)
    model.enough_devices = pyo.Constraint(range(len(staging.kinds)), rule=enough_devices)
    replicas = pyo.quicksum(menu.replicas(o) * model.u[i, o] for i in slots for o in options)
    model.enough_microbatches = pyo.Constraint(expr=replicas <= staging.most_replicas)
    model.cut_edge = pyo.Constraint(ends, slots, rule=cut_edge)
    model.stage_time = pyo.Constraint(slots, rule=stage_time)
    model.slowest = pyo.Constraint(slots, rule=slowest)
    # Σ_i d_i t_i TPS_i is at least the work: implied, but not by the relaxation
    share = float((staging.count / staging.slowdown).sum())
    work = pyo.quicksum(
        float(staging.degrees[menu.options[o].degree] * staging.time[c]) / scale * var
        for (_, o, c), var in model.z.items()
    )
    model.work_over_devices = pyo.Constraint(expr=share * model.T >= work)
    objective = model.T
    if problem.objective == "batch":
        objective = pyo.quicksum(model.t.values()) + (staging.microbatches - 1) * model.T
    model.objective = pyo.Objective(expr=objective)
    return Slots(menu, model)
