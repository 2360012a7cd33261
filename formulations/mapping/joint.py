"""Partition and mapping in one mixed-integer program: the units of each stage, and its devices.

The devices of the stages are x, y, w with (1) to (8) of `milp.py`.

    symbol        meaning                                                       in the model
    C_{v,s}       1 if unit v is in stage s or before                           C[v,s]
    f_{k,s}       1 if tensor k crosses boundary s down                         f[k,s]
    b_{k,s}       1 if the gradient of tensor k crosses boundary s up           b[k,s]
    down_s        1 if there is a message down over boundary s                  down[s]
    up_s          1 if there is one up                                          up[s]
    o_s           1 if stage s has parameters                                   some[s]
    P_s           longest message of boundary s                                 P[s]
    A_s           longest message of the ring of stage s                        A[s]
    T             the longest stage                                             T
    i_{v,s}       C_{v,s} − C_{v,s−1}: 1 if unit v is in stage s
    F_s           Σ_k bytes_k (f_{k,s} + b_{k,s}): bytes over boundary s
    n_s           down_s + up_s: messages over boundary s
    W_s           Σ_v bytes_v i_{v,s}: parameter bytes of stage s
    t_s           Σ_v time_v i_{v,s}: compute of stage s for a microbatch
    lat, inv      of a route d to e: latency, and 1 / bandwidth; * the least of all routes
    M             microbatches of a batch
    σ_d, σ        slowdown of device d, and of the fastest

    minimise  T                                                                           (0)

    C_{v,s−1} ≤ C_{v,s},   C_{v,−1} = 0,   C_{v,S−1} = 1                                  (9)
    C_{v,s} ≤ C_{u,s}                                                                    (10)
    Σ_v i_{v,s} ≥ 1                                                                      (11)
    f_{k,s} ≥ C_{maker,s} − C_{user,s}                                                   (12)
    b_{k,s} ≥ C_{user,s} − C_{maker,s}                                                   (13)
    down_s ≥ f_{k,s}                                                                     (14)
    up_s ≥ b_{k,s}                                                                       (15)
    o_s ≥ i_{v,s}                                                                        (16)
    P_s ≥ M (lat n_s + inv F_s) − most (1 − y_{s,d,e})                                   (17)
    P_s ≥ M (lat* n_s + inv* F_s)                                                        (18)
    A_s ≥ 2 (R − 1) (lat o_s + inv W_s / R) − most (1 − w_{s,d,e})                       (19)
    A_s ≥ 2 (R − 1) (lat* o_s + inv* W_s / R)                                            (20)
    M σ t_s + P_s + A_s ≤ T;  with overlap P_s + A_s ≤ T                                 (21)
    M σ t_s ≤ T,  with overlap                                                           (22)
    M σ_d t_s + P_s + A_s − (σ_d − σ) Σ_v M time_v (1 − x_{d,s}) ≤ T,  if σ_d > σ;
        with overlap without P_s + A_s                                                   (24)
    Σ_v memory_v i_{v,s} ≤ room_d + (total − room_d) (1 − x_{d,s})                       (23)

Without gradients nothing goes up. *most* is the largest value that the right side can have, less
what (18) or (20) says of the best pair. room_d: the memory of device d, where it is less than
*total*, the workload's. The program is solved for a few units and devices only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances import DeviceMapping, ReplicaPlacement
from ...instances.common.arrays import Floats, Ints
from ...instances.common.units import TIME_UNITS
from ...instances.model.stage_costs import parameter_bytes
from ..program import Start, Value
from ..task import Task
from .all_cuts import Units, partition_units
from .memory import device_rooms, held_bytes, relative_slowdowns
from .milp import Places, add_places


@dataclass(frozen=True, eq=False)
class JointData:
    """Units of a workload and the tensors between them; U units."""

    unit_of: Ints  # (n,): unit of each node
    units: Units  # compute and order
    # maker, users and bytes of each tensor that another unit needs
    tensors: tuple[tuple[int, tuple[int, ...], float], ...]
    parameters: Floats  # (U,): bytes
    memory: Floats  # (U,): bytes
    rooms: Floats  # (D,): bytes that each usable device can hold; `inf` for no limit
    slow: Floats  # (D,): how many times each usable device takes the units' seconds
    unit_s: float  # seconds of the workload's time unit


def joint_data(task: Task[DeviceMapping]) -> JointData:
    """Return the units of a workload, the tensors between them, and the devices' memory."""
    workload = task.workload
    unit_of, units = partition_units(workload)
    assert workload.output_bytes is not None  # partition_units has looked
    users: dict[int, set[int]] = {}
    for v, w in workload.edges.tolist():
        if unit_of[v] != unit_of[w] and workload.output_bytes[v] > 0:
            users.setdefault(v, set()).add(int(unit_of[w]))
    held = np.bincount(unit_of, weights=parameter_bytes(workload), minlength=units.size)
    tensors = tuple(
        (int(unit_of[v]), tuple(sorted(needed)), float(workload.output_bytes[v]))
        for v, needed in sorted(users.items())
    )
    unit_s = TIME_UNITS[workload.time_unit]
    memory = held_bytes(workload, unit_of, units.size)
    return JointData(
        unit_of,
        units,
        tensors,
        held.astype(np.float64),
        memory,
        device_rooms(task),
        relative_slowdowns(task),
        unit_s,
    )


