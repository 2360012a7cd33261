"""Streams as an integer program: slots for stages, and one option for each slot.

Slots i = 0 … R−1 are the stages in pipeline order; a slot takes at most one *option* o: a kind of
device, a tensor degree t_o, replicas d_o, and microbatches in flight y_o. For given options all is
linear; `StageOptions` has the coefficients. Kinds may differ in count, memory and speed, which the
DP cannot take.

    symbol      meaning                                                         in the model
    u_{i,o}     1 if slot i takes option o                                      u[i,o]
    z_{i,o,c}   1 if configuration c, of some unit, is used in slot i under o   z[i,o,c]
    x_{v,i}     Σ {z_{i,o,c} : c of unit v, all o}: 1 if unit v is in slot i
    μ_{e,k,i}   time that edge e costs slot i, where its end k is               move[e,k,i]
    τ_i         time of stage i per microbatch                                  time[i]
    T           the longest of them                                             T
    p_{c,o}     what configuration c adds to its stage's time under option o
    l_{c,o,e}   what edge e, if cut, adds to it
    a_c, b_c    memory of a configuration: a_c per microbatch in flight, and b_c
    M_k, n_k    memory of a device of kind k, and their number
    D           most replicas in all

    minimise  T                                                                           (0)

    Σ_i x_{v,i} = 1                                                                       (1)
    Σ_o u_{i,o} ≤ 1                                                                       (2)
    Σ_{c of v} z_{i,o,c} ≤ u_{i,o}                                                        (3)
    Σ_o u_{i,o} ≥ Σ_o u_{i+1,o}                                                           (4)
    Σ_v x_{v,i} ≥ Σ_o u_{i,o}                                                             (5)
    Σ_{j ≤ i} x_{b,j} ≤ Σ_{j ≤ i} x_{a,j}                                                 (6)
    x_{a,i} = x_{b,i}                                                                     (7)
    Σ_c (a_c y_o + b_c) z_{i,o,c} ≤ M_k u_{i,o}                                           (8)
    Σ_{j ≥ i} Σ_o d_o u_{j,o} ≤ Σ_o y_o d_o u_{i,o}                                       (9)
    Σ_i Σ_{o of kind k} d_o t_o u_{i,o} ≤ n_k                                            (10)
    Σ_i Σ_o d_o u_{i,o} ≤ D                                                              (11)
    μ_{e,k,i} ≥ Σ_{o, c of end k} l_{c,o,e} z_{i,o,c} − max l x_{other end,i}            (12)
    τ_i ≥ Σ_{o,c} p_{c,o} z_{i,o,c} + Σ_{e,k} μ_{e,k,i}                                  (13)
    τ_i ≤ T                                                                              (14)
    Σ_k n_k / slowdown_k T ≥ Σ_{i,o,c} t_o time_c z_{i,o,c}                              (15)
    x_{a,i} + x_{b,i} ≤ 1                                                                (16)
    x_{v,i} = 0  for all i but the stage that v is pinned to                             (17)
    x_{v,i} ≤ Σ_o u_{j,o},  x_{v,i} + Σ_o u_{j+1,o} ≤ 1  with j = i + m − 1              (18)

(16) is for units that must be apart, (17) and (18) for units that are pinned; with (18), to the
m-th stage from the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import pyomo.environ as pyo

from ...instances import InfeasibleError, Stage, StagePlacement
from ..program import Start, Value
from .stream import Staging


@dataclass(frozen=True)
class Option:
    """Option of a slot: indices in the staging of kind, degree and number of replicas, and y."""

    kind: int
    degree: int
    divisor: int
    in_flight: int


@dataclass(frozen=True, eq=False)
class StageOptions:
    """The slots, their options, and the coefficients of the program."""

    staging: Staging
    #: Time units of the workload per unit of the program.
    scale: float

    @cached_property
    def slots(self) -> int:
        """Number of slots: the largest number of stages."""
        return len(self.staging.sizes())

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """All options of a slot, with each possible number of microbatches in flight."""
        staging = self.staging
        gpipe = staging.problem.in_flight == "gpipe"
        most = min(staging.most_replicas, int(staging.count.sum()))
        return tuple(
            Option(k, t, p, y)
            for k in range(len(staging.kinds))
            for t, degree in enumerate(staging.degrees.tolist())
            for p, d in enumerate(staging.divisors.tolist())
            if degree * d <= staging.count[k] and d <= most
            for y in ([staging.in_flight(d, 0)] if gpipe else range(1, -(-most // d) + 1))
        )

    @cached_property
    def choices(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each unit, the options whose memory holds it alone, with its configurations there."""
        staging = self.staging
        found = []
        for v in range(staging.size):
            own = tuple(
                (o, c)
                for o, option in enumerate(self.options)
                if staging.allowed[v, option.divisor]
                for c in staging.choices(v, option.degree)
                if self.size(c, o) <= staging.capacity[option.kind]
            )
            if not own:
                node = staging.workload.ids[int(staging.node_of[v])]
                raise InfeasibleError(f"node {node} alone fits on no device; give more memory")
            found.append(own)
        return tuple(found)

    @cached_property
    def configurations(self) -> list[list[int]]:
        """For each option, the configurations that may be used under it, by unit."""
        lists: list[list[int]] = [[] for _ in self.options]
        for o, c in chain.from_iterable(self.choices):
            lists[o].append(c)
        return lists

    def replicas(self, o: int) -> int:
        """Return the number of replicas d of an option."""
        return int(self.staging.divisors[self.options[o].divisor])

    def width(self, o: int) -> int:
        """Return the number of devices that an option takes."""
        return self.replicas(o) * int(self.staging.degrees[self.options[o].degree])

    def size(self, c: int, o: int) -> float:
        """Return the bytes of a configuration under an option."""
        staging = self.staging
        y = self.options[o].in_flight
        return float(staging.per_microbatch[c] * y + staging.fixed[c])

    def time(self, c: int, o: int) -> float:
        """Return the time that a configuration adds to its stage, without transfers."""
        staging, option = self.staging, self.options[o]
        d = self.replicas(o)
        compute = float(staging.time[c] * staging.slowdown[option.kind])
        return (
            (compute + staging.kappa(option.degree, d) * float(staging.weight[c])) / d / self.scale
        )

    def moved(self, c: int, o: int, e: int) -> float:
        """Return the time that a cut edge at its node adds to the stage of a configuration."""
        staging = self.staging
        low, high = int(staging.sync_start[c]), int(staging.sync_start[c + 1])
        time = float(staging.edge_time[e])
        time += sum(float(staging.sync_time[at]) for at in range(low, high)
                    if staging.sync_edge[at] == e)  # fmt: skip
        return time / self.replicas(o) / self.scale


