"""Training plans as an integer program: slots for stages, and one option for each slot.

Slots i = 0 … R−1 are the stages in pipeline order; a slot takes at most one option
o = (kind g, degree t, replicas d, microbatches in flight y). Variables:

    u[i,o] ∈ {0,1}       slot i takes option o
    z[i,o,c] ∈ {0,1}     a unit is in slot i and has configuration c there, under option o
    m[e,end,i] ≥ 0       time that edge e costs slot i, where its `end` is

with x[v,i] = Σ_{o, c of v} z[i,o,c]. In the options' products everything is linear:

    T ≥ Σ_{o,c} (s_g p_c + κ(t,d) w_c) / d · z[i,o,c] + Σ_{e,end} m[e,end,i]           (stage time)
    m[e,end,i] ≥ Σ_{o, c of end} (2 (bytes_e + sync_{c,e}) / B d) z[i,o,c] − h_e x[other end, i]
    Σ_c (a_c y + b_c) z[i,o,c] ≤ M_g u[i,o]                                             (memory)
    Σ_{j ≥ i} d_j ≤ y_i d_i                                                          (in flight)

where h_e is the largest coefficient in its row. Kinds may differ in count, memory and speed: that
is what the DP cannot take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyomo.environ as pyo

from ..instances import InfeasibleError, Stage, Stages
from .training import Staging


@dataclass(frozen=True)
class Option:
    """What a slot can be: number of a kind in the staging, degree, divisor, and y."""

    kind: int
    degree: int
    divisor: int
    in_flight: int


@dataclass(frozen=True, eq=False)
class Slots:
    """The program, and what is needed to read it.

    Parameters
    ----------
    model
        Times are in units of `scale`.
    options
        What a slot can be.
    """

    staging: Staging
    model: pyo.ConcreteModel
    options: tuple[Option, ...]
    scale: float

    def stages(self, value: Callable[[pyo.Var], float]) -> list[Stage]:
        """Return the stages of a solution, given the value of each variable."""
        staging, model = self.staging, self.model
        stages = []
        for i in model.slots:
            for o, option in enumerate(self.options):
                if value(model.u[i, o]) < 0.5:
                    continue
                pairs = sorted(
                    (int(staging.node_of[v]), int(staging.configuration[c]))
                    for v in range(staging.size)
                    for c in staging.choices(v, option.degree)
                    if (i, o, c) in model.triples and value(model.z[i, o, c]) > 0.5
                )
                stages.append(
                    Stage(
                        nodes=tuple(v for v, _ in pairs),
                        configuration=tuple(c for _, c in pairs),
                        replicas=int(staging.divisors[option.divisor]),
                        degree=int(staging.degrees[option.degree]),
                        kind=int(staging.kinds[option.kind]),
                    )
                )
        return stages

    def start(self, plan: Stages) -> list[tuple[pyo.Var, float]] | None:
        """Return the values of the binaries for a plan; None if it needs more slots."""
        staging, model = self.staging, self.model
        if len(plan.stages) > len(model.slots):
            return None
        number = {option: o for o, option in enumerate(self.options)}
        row = {int(c): k for k, c in enumerate(staging.configuration)}
        ones = set()
        behind = sum(stage.replicas for stage in plan.stages)
        for i, stage in enumerate(plan.stages):
            behind -= stage.replicas
            option = Option(
                staging.kinds.tolist().index(stage.kind),
                staging.degrees.tolist().index(stage.degree),
                staging.divisors.tolist().index(stage.replicas),
                staging.in_flight(stage.replicas, behind),
            )
            if option not in number:
                return None
            ones.add(id(model.u[i, number[option]]))
            ones |= {id(model.z[i, number[option], row[c]]) for c in stage.configuration}
        binaries = [*model.u.values(), *model.z.values()]
        return [(var, float(id(var) in ones)) for var in binaries]


def training_milp(staging: Staging, scale: float) -> Slots:
    """State the program.

    Parameters
    ----------
    scale
        A time about as long as the objective: solvers' tolerances are absolute.

    Raises
    ------
    InfeasibleError
        If a layer alone fits on no device.
    """
    problem = staging.problem
    kinds, degrees = range(len(staging.kinds)), range(len(staging.degrees))
    divisors = staging.divisors.tolist()
    width = [[int(staging.degrees[t]) * d for d in divisors] for t in degrees]
    devices = int(staging.count.sum())
    most = min(staging.most_replicas, devices)
    slots = min(staging.size, devices, most, problem.max_stages or staging.size)
    options = tuple(
        Option(g, t, p, y)
        for g in kinds
        for t in degrees
        for p, d in enumerate(divisors)
        if width[t][p] <= staging.count[g] and d <= most
        for y in (
            range(1, -(-most // d) + 1)
            if problem.schedule != "gpipe"
            else [staging.in_flight(d, 0)]
        )
    )

    def size(c: int, option: Option) -> float:
        return float(staging.per_microbatch[c] * option.in_flight + staging.fixed[c])

    def time(c: int, option: Option) -> float:
        compute = staging.time[c] * staging.slowdown[option.kind]
        kappa = staging.kappa(option.degree, divisors[option.divisor])
        return float(compute + kappa * staging.weight[c]) / divisors[option.divisor] / scale

    model = pyo.ConcreteModel()
    model.slots = pyo.RangeSet(0, slots - 1)
    model.options = pyo.RangeSet(0, len(options) - 1)
    model.units = pyo.RangeSet(0, staging.size - 1)
    allowed = [
        (o, v, c)
        for o, option in enumerate(options)
        for v in range(staging.size)
        if staging.allowed[v, option.divisor]
        for c in staging.choices(v, option.degree)
        if size(c, option) <= staging.capacity[option.kind]
    ]
    by_option: list[list[int]] = [[] for _ in options]
    by_unit: list[list[tuple[int, int]]] = [[] for _ in range(staging.size)]
    for o, v, c in allowed:
        by_option[o].append(c)
        by_unit[v].append((o, c))
    for v in range(staging.size):
        if not by_unit[v]:
            node = staging.workload.ids[int(staging.node_of[v])]
            raise InfeasibleError(f"node {node} alone fits on no device; give more memory")
    model.triples = pyo.Set(
        dimen=3, initialize=[(i, o, c) for i in range(slots) for o, _, c in allowed]
    )
    model.u = pyo.Var(model.slots, model.options, domain=pyo.Binary)
    model.z = pyo.Var(model.triples, domain=pyo.Binary)
    ends = [(e, end) for e in range(len(staging.edges)) for end in (0, 1)]
    model.ends = pyo.Set(dimen=2, initialize=ends)
    model.m = pyo.Var(model.ends, model.slots, domain=pyo.NonNegativeReals)
    model.T = pyo.Var(domain=pyo.NonNegativeReals)
    model.t = pyo.Var(model.slots, domain=pyo.NonNegativeReals)

    sync = [
        {
            int(staging.sync_edge[at]): float(staging.sync_time[at])
            for at in range(staging.sync_start[c], staging.sync_start[c + 1])
        }
        for c in range(len(staging.time))
    ]

    def moved(c: int, e: int, o: int) -> float:
        d = divisors[options[o].divisor]
        return (float(staging.edge_time[e]) + sync[c].get(e, 0.0)) / d / scale

    def x(v: int, i: int) -> pyo.Expression:
        return pyo.quicksum(model.z[i, o, c] for o, c in by_unit[v])

    @model.Constraint(model.slots)
    def one_option(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        return pyo.quicksum(m.u[i, o] for o in m.options) <= 1

    @model.Constraint(model.units)
    def placed(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        return pyo.quicksum(x(v, i) for i in m.slots) == 1

    @model.Constraint(model.slots, model.options, model.units)
    def under_its_option(m: pyo.ConcreteModel, i: int, o: int, v: int) -> pyo.Expression:
        mine = [c for p, c in by_unit[v] if p == o]
        if not mine:
            return pyo.Constraint.Skip
        return pyo.quicksum(m.z[i, o, c] for c in mine) <= m.u[i, o]

    @model.Constraint(model.slots)
    def slots_in_turn(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        if i + 1 == slots:
            return pyo.Constraint.Skip
        used = pyo.quicksum(m.u[i, o] for o in m.options)
        return used >= pyo.quicksum(m.u[i + 1, o] for o in m.options)

    @model.Constraint(model.slots)
    def not_empty(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        used = pyo.quicksum(m.u[i, o] for o in m.options)
        return pyo.quicksum(x(v, i) for v in m.units) >= used

    @model.Constraint(pyo.RangeSet(0, len(staging.edges) - 1), model.slots)
    def forward(m: pyo.ConcreteModel, e: int, i: int) -> pyo.Expression:
        a, b = staging.edges[e].tolist()
        if i + 1 == slots:
            return pyo.Constraint.Skip
        return pyo.quicksum(x(b, j) for j in range(i + 1)) <= pyo.quicksum(
            x(a, j) for j in range(i + 1)
        )

    @model.Constraint(pyo.RangeSet(0, len(staging.uncut) - 1), model.slots)
    def kept_together(m: pyo.ConcreteModel, k: int, i: int) -> pyo.Expression:
        a, b = staging.uncut[k].tolist()
        return pyo.Constraint.Skip if a == b else x(a, i) == x(b, i)

    @model.Constraint(model.slots, model.options)
    def memory(m: pyo.ConcreteModel, i: int, o: int) -> pyo.Expression:
        capacity = float(staging.capacity[options[o].kind])
        if math.isinf(capacity) or not by_option[o]:
            return pyo.Constraint.Skip
        unit = max(capacity, 1.0)
        taken = pyo.quicksum(size(c, options[o]) / unit * m.z[i, o, c] for c in by_option[o])
        return taken <= capacity / unit * m.u[i, o]

    def d_of(o: int) -> int:
        return int(divisors[options[o].divisor])

    @model.Constraint(model.slots)
    def in_flight(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        if problem.schedule == "gpipe":
            return pyo.Constraint.Skip
        behind = pyo.quicksum(d_of(o) * m.u[j, o] for j in range(i, slots) for o in m.options)
        # options with the same y·d leave the same room
        return behind <= pyo.quicksum(
            d_of(o) * options[o].in_flight * m.u[i, o] for o in m.options
        )

    @model.Constraint(pyo.RangeSet(0, len(staging.kinds) - 1))
    def device_count(m: pyo.ConcreteModel, g: int) -> pyo.Expression:
        mine = [o for o, option in enumerate(options) if option.kind == g]
        used = pyo.quicksum(
            width[options[o].degree][options[o].divisor] * m.u[i, o]
            for i in m.slots
            for o in mine
        )
        return used <= int(staging.count[g]) if mine else pyo.Constraint.Skip

    @model.Constraint()
    def replica_count(m: pyo.ConcreteModel) -> pyo.Expression:
        used = pyo.quicksum(d_of(o) * m.u[i, o] for i in m.slots for o in m.options)
        return used <= staging.most_replicas

    @model.Constraint(model.ends, model.slots)
    def edge_time(m: pyo.ConcreteModel, e: int, end: int, i: int) -> pyo.Expression:
        v, other = int(staging.edges[e, end]), int(staging.edges[e, 1 - end])
        terms = [(moved(c, e, o), o, c) for o, c in by_unit[v]]
        most_time = max((value for value, _, _ in terms), default=0.0)
        if most_time == 0:
            return pyo.Constraint.Skip
        paid = pyo.quicksum(value * m.z[i, o, c] for value, o, c in terms)
        return m.m[e, end, i] >= paid - most_time * x(other, i)

    @model.Constraint(model.slots)
    def stage_time(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        compute = pyo.quicksum(
            time(c, options[o]) * m.z[i, o, c] for o in m.options for c in by_option[o]
        )
        return m.t[i] >= compute + pyo.quicksum(m.m[e, end, i] for e, end in m.ends)

    @model.Constraint(model.slots)
    def slowest(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        return m.T >= m.t[i]

    @model.Constraint()
    def work_over_devices(m: pyo.ConcreteModel) -> pyo.Expression:
        """Σ_i d_i t_i TPS_i / s_i is at least the work: implied, but not by the relaxation."""
        share = float((staging.count / staging.slowdown).sum())
        work = pyo.quicksum(
            float(staging.degrees[options[o].degree] * staging.time[c]) / scale * m.z[i, o, c]
            for i, o, c in m.triples
        )
        return share * m.T >= work

    model.objective = pyo.Objective(expr=model.T)
    if problem.objective == "batch":
        drain = (staging.microbatches - 1) * model.T
        model.objective.expr = pyo.quicksum(model.t[i] for i in model.slots) + drain
    return Slots(staging, model, options, scale)