@dataclass(frozen=True, eq=False)
class JointModel:
    """Program of partition and mapping, with its reader."""

    data: JointData  # data, problem: what it is stated over
    problem: DeviceMapping
    places: Places  # the devices of each stage; its `model` is the Pyomo model
    per_s: float  # units of the program's times per second

    @property
    def model(self) -> pyo.ConcreteModel:
        """The Pyomo model."""
        return self.places.model

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return 1 / (self.per_s * self.data.unit_s)

    def read(self, value: Value) -> ReplicaPlacement:
        """Return the plan, given the value of each variable."""
        last = self.problem.stages - 1
        stage = [
            last - sum(value(self.model.C[v, s]) > 0.5 for s in range(last))
            for v in range(self.data.units.size)
        ]
        slots, sends_to = self.places.read(value)
        of_node = np.array(stage, np.int64)[self.data.unit_of]
        return ReplicaPlacement(of_node, self.problem.topology.usable[slots], sends_to)

    def start(self, plan: ReplicaPlacement) -> Start:
        """Return the values of the whole-number variables for a plan."""
        units, cuts = range(self.data.units.size), range(self.problem.stages - 1)
        stage = np.zeros(self.data.units.size, np.int64)
        stage[self.data.unit_of] = plan.stage
        slots = self.problem.topology.usable_index[plan.slots]
        values = [(self.model.C[v, s], float(stage[v] <= s)) for v in units for s in cuts]
        return values + self.places.start(slots, plan.sends_to)


def joint_milp(data: JointData, problem: DeviceMapping, per_s: float) -> JointModel:
    """Return the program of partition and mapping, with its reader."""
    stages, replicas = problem.stages, problem.replicas
    sends = problem.mode != "allr" and stages > 1
    reduces = problem.mode != "p2p" and replicas > 1 and bool(data.parameters.any())
    m = pyo.ConcreteModel("partition and mapping")
    boundaries, rings = range(stages - 1 if sends else 0), range(stages if reduces else 0)
    places = Places(m, stages, replicas, len(problem.topology.usable), boundaries, rings)
    stated = JointModel(data, problem, places, per_s)
    add_places(places)
    _variables(stated)
    _stages(stated)
    _tensors(stated)
    _messages(stated)
    _stage_times(stated)
    _memory(stated)
    return stated


def _inside(m: pyo.ConcreteModel, v: int, s: int) -> pyo.Expression:
    """Return i_{v,s}."""
    return m.C[v, s] - m.C[v, s - 1]


def _variables(stated: JointModel) -> None:
    m, data, places = stated.model, stated.data, stated.places
    units, tensors, stages = range(data.units.size), range(len(data.tensors)), range(places.stages)
    m.C = pyo.Var(units, range(-1, places.stages), domain=pyo.Binary)
    for v in units:
        m.C[v, -1].fix(0)
        m.C[v, places.stages - 1].fix(1)
    m.f = pyo.Var(tensors, places.boundaries, bounds=(0, 1))
    m.b = pyo.Var(tensors, places.boundaries, bounds=(0, 1))
    m.down = pyo.Var(places.boundaries, bounds=(0, 1))
    m.up = pyo.Var(places.boundaries, bounds=(0, 1))
    m.some = pyo.Var(places.rings, bounds=(0, 1))
    m.P = pyo.Var(stages, domain=pyo.NonNegativeReals)
    m.A = pyo.Var(stages, domain=pyo.NonNegativeReals)
    m.T = pyo.Var(domain=pyo.NonNegativeReals)
    m.objective = pyo.Objective(expr=m.T)