#: A device's memory in the program: far above the solvers' absolute tolerances.
MEMORY_SCALE = 1000.0


@dataclass(frozen=True, eq=False)
class Slots:
    """The Pyomo program, with its data for reading solutions; times in units of `data.scale`."""

    data: StageOptions
    model: pyo.ConcreteModel

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return self.data.scale

    def read(self, value: Value) -> list[Stage]:
        """Return the stages of a solution, given the value of each variable."""
        staging, model = self.data.staging, self.model
        stages = []
        for i, o in model.u:
            if value(model.u[i, o]) < 0.5:
                continue
            option = self.data.options[o]
            chosen = [
                (v, c)
                for v, own in enumerate(self.data.choices)
                for p, c in own
                if p == o and value(model.z[i, o, c]) > 0.5
            ]
            units, options = zip(*chosen, strict=True) if chosen else ((), ())
            replicas = self.data.replicas(o)
            stages.append(staging.stage(units, options, replicas, option.degree, option.kind))
        return stages

    def start(self, plan: StagePlacement) -> Start | None:
        """Return the values of the binaries for a plan; None if it has too many stages."""
        staging, model = self.data.staging, self.model
        if len(plan.stages) > self.data.slots:
            return None
        number = {option: o for o, option in enumerate(self.data.options)}
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


