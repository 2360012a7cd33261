"""The time of an iteration as an integer program, for contiguous splits on devices of one kind.

A plan is a chain of P stages, s = 0 … P − 1. For a given P the schedule fixes the order of the
actions a = (s, κ, j), kind κ of microbatch j (`orders`), so only their times are unknown, and those
are linear in the placement. The program has a copy of all variables for each P that the schedule
allows; those of all P but one are 0.

    symbol       meaning                                                      in the model
    y_P          1 if there are P stages                                      y[P]
    x_{v,P,s}    1 if unit v is in stage s of P                               x[v,P,s]
    f_{P,s}      time of the forward pass of a microbatch                     forward[P,s]
    b_{P,s}      time of its backward pass                                    backward[P,s]
    w_{P,s}      the part of b that computes gradients of weights             weights[P,s]
    in_{e,P,s,τ}   1 if value e enters the device of stage s in its pass τ    enters[e,P,s,τ]
    out_{e,P,s}  1 if value e leaves the device of stage s, which makes it    leaves[e,P,s]
    up_{e,P,s}   1 if value e is passed on from stage s to stage s + 1        up[e,P,s]
    down_{e,P,s}   1 if it is passed on from stage s + 1 to stage s           down[e,P,s]
    t_{P,a}      when action a begins                                         start[P,s,κ,j]
    T_P          the makespan                                                 T[P]
    u_e, τ_e     unit that makes value e, in its pass τ_e
    d_{P,a}      duration of an action: f, b, b − w or w of its stage
    c_e          time of a transfer of value e at one end
    p_{v,τ}      time of unit v in pass τ
    ω            part of a backward pass's compute that W takes
    R_v, A_v     bytes of unit v all the time, and for each microbatch in flight
    a_s          microbatches in flight in stage s: a vector of the schedule
    M            memory of a device

    minimise  Σ_P T_P                                                                     (0)

    Σ_P y_P = 1                                                                           (1)
    Σ_s x_{v,P,s} = y_P                                                                   (2)
    Σ_v x_{v,P,s} ≥ y_P                                                                   (3)
    Σ_{s' ≤ s} x_{v,P,s'} ≤ Σ_{s' ≤ s} x_{u,P,s'}                                         (4)
    Σ_{s on d} Σ_v (R_v + a_s A_v) x_{v,P,s} ≤ M y_P                                      (5)
    f_{P,s} = Σ_v p_{v,F} x_{v,P,s} + Σ_e c_e (what e moves in the forward pass)          (6)
    b_{P,s} = Σ_v p_{v,B} x_{v,P,s} + Σ_e c_e (what e moves in the backward pass)         (7)
    w_{P,s} = ω Σ_v p_{v,B} x_{v,P,s}                                                     (8)
    Σ_{(s',τ') ≤ (s,τ) on d} in_{e,P,s',τ'} ≥ x_{v,P,s} − Σ_{s' on d} x_{u,P,s'}          (9)
    in_{e,P,s,τ} ≤ Σ_{v needs e in τ} x_{v,P,s}                                          (10)
    out_{e,P,s} ≥ x_{u,P,s} − Σ_{s' on d} x_{v,P,s'}                                     (11)
    up_{e,P,s} ≥ Σ_{s' ≤ s} x_{u,P,s'} − Σ_{s' ≤ s} x_{v,P,s'}                           (12)
    down_{e,P,s} ≥ Σ_{s' ≤ s} x_{v,P,s'} − Σ_{s' ≤ s} x_{u,P,s'}                         (13)
    t_{P,a'} ≥ t_{P,a} + d_{P,a}  for a' next on the device                              (14)
    t_{P,a'} ≥ t_{P,a} + d_{P,a}  for a' that needs a                                    (15)
    T_P ≥ t_{P,a} + d_{P,a}                                                              (16)
    Σ_P T_P ≥ what is known to be a bound                                                (17)
    Σ_{s on d} x_{u,P,s} + Σ_{s on d} x_{v,P,s} ≤ 1  for u and v that must be apart      (18)

over lengths P, stages s of their devices d, units v, edges (u, v), and values e with their users v.
A value enters a device once, with the first pass there that needs it, (9) and (10), and leaves it
once, in the pass that makes it, (11). Relayed, it crosses every boundary between its maker and its
users, and both sides pay if they are on different devices: (12) and (13) take the place of (9) to
(11). The edges of (4) are those of `line.chain_edges`.
Only schedules that split backward passes have (8). A unit that is pinned to a stage
has x = 0 for all others.

References
----------
The orders: see `orders`. The program is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import pyomo.environ as pyo

from ...instances import InfeasibleError, PipelineJob, PipelinePlacement
from ...instances.common.arrays import Floats
from ..program import Start
from ..program import Value as ValueOf
from ..task import Task
from ..throughput.infeasible import why_infeasible
from .iteration_bounds import max_load_task
from .line import Line, chain_edges, line
from .orders import BACKWARD, FORWARD, INPUT, WEIGHT, ScheduleOrder, order_of

#: A stage: the length P of its chain, and its number s.
Stage = tuple[int, int]


#: An action: length P of its chain, stage, kind and microbatch.
Action = tuple[int, int, int, int]


@dataclass(frozen=True)
class MovedOutput:
    """Outputs that always move together: those of one pass of one unit with the same users."""

    #: Unit u that makes them.
    unit: int
    #: Pass that makes them: 0 forward, 1 backward.
    side: int
    #: Units that use them in their forward pass, and in their backward pass.
    users: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class IterationData:
    """Data of the program: units, edges, outputs, orders; times in units of `scale`."""

    #: Units, their times and bytes.
    line: Line
    #: Pairs of units; the first must not be in a later stage than the second.
    edges: list[tuple[int, int]]
    #: Outputs that other units need, in the order of their numbers e, and the time of a transfer of
    #: each, in the program's time unit.
    makers: list[MovedOutput]
    c: list[float]
    #: Orders of actions by number of stages P, for each P that the schedule allows.
    orders: dict[int, ScheduleOrder]
    #: Time units of the workload per time unit of the program.
    scale: float
    #: Lower bound of every plan's makespan, in the program's time unit.
    floor: float

    @property
    def problem(self) -> PipelineJob:
        """The problem as the user posed it."""
        return self.line.problem

    @property
    def units(self) -> range:
        """Numbers of the units."""
        return range(self.line.graph.size)

    @cached_property
    def stages(self) -> list[Stage]:
        """Stages of the chains of all lengths."""
        return [(p, s) for p in self.orders for s in range(p)]

    @cached_property
    def p(self) -> Floats:
        """Shape (2, U): forward and backward time of each unit; `inf` where unsupported."""
        scaled: Floats = self.line.compute[0] / self.scale
        return scaled

    def mates(self, length: int, s: int) -> list[int]:
        """Return the stages on the device of stage s, increasing."""
        device = self.orders[length].device
        return np.flatnonzero(device == device[s]).tolist()

    def before(self, length: int, s: int, side: int) -> list[tuple[int, int]]:
        """Return the passes of a microbatch on the device of stage s up to pass `side` of s.

        Forward passes are in the order of the chain, backward passes in reverse order.
        """
        own = self.mates(length, s)
        up, down = [(t, FORWARD) for t in own], [(t, BACKWARD) for t in reversed(own)]
        passes = up + (down if self.line.trains else [])
        return passes[: passes.index((s, side)) + 1]

    @cached_property
    def by_device(self) -> list[list[Action]]:
        """Actions of each device, of the chains of all lengths."""
        tables = [(p, table) for p, order in self.orders.items() for table in order.tables]
        return [[(p, *row) for row in table.tolist()] for p, table in tables]

    @cached_property
    def actions(self) -> list[Action]:
        """Actions of the chains of all lengths."""
        return list(chain.from_iterable(self.by_device))

    @cached_property
    def on_device(self) -> list[tuple[Action, Action]]:
        """Pairs of consecutive actions on a device."""
        return list(chain.from_iterable(map(pairwise, self.by_device)))

    @cached_property
    def along_chain(self) -> list[tuple[Action, Action]]:
        """Pairs of actions; the second needs the result of the first."""
        pairs: list[tuple[Action, Action]] = []
        every = set(self.actions)
        for p, s, kind, j in self.actions:
            if kind == FORWARD and s > 0:
                pairs.append(((p, s - 1, FORWARD, j), (p, s, kind, j)))
            elif kind == WEIGHT:
                pairs.append(((p, s, INPUT, j), (p, s, kind, j)))
            elif kind != FORWARD:
                whole = p, s + 1, BACKWARD, j
                behind = whole if whole in every else (p, s + 1, INPUT, j)
                after = (p, s, FORWARD, j) if s == p - 1 else behind
                pairs.append((after, (p, s, kind, j)))
        return pairs


#: Memory limit in the program's unit: the solver's tolerance of 1e-6 is then 1e-10 of the limit.
MEMORY_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class IterationModel:
    """The Pyomo program, with its data for reading solutions and writing starts."""

    #: Data of the program.
    data: IterationData
    #: Pyomo model; its objective times `scale` is in the workload's time unit.
    model: pyo.ConcreteModel
    #: Numbers of the devices, which are of one kind.
    devices: tuple[int, ...]

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return self.data.scale

    def read(self, value: ValueOf) -> PipelinePlacement:
        """Return the plan, given the value of each variable."""
        m, data = self.model, self.data
        length = max(data.orders, key=lambda p: value(m.y[p]))
        taken = [max(range(length), key=lambda s: value(m.x[v, length, s])) for v in data.units]
        where = tuple(self.devices[d] for d in data.orders[length].device.tolist())
        return PipelinePlacement(data.line.graph.expand(taken), where)

    def start(self, plan: PipelinePlacement) -> Start:
        """Return the values of the integer variables for a plan."""
        m, length = self.model, len(plan.devices)
        stage = self.data.line.graph.restrict(plan.stage).tolist()
        values = [(var, float(p == length)) for p, var in m.y.items()]
        return values + [
            (var, float(p == length and stage[v] == s)) for (v, p, s), var in m.x.items()
        ]


def iteration_model(
    task: Task[PipelineJob], *, reference: float | None = None, floor: float = 0.0
) -> IterationModel:
    """State the program; no plan has a makespan below `floor`.

    Times are scaled so that `reference`, a likely makespan, becomes 1000. With U units, E moved
    outputs with at most K users, and the sum S of all lengths P, there are about S·(U + 3E + 3M)
    columns and S·(U + 3EK + 6M) rows.
    """
    data = iteration_data(task, reference, floor)
    m = pyo.ConcreteModel(task.workload.name)
    _variables(m, data)
    _stages(m, data)
    _memory(m, data)
    _durations(m, data)
    if data.problem.relayed:
        add_relayed(m, data)
    else:
        add_direct(m, data)
    _times(m, data)
    _objective(m, data)
    devices = np.flatnonzero(task.costs.kind_of == data.line.kinds[0]).tolist()
    return IterationModel(data, m, tuple(devices))


def _variables(m: pyo.ConcreteModel, data: IterationData) -> None:
    stages, passes = data.stages, range(2 if data.line.trains else 1)
    apart = [
        (e, p, s) for e in range(len(data.c)) for p, s in stages if data.mates(p, s) != [*range(p)]
    ]
    m.y = pyo.Var(data.orders, domain=pyo.Binary)
    m.x = pyo.Var([(v, p, s) for v in data.units for p, s in stages], domain=pyo.Binary)
    m.forward = pyo.Var(stages, bounds=(0, None))
    m.backward = pyo.Var(stages, bounds=(0, None))
    splits = any(order.splits for order in data.orders.values())
    m.weights = pyo.Var(stages if splits else [], bounds=(0, None))
    relayed = data.problem.relayed
    direct = [] if relayed else apart
    m.enters = pyo.Var([(*key, side) for key in direct for side in passes], bounds=(0, 1))
    m.leaves = pyo.Var(direct, bounds=(0, 1))
    others = [
        key for key in apart if key[2] < key[1] - 1 and key[2] + 1 not in data.mates(*key[1:])
    ]
    boundaries = others if relayed else []
    m.up = pyo.Var(boundaries, bounds=(0, 1))
    m.down = pyo.Var(boundaries, bounds=(0, 1))
    m.start = pyo.Var(data.actions, bounds=(0, None))
    m.T = pyo.Var(data.orders, bounds=(0, None))
    for v in data.units:
        if not np.isfinite(data.p[:, v]).all():
            for p, s in stages:
                m.x[v, p, s].fix(0)
    for p, s in stages:
        for v, own in data.line.rules.stages(p).items():
            if own != s:
                m.x[v, p, s].fix(0)


def _stages(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Add rows (1) to (4) and (18): each unit in one stage, no stage empty, edges, units apart."""

    def one_length(m: pyo.ConcreteModel) -> object:
        """(1) Σ_P y_P = 1."""
        return pyo.quicksum(m.y.values()) == 1

    def placed_once(m: pyo.ConcreteModel, v: int, p: int) -> object:
        """(2) Σ_s x_{v,P,s} = y_P  for all units v, lengths P."""
        return pyo.quicksum(m.x[v, p, s] for s in range(p)) == m.y[p]

    def not_empty(m: pyo.ConcreteModel, p: int, s: int) -> object:
        """(3) Σ_v x_{v,P,s} ≥ y_P  for all stages s of P."""
        return pyo.quicksum(m.x[v, p, s] for v in data.units) >= m.y[p]

    def in_order(m: pyo.ConcreteModel, u: int, v: int, p: int, s: int) -> object:
        """(4) Σ_{s' ≤ s} x_{v,P,s'} ≤ Σ_{s' ≤ s} x_{u,P,s'}  for all edges (u, v), stages s of P
        but the last."""
        if s == p - 1:
            return pyo.Constraint.Skip
        return up_to(m, v, p, s) <= up_to(m, u, p, s)

    def apart(m: pyo.ConcreteModel, u: int, v: int, p: int, d: int) -> object:
        """(18) Σ_{s on d} x_{u,P,s} + Σ_{s on d} x_{v,P,s} ≤ 1  for all u and v that must be
        apart, lengths P, devices d."""
        own = np.flatnonzero(data.orders[p].device == d).tolist()
        return pyo.quicksum(m.x[w, p, s] for w in (u, v) for s in own) <= 1

    m.one_length = pyo.Constraint(rule=one_length)
    m.apart = pyo.Constraint(
        [
            (u, v, p, d)
            for u, v in data.line.rules.units_apart
            for p, order in data.orders.items()
            for d in np.unique(order.device).tolist()
        ],
        rule=apart,
    )
    m.placed_once = pyo.Constraint(data.units, data.orders, rule=placed_once)
    m.not_empty = pyo.Constraint(data.stages, rule=not_empty)
    m.in_order = pyo.Constraint(
        [(u, v, p, s) for u, v in data.edges for p, s in data.stages],
        rule=in_order,
    )