def _stages(stated: JointModel) -> None:
    """Add (9) to (11): stages follow the edges, and none is empty."""
    m, data, edges = stated.model, stated.data, stated.data.units.edges.tolist()
    units, stages = range(data.units.size), range(stated.places.stages)

    def grows(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """(9) C_{v,s−1} ≤ C_{v,s}  for all units v, stages s."""
        return m.C[v, s - 1] <= m.C[v, s]

    def ordered(m: pyo.ConcreteModel, k: int, s: int) -> object:
        """(10) C_{v,s} ≤ C_{u,s}  for all edges (u, v), stages s but the last."""
        u, v = edges[k]
        return m.C[v, s] <= m.C[u, s]

    def filled(m: pyo.ConcreteModel, s: int) -> object:
        """(11) Σ_v i_{v,s} ≥ 1  for all stages s."""
        return sum(_inside(m, v, s) for v in units) >= 1

    m.grows = pyo.Constraint(units, stages, rule=grows)
    m.ordered = pyo.Constraint(range(len(edges)), stages[:-1], rule=ordered)
    m.filled = pyo.Constraint(stages, rule=filled)


def _tensors(stated: JointModel) -> None:
    """Add (12) to (16): tensors that cross boundaries, and whether a stage sends or reduces."""
    m, data, places = stated.model, stated.data, stated.places
    tensors = data.tensors
    ends = [[(maker, user) for user in users] for maker, users, _ in tensors]

    def goes_down(m: pyo.ConcreteModel, k: int, i: int, s: int) -> object:
        """(12) f_{k,s} ≥ C_{maker,s} − C_{user,s}  for all tensors k, users, boundaries s."""
        maker, user = ends[k][i]
        return m.f[k, s] >= m.C[maker, s] - m.C[user, s]

    def goes_up(m: pyo.ConcreteModel, k: int, i: int, s: int) -> object:
        """(13) b_{k,s} ≥ C_{user,s} − C_{maker,s}  for all tensors k, users, boundaries s."""
        maker, user = ends[k][i]
        return m.b[k, s] >= m.C[user, s] - m.C[maker, s]

    def some_down(m: pyo.ConcreteModel, k: int, s: int) -> object:
        """(14) down_s ≥ f_{k,s}  for all tensors k, boundaries s."""
        return m.down[s] >= m.f[k, s]

    def some_up(m: pyo.ConcreteModel, k: int, s: int) -> object:
        """(15) up_s ≥ b_{k,s}  for all tensors k, boundaries s."""
        return m.up[s] >= m.b[k, s]

    def some_held(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """(16) o_s ≥ i_{v,s}  for all units v with parameters, rings s."""
        return m.some[s] >= _inside(m, v, s)

    uses = [(k, i) for k, users in enumerate(ends) for i in range(len(users))]
    numbers, with_parameters = range(len(tensors)), np.flatnonzero(data.parameters).tolist()
    m.goes_down = pyo.Constraint(uses, places.boundaries, rule=goes_down)
    m.goes_up = pyo.Constraint(uses, places.boundaries, rule=goes_up)
    m.some_down = pyo.Constraint(numbers, places.boundaries, rule=some_down)
    m.some_up = pyo.Constraint(numbers, places.boundaries, rule=some_up)
    m.some_held = pyo.Constraint(with_parameters, places.rings, rule=some_held)


def _messages(stated: JointModel) -> None:
    """Add (17) to (20): times of messages between devices, and their lower bounds."""
    m, data, places = stated.model, stated.data, stated.places
    back = int(stated.problem.gradients)
    routes, usable = stated.problem.topology.routes, stated.problem.topology.usable
    lat = stated.per_s * routes.latency_s[np.ix_(usable, usable)]
    inv = stated.per_s / routes.bytes_per_s[np.ix_(usable, usable)]
    apart = ~np.eye(len(usable), dtype=np.bool_)
    lat_least = float(lat.min(where=apart, initial=np.inf))
    inv_least = float(inv.min(where=apart, initial=np.inf))
    size = [bytes_ for _, _, bytes_ in data.tensors]
    replicas, steps = places.replicas, 2 * (places.replicas - 1)
    microbatches, total = stated.problem.microbatches, float(data.parameters.sum())

    def sent(m: pyo.ConcreteModel, s: int, latency: float, inverse: float) -> pyo.Expression:
        messages = m.down[s] + back * m.up[s]
        crossing = sum(size[k] * (m.f[k, s] + back * m.b[k, s]) for k in range(len(size)))
        return microbatches * (latency * messages + inverse * crossing)

    def reduced(m: pyo.ConcreteModel, s: int, latency: float, inverse: float) -> pyo.Expression:
        held = sum(float(b) * _inside(m, v, s) for v, b in enumerate(data.parameters))
        return steps * (latency * m.some[s] + inverse / replicas * held)

    def transfer(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        """(17) P_s ≥ M (lat n_s + inv F_s) − most (1 − y_{s,d,e})  for all boundaries s, d ≠ e."""
        by_latency = (1 + back) * (float(lat[d, e]) - lat_least)
        most = microbatches * (by_latency + sum(size) * (float(inv[d, e]) - inv_least))
        cost = sent(m, s, float(lat[d, e]), float(inv[d, e]))
        return m.P[s] >= cost - most * (1 - m.y[s, d, e])

    def least_transfer(m: pyo.ConcreteModel, s: int) -> object:
        """(18) P_s ≥ M (lat* n_s + inv* F_s)  for all boundaries s."""
        return m.P[s] >= sent(m, s, lat_least, inv_least)

    def around(m: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        """(19) A_s ≥ 2 (R − 1) (lat o_s + inv W_s / R) − most (1 − w_{s,d,e})  for all rings s,
        d ≠ e."""
        by_bytes = total / replicas * (float(inv[d, e]) - inv_least)
        most = steps * (float(lat[d, e]) - lat_least + by_bytes)
        cost = reduced(m, s, float(lat[d, e]), float(inv[d, e]))
        return m.A[s] >= cost - most * (1 - m.w[s, d, e])

    def least_around(m: pyo.ConcreteModel, s: int) -> object:
        """(20) A_s ≥ 2 (R − 1) (lat* o_s + inv* W_s / R)  for all rings s."""
        return m.A[s] >= reduced(m, s, lat_least, inv_least)

    m.transfer = pyo.Constraint(places.boundaries, places.pairs, rule=transfer)
    m.least_transfer = pyo.Constraint(places.boundaries, rule=least_transfer)
    m.around = pyo.Constraint(places.rings, places.pairs, rule=around)
    m.least_around = pyo.Constraint(places.rings, rule=least_around)


def _stage_times(stated: JointModel) -> None:
    m, units, overlap = stated.model, stated.data.units, stated.problem.overlap
    slow, least = stated.data.slow, float(stated.data.slow.min())
    slower = np.flatnonzero(slow > least).tolist()
    total = stated.problem.microbatches * stated.per_s * float(units.seconds.sum())

    def compute(m: pyo.ConcreteModel, s: int, slowdown: float) -> pyo.Expression:
        each = slowdown * stated.problem.microbatches * stated.per_s
        return sum(each * float(units.seconds[v]) * _inside(m, v, s) for v in range(units.size))

    def longest(m: pyo.ConcreteModel, s: int) -> object:
        """(21) M σ t_s + P_s + A_s ≤ T  for all stages s; without M σ t_s with overlap."""
        return (0.0 if overlap else compute(m, s, least)) + m.P[s] + m.A[s] <= m.T

    def computes(m: pyo.ConcreteModel, s: int) -> object:
        """(22) M σ t_s ≤ T  for all stages s, with overlap."""
        return compute(m, s, least) <= m.T

    def slowest(m: pyo.ConcreteModel, s: int, d: int) -> object:
        """(24) M σ_d t_s + P_s + A_s − (σ_d − σ) Σ_v M time_v (1 − x_{d,s}) ≤ T  for all stages s,
        devices d that are not the fastest; with overlap without P_s + A_s."""
        free = (float(slow[d]) - least) * total * (1 - m.x[d, s])
        sent = 0.0 if overlap else m.P[s] + m.A[s]
        return compute(m, s, float(slow[d])) + sent - free <= m.T

    m.slowest = pyo.Constraint(range(stated.places.stages), slower, rule=slowest)
    m.longest = pyo.Constraint(range(stated.places.stages), rule=longest)
    if overlap:
        m.computes = pyo.Constraint(range(stated.places.stages), rule=computes)


def _memory(stated: JointModel) -> None:
    """Add (23), in parts of the total, where a device has less."""
    m, data, units = stated.model, stated.data, range(stated.data.units.size)
    total = float(data.memory.sum())
    short = [d for d, room in enumerate(data.rooms.tolist()) if room < total]

    def holds(m: pyo.ConcreteModel, s: int, d: int) -> object:
        """(23) Σ_v memory_v i_{v,s} ≤ room_d + (total − room_d) (1 − x_{d,s})  for all stages s,
        devices d with less than the total."""
        room = float(data.rooms[d]) / total
        held = sum(float(data.memory[v]) / total * _inside(m, v, s) for v in units)
        return held <= room + (1 - room) * (1 - m.x[d, s])

    m.holds = pyo.Constraint(range(stated.places.stages), short, rule=holds)