def stream_model(staging: Staging, scale: float) -> Slots:
    """State the program, with `scale` as its unit of time.

    It is far below the objective, because solvers' tolerances are absolute. Raises
    `InfeasibleError` if a layer alone fits on no device.
    """
    data = StageOptions(staging, scale)
    m = pyo.ConcreteModel(staging.workload.name)
    _variables(m, data)
    _options(m, data)
    _pipeline(m, data)
    _devices(m, data)
    _times(m, data)
    _rules(m, data)
    m.objective = pyo.Objective(expr=m.T)
    return Slots(data, m)


def _x(m: pyo.ConcreteModel, data: StageOptions, v: int, i: int) -> pyo.Expression:
    """Return x_{v,i}."""
    return pyo.quicksum(m.z[i, o, c] for o, c in data.choices[v])


def _used(m: pyo.ConcreteModel, data: StageOptions, i: int) -> pyo.Expression:
    """Return Σ_o u_{i,o}: 1 if slot i is in use."""
    return pyo.quicksum(m.u[i, o] for o in range(len(data.options)))


def _variables(m: pyo.ConcreteModel, data: StageOptions) -> None:
    slots = range(data.slots)
    ends = [(e, k) for e in range(len(data.staging.edges)) for k in (0, 1)]
    taken = [(i, o, c) for i in slots for own in data.choices for o, c in own]
    m.u = pyo.Var(slots, range(len(data.options)), domain=pyo.Binary)
    m.z = pyo.Var(taken, domain=pyo.Binary)
    m.move = pyo.Var(ends, slots, domain=pyo.NonNegativeReals)
    m.time = pyo.Var(slots, domain=pyo.NonNegativeReals)
    m.T = pyo.Var(domain=pyo.NonNegativeReals)


def _options(m: pyo.ConcreteModel, data: StageOptions) -> None:
    """Add rows (1) to (5): each unit in one slot; slots used from the first on, one option each."""
    slots, options, units = range(data.slots), range(len(data.options)), range(data.staging.size)

    def placed_once(m: pyo.ConcreteModel, v: int) -> object:
        """(1) Σ_i x_{v,i} = 1  for all units v."""
        return pyo.quicksum(m.z[i, o, c] for i in slots for o, c in data.choices[v]) == 1

    def one_option(m: pyo.ConcreteModel, i: int) -> object:
        """(2) Σ_o u_{i,o} ≤ 1  for all slots i."""
        return _used(m, data, i) <= 1

    def under_its_option(m: pyo.ConcreteModel, i: int, o: int, v: int) -> object:
        """(3) Σ_{c of v} z_{i,o,c} ≤ u_{i,o}  for all slots i, options o, units v."""
        own = [m.z[i, o, c] for p, c in data.choices[v] if p == o]
        return pyo.quicksum(own) <= m.u[i, o] if own else pyo.Constraint.Skip

    def in_turn(m: pyo.ConcreteModel, i: int) -> object:
        """(4) Σ_o u_{i,o} ≥ Σ_o u_{i+1,o}  for all slots i but the last."""
        return _used(m, data, i) >= _used(m, data, i + 1)

    def not_empty(m: pyo.ConcreteModel, i: int) -> object:
        """(5) Σ_v x_{v,i} ≥ Σ_o u_{i,o}  for all slots i."""
        return pyo.quicksum(_x(m, data, v, i) for v in units) >= _used(m, data, i)

    m.placed_once = pyo.Constraint(units, rule=placed_once)
    m.one_option = pyo.Constraint(slots, rule=one_option)
    m.under_its_option = pyo.Constraint(slots, options, units, rule=under_its_option)
    m.in_turn = pyo.Constraint(slots[:-1], rule=in_turn)
    m.not_empty = pyo.Constraint(slots, rule=not_empty)