def _memory(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Add rows (5): the bytes that a device holds at once."""
    line = data.line
    room = float(line.room[0])
    unit = room / MEMORY_SCALE if room > 0 else 1.0

    def fits(m: pyo.ConcreteModel, p: int, d: int, i: int) -> object:
        """(5) Σ_{s on d} Σ_v (R_v + a_s A_v) x_{v,P,s} ≤ M y_P  for all vectors a of devices d."""
        order = data.orders[p]
        held = []
        for s, flying in zip(np.flatnonzero(order.device == d), order.in_flight[d][i], strict=True):
            sizes = (line.resident + flying * line.activation) / unit
            held += [float(sizes[v]) * m.x[v, p, int(s)] for v in data.units if sizes[v] > 0]
        return pyo.quicksum(held) <= room / unit * m.y[p] if held else pyo.Constraint.Skip

    vectors = [
        (p, d, i)
        for p, order in data.orders.items()
        for d, listed in enumerate(order.in_flight)
        for i in range(len(listed))
    ]
    m.fits = pyo.Constraint(vectors if np.isfinite(room) else [], rule=fits)


def _durations(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Add rows (6) to (8): durations of the passes of each stage."""
    share = data.problem.weight_share

    def work(p: int, s: int, side: int) -> list[object]:
        times = data.p[side]
        return [
            float(times[v]) * m.x[v, p, s]
            for v in data.units
            if np.isfinite(times[v]) and times[v] > 0
        ]

    def forward_time(m: pyo.ConcreteModel, p: int, s: int) -> object:
        """(6) f_{P,s} = Σ_v p_{v,F} x_{v,P,s} + Σ_e c_e (what e moves in the forward pass)  for
        all stages s of P: in + out for those that it makes, or, relayed, up at both boundaries."""
        return m.forward[p, s] == pyo.quicksum(work(p, s, FORWARD) + moves(m, data, p, s, FORWARD))

    def backward_time(m: pyo.ConcreteModel, p: int, s: int) -> object:
        """(7) b_{P,s} = Σ_v p_{v,B} x_{v,P,s} + Σ_e c_e (what e moves in the backward pass)  for
        all stages s of P: as (6), or, relayed, down at both boundaries."""
        moved = moves(m, data, p, s, BACKWARD)
        return m.backward[p, s] == pyo.quicksum(work(p, s, BACKWARD) + moved)

    def weights_time(m: pyo.ConcreteModel, p: int, s: int) -> object:
        """(8) w_{P,s} = ω Σ_v p_{v,B} x_{v,P,s}  for all stages s of P."""
        return m.weights[p, s] == share * pyo.quicksum(work(p, s, BACKWARD))

    m.forward_time = pyo.Constraint(data.stages, rule=forward_time)
    m.backward_time = pyo.Constraint(data.stages, rule=backward_time)
    m.weights_time = pyo.Constraint(list(m.weights), rule=weights_time)


def _times(m: pyo.ConcreteModel, data: IterationData) -> None:
    """Add rows (14) to (16): each action begins after those before it on its device or needed."""

    def end(action: Action) -> pyo.Expression:
        p, s, kind, _ = action
        if kind == FORWARD:
            takes = m.forward[p, s]
        elif kind == BACKWARD:
            takes = m.backward[p, s]
        else:
            takes = m.backward[p, s] - m.weights[p, s] if kind == INPUT else m.weights[p, s]
        return m.start[action] + takes

    def one_by_one(m: pyo.ConcreteModel, i: int) -> object:
        """(14) t_{P,a'} ≥ t_{P,a} + d_{P,a}  for all actions a, a' next on its device."""
        before, after = data.on_device[i]
        return m.start[after] >= end(before)

    def waits(m: pyo.ConcreteModel, i: int) -> object:
        """(15) t_{P,a'} ≥ t_{P,a} + d_{P,a}  for all actions a' and a of a microbatch, of which a'
        needs what a makes."""
        before, after = data.along_chain[i]
        return m.start[after] >= end(before)

    def ends(m: pyo.ConcreteModel, i: int) -> object:
        """(16) T_P ≥ t_{P,a} + d_{P,a}  for the last action a of each device."""
        action = data.by_device[i][-1]
        return m.T[action[0]] >= end(action)

    m.one_by_one = pyo.Constraint(range(len(data.on_device)), rule=one_by_one)
    m.waits = pyo.Constraint(range(len(data.along_chain)), rule=waits)
    m.ends = pyo.Constraint(range(len(data.by_device)), rule=ends)


def _objective(m: pyo.ConcreteModel, data: IterationData) -> None:
    def above_floor(m: pyo.ConcreteModel) -> object:
        """(17) Σ_P T_P ≥ what is known to be a bound."""
        return pyo.quicksum(m.T.values()) >= data.floor

    if data.floor > 0:
        m.above_floor = pyo.Constraint(rule=above_floor)
    m.makespan = pyo.Objective(expr=pyo.quicksum(m.T.values()))


def iteration_data(
    task: Task[PipelineJob], reference: float | None, floor: float = 0.0
) -> IterationData:
    """Return the data of the program; times are scaled to make `reference`, if any, 1000.

    Raises `InfeasibleError` if some node fits on no device, the sizes are too large in all, or no
    number of stages suits the schedule.
    """
    reason = why_infeasible(max_load_task(task))
    if reason is not None:
        raise InfeasibleError(reason)
    stated = line(task)
    if not stated.sizes():
        raise InfeasibleError(stated.why_no_size())
    scale = 1.0 if reference is None or not reference > 0 else reference / 1000.0
    orders = {p: order_of(task.problem, p, stated.trains) for p in stated.sizes()}
    unit = stated.graph.unit_of.tolist()
    pairs = {(unit[u], unit[v]) for u, v in chain_edges(task.workload).tolist()}
    edges = sorted((a, b) for a, b in pairs if a != b)
    values = _values(task, stated)
    times = [time / scale for time in values.values()]
    return IterationData(stated, edges, list(values), times, orders, scale, floor / scale)


def _values(task: Task[PipelineJob], stated: Line) -> dict[MovedOutput, float]:
    """Return outputs that other units need, with the time of a move to or from host memory."""
    workload, unit = task.workload, stated.graph.unit_of.tolist()
    transfer = task.costs.transfer[stated.kinds[0]].tolist()
    side = workload.backward.astype(int).tolist()
    found: dict[MovedOutput, float] = {}
    for u, successors in enumerate(workload.successors):
        users: tuple[set[int], set[int]] = (set(), set())
        for v in successors:
            if unit[v] != unit[u]:
                users[side[v]].add(unit[v])
        if transfer[u] > 0 and any(users):
            first, second = (tuple(sorted(own)) for own in users)
            value = MovedOutput(unit[u], side[u], (first, second))
            found[value] = found.get(value, 0.0) + transfer[u]
    return found


def up_to(m: pyo.ConcreteModel, v: int, p: int, s: int) -> pyo.Expression:
    """Return Σ_{s' ≤ s} x_{v,P,s'}: 1 if unit v is in stage s or before."""
    return pyo.quicksum(m.x[v, p, t] for t in range(s + 1))


def moves(m: pyo.ConcreteModel, data: IterationData, p: int, s: int, side: int) -> list[object]:
    """Return terms of the time of a stage's transfers in a pass."""
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
    """Add rows (9) to (11): transfers straight to the devices that need the data."""
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
    """Add rows (12) and (13): transfers from stage to stage."""
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