def _pipeline(m: pyo.ConcreteModel, data: StageOptions) -> None:
    """Add rows (6) and (7): edges that never run back, and units that must share a stage."""
    slots, edges = range(data.slots), data.staging.edges.tolist()

    def up_to(m: pyo.ConcreteModel, v: int, i: int) -> pyo.Expression:
        return pyo.quicksum(_x(m, data, v, j) for j in range(i + 1))

    def forward(m: pyo.ConcreteModel, e: int, i: int) -> object:
        """(6) Σ_{j ≤ i} x_{b,j} ≤ Σ_{j ≤ i} x_{a,j}  for all edges e = (a, b), slots i."""
        return up_to(m, edges[e][1], i) <= up_to(m, edges[e][0], i)

    def uncut(m: pyo.ConcreteModel, a: int, b: int, i: int) -> object:
        """(7) x_{a,i} = x_{b,i}  for all a and b that must share a stage, slots i."""
        return _x(m, data, a, i) == _x(m, data, b, i)

    pairs = [(a, b, i) for a, b in data.staging.uncut.tolist() if a != b for i in slots]
    m.forward = pyo.Constraint(range(len(edges)), slots[:-1], rule=forward)
    m.uncut = pyo.Constraint(pairs, rule=uncut)


def _devices(m: pyo.ConcreteModel, data: StageOptions) -> None:
    """Add rows (8) to (11): memory, microbatches in flight, and numbers of devices."""
    staging, slots, options = data.staging, range(data.slots), range(len(data.options))

    def fits(m: pyo.ConcreteModel, i: int, o: int) -> object:
        """(8) Σ_c (a_c y_o + b_c) z_{i,o,c} ≤ M_k u_{i,o}  for all slots i, options o of kind k."""
        capacity = float(staging.capacity[data.options[o].kind])
        if math.isinf(capacity) or not data.configurations[o]:
            return pyo.Constraint.Skip
        unit = capacity / MEMORY_SCALE if capacity > 0 else 1.0
        sizes = [data.size(c, o) / unit * m.z[i, o, c] for c in data.configurations[o]]
        return pyo.quicksum(sizes) <= capacity / unit * m.u[i, o]

    def in_flight(m: pyo.ConcreteModel, i: int) -> object:
        """(9) Σ_{j ≥ i} Σ_o d_o u_{j,o} ≤ Σ_o y_o d_o u_{i,o}  for all slots i; not for GPipe."""
        behind = [data.replicas(o) * m.u[j, o] for j in slots[i:] for o in options]
        room = [data.replicas(o) * data.options[o].in_flight * m.u[i, o] for o in options]
        return pyo.quicksum(behind) <= pyo.quicksum(room)

    def enough_devices(m: pyo.ConcreteModel, k: int) -> object:
        """(10) Σ_i Σ_{o of kind k} d_o t_o u_{i,o} ≤ n_k  for all kinds k."""
        own = [o for o in options if data.options[o].kind == k]
        taken = [data.width(o) * m.u[i, o] for i in slots for o in own]
        return pyo.quicksum(taken) <= int(staging.count[k]) if own else pyo.Constraint.Skip

    def enough_microbatches(m: pyo.ConcreteModel) -> object:
        """(11) Σ_i Σ_o d_o u_{i,o} ≤ D."""
        replicas = [data.replicas(o) * m.u[i, o] for i in slots for o in options]
        return pyo.quicksum(replicas) <= staging.most_replicas

    m.fits = pyo.Constraint(slots, options, rule=fits)
    if staging.problem.in_flight != "gpipe":
        m.in_flight = pyo.Constraint(slots, rule=in_flight)
    m.enough_devices = pyo.Constraint(range(len(staging.kinds)), rule=enough_devices)
    m.enough_microbatches = pyo.Constraint(rule=enough_microbatches)


def _times(m: pyo.ConcreteModel, data: StageOptions) -> None:
    """Add rows (12) to (15): the time of each stage; (15) is implied, but not by the relaxation."""
    staging, slots, options = data.staging, range(data.slots), range(len(data.options))
    edges = staging.edges.tolist()
    ends = [(e, k) for e in range(len(edges)) for k in (0, 1)]

    def cut_edge(m: pyo.ConcreteModel, e: int, k: int, i: int) -> object:
        """(12) μ_{e,k,i} ≥ Σ_{o, c of end k} l_{c,o,e} z_{i,o,c} − max l x_{other end,i}  for all
        edges e, ends k, slots i."""
        own = [(data.moved(c, o, e), o, c) for o, c in data.choices[edges[e][k]]]
        most = max(time for time, _, _ in own)
        if most == 0:
            return pyo.Constraint.Skip
        paid = pyo.quicksum(time * m.z[i, o, c] for time, o, c in own)
        return m.move[e, k, i] >= paid - most * _x(m, data, edges[e][1 - k], i)

    def stage_time(m: pyo.ConcreteModel, i: int) -> object:
        """(13) τ_i ≥ Σ_{o,c} p_{c,o} z_{i,o,c} + Σ_{e,k} μ_{e,k,i}  for all slots i."""
        compute = [data.time(c, o) * m.z[i, o, c] for o in options for c in data.configurations[o]]
        return m.time[i] >= pyo.quicksum(compute) + pyo.quicksum(m.move[e, k, i] for e, k in ends)

    def slowest(m: pyo.ConcreteModel, i: int) -> object:
        """(14) τ_i ≤ T  for all slots i."""
        return m.time[i] <= m.T

    def work_over_devices(m: pyo.ConcreteModel) -> object:
        """(15) Σ_k n_k / slowdown_k T ≥ Σ_{i,o,c} t_o time_c z_{i,o,c}."""
        share = float((staging.count / staging.slowdown).sum())
        work = pyo.quicksum(
            float(staging.degrees[data.options[o].degree] * staging.time[c]) / data.scale * var
            for (_, o, c), var in m.z.items()
        )
        return share * m.T >= work

    m.cut_edge = pyo.Constraint(ends, slots, rule=cut_edge)
    m.stage_time = pyo.Constraint(slots, rule=stage_time)
    m.slowest = pyo.Constraint(slots, rule=slowest)
    m.work_over_devices = pyo.Constraint(rule=work_over_devices)


def _rules(m: pyo.ConcreteModel, data: StageOptions) -> None:
    """Add rows (16) to (18): units that the user wants apart, and those pinned to a stage."""
    slots, rules = range(data.slots), data.staging.rules
    pins = sorted({(int(rules.unit_of[pin.node]), pin.number) for pin in rules.pins})

    def apart(m: pyo.ConcreteModel, a: int, b: int, i: int) -> object:
        """(16) x_{a,i} + x_{b,i} ≤ 1  for all a and b that must be apart, slots i."""
        return _x(m, data, a, i) + _x(m, data, b, i) <= 1

    def pinned(m: pyo.ConcreteModel, v: int, number: int, i: int) -> object:
        """(17) x_{v,i} = 0  for all v pinned to a stage, slots i of other stages."""
        return _x(m, data, v, i) == 0 if i != number else pyo.Constraint.Skip

    def last_in_use(m: pyo.ConcreteModel, v: int, number: int, i: int, side: int) -> object:
        """(18) x_{v,i} ≤ Σ_o u_{j,o},  x_{v,i} + Σ_o u_{j+1,o} ≤ 1  with j = i + m − 1  for all v
        pinned to the m-th stage from the end, slots i."""
        j = i - number - 1 + side
        used = _used(m, data, j) if j < data.slots else 0
        return _x(m, data, v, i) <= used if side == 0 else _x(m, data, v, i) + used <= 1

    m.apart = pyo.Constraint([(a, b, i) for a, b in rules.units_apart for i in slots], rule=apart)
    m.pinned = pyo.Constraint([(v, t, i) for v, t in pins if t >= 0 for i in slots], rule=pinned)
    m.last_in_use = pyo.Constraint(
        [(v, t, i, side) for v, t in pins if t < 0 for i in slots for side in (0, 1)],
        rule=last_in_use,
    )
