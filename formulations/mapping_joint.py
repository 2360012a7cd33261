"""Partition and mapping in one mixed-integer program: which stage holds what, and where it runs.

With the devices placed as in `mapping_milp` (x, y, w), and in units of time

    C_{u,s}        unit u is in stage s or before          C_us ≤ C_u,s+1,  C_vs ≤ C_us for u → v
    f_{e,s}, b_es  tensor e crosses boundary s down, up    f_es ≥ C_maker,s − C_user,s, and back
    F_s, n_s       bytes over boundary s (both ways), and how many of its two messages there are
    W_s, o_s       parameter bytes of stage s, and whether there are any
    t_s            compute of stage s, at least one unit in each

    P_s ≥ m (n_s lat_de + F_s / bandwidth_de)               if y_sde
    A_s ≥ 2 (R − 1) (o_s lat_de + W_s / R / bandwidth_de)   if w_sde
    T ≥ m t_s + P_s + A_s,  or T ≥ m t_s and T ≥ P_s + A_s with overlap

The conditions are taken with the largest value that the right side can have, less what holds for
the best pair whatever is chosen. For a few units and devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ..instances import Mapping, Workload
from ..instances.arrays import Floats, Ints
from ..instances.stage_costs import parameter_bytes
from .balanced_partition import Units, partition_units
from .mapping_milp import place_stages


@dataclass(frozen=True, eq=False)
class JointData:
    """What may be cut; U units.

    Parameters
    ----------
    unit_of
        Shape (n,): unit of each node.
    units
        Compute and order.
    tensors
        Maker, users and bytes of each tensor that another unit needs.
    parameters
        Shape (U,): bytes.
    """

    unit_of: Ints
    units: Units
    tensors: tuple[tuple[int, tuple[int, ...], float], ...]
    parameters: Floats


def joint_data(workload: Workload) -> JointData:
    """Return the units of a workload, and what passes between them."""
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
    return JointData(unit_of, units, tensors, held.astype(np.float64))


def joint_milp(data: JointData, problem: Mapping, per_s: float) -> pyo.ConcreteModel:
    """Return the program; its times in units of which `per_s` are a second."""
    topology, units = problem.topology, data.units
    stages, replicas, m = problem.stages, problem.replicas, problem.microbatches
    among = np.ix_(topology.usable, topology.usable)
    latency = per_s * topology.routes.latency_s[among]
    inverse = per_s / topology.routes.bytes_per_s[among]
    apart = ~np.eye(len(latency), dtype=np.bool_)
    quickest = float(latency.min(where=apart, initial=np.inf))
    widest = float(inverse.min(where=apart, initial=np.inf))
    sends = problem.mode != "allr" and stages > 1
    reduces = problem.mode != "p2p" and replicas > 1 and bool(data.parameters.any())
    model = pyo.ConcreteModel("partition and mapping")
    place_stages(
        model,
        stages,
        replicas,
        len(latency),
        list(range(stages - 1)) if sends else [],
        list(range(stages)) if reduces else [],
    )
    model.U = pyo.RangeSet(0, units.size - 1)
    model.E = pyo.RangeSet(0, len(data.tensors) - 1)
    model.C = pyo.Var(model.U, pyo.RangeSet(-1, stages - 1), domain=pyo.Binary)
    for u in model.U:
        model.C[u, -1].fix(0)
        model.C[u, stages - 1].fix(1)
    model.f = pyo.Var(model.E, model.B, bounds=(0, 1))
    model.b = pyo.Var(model.E, model.B, bounds=(0, 1))
    model.down = pyo.Var(model.B, bounds=(0, 1))
    model.up = pyo.Var(model.B, bounds=(0, 1))
    model.some = pyo.Var(model.O, bounds=(0, 1))
    model.P = pyo.Var(model.S, domain=pyo.NonNegativeReals)
    model.A = pyo.Var(model.S, domain=pyo.NonNegativeReals)
    model.T = pyo.Var(domain=pyo.NonNegativeReals)
    model.objective = pyo.Objective(expr=model.T)
    size = [bytes_ for _, _, bytes_ in data.tensors]
    back = 1 if problem.gradients else 0

    def inside(model: pyo.ConcreteModel, u: int, s: int) -> pyo.Expression:
        return model.C[u, s] - model.C[u, s - 1]

    def crossing(model: pyo.ConcreteModel, s: int) -> pyo.Expression:
        return sum(size[e] * (model.f[e, s] + back * model.b[e, s]) for e in model.E)

    def messages(model: pyo.ConcreteModel, s: int) -> pyo.Expression:
        return model.down[s] + back * model.up[s]

    def held(model: pyo.ConcreteModel, s: int) -> pyo.Expression:
        return sum(float(data.parameters[u]) * inside(model, u, s) for u in model.U)

    def grows(model: pyo.ConcreteModel, u: int, s: int) -> object:
        return model.C[u, s - 1] <= model.C[u, s]

    def ordered(model: pyo.ConcreteModel, k: int, s: int) -> object:
        u, v = units.edges[k].tolist()
        return model.C[v, s] <= model.C[u, s]

    def filled(model: pyo.ConcreteModel, s: int) -> object:
        return sum(inside(model, u, s) for u in model.U) >= 1

    def goes_down(model: pyo.ConcreteModel, e: int, k: int, s: int) -> object:
        maker, user = data.tensors[e][0], data.tensors[e][1][k]
        return model.f[e, s] >= model.C[maker, s] - model.C[user, s]

    def goes_up(model: pyo.ConcreteModel, e: int, k: int, s: int) -> object:
        maker, user = data.tensors[e][0], data.tensors[e][1][k]
        return model.b[e, s] >= model.C[user, s] - model.C[maker, s]

    def some_down(model: pyo.ConcreteModel, e: int, s: int) -> object:
        return model.down[s] >= model.f[e, s]

    def some_up(model: pyo.ConcreteModel, e: int, s: int) -> object:
        return model.up[s] >= model.b[e, s]

    def some_held(model: pyo.ConcreteModel, u: int, s: int) -> object:
        return model.some[s] >= inside(model, u, s)

    def transfer(model: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        lat, inv = float(latency[d, e]), float(inverse[d, e])
        most = m * ((1 + back) * (lat - quickest) + sum(size) * (inv - widest))
        cost = m * (lat * messages(model, s) + inv * crossing(model, s))
        return model.P[s] >= cost - most * (1 - model.y[s, d, e])

    def least_transfer(model: pyo.ConcreteModel, s: int) -> object:
        return model.P[s] >= m * (quickest * messages(model, s) + widest * crossing(model, s))

    def around(model: pyo.ConcreteModel, s: int, d: int, e: int) -> object:
        lat, inv = float(latency[d, e]), float(inverse[d, e])
        total = float(data.parameters.sum())
        most = 2 * (replicas - 1) * (lat - quickest + total / replicas * (inv - widest))
        cost = 2 * (replicas - 1) * (lat * model.some[s] + inv / replicas * held(model, s))
        return model.A[s] >= cost - most * (1 - model.w[s, d, e])

    def least_around(model: pyo.ConcreteModel, s: int) -> object:
        cost = quickest * model.some[s] + widest / replicas * held(model, s)
        return model.A[s] >= 2 * (replicas - 1) * cost

    def compute(model: pyo.ConcreteModel, s: int) -> pyo.Expression:
        return m * sum(per_s * float(units.seconds[u]) * inside(model, u, s) for u in model.U)

    def longest(model: pyo.ConcreteModel, s: int) -> object:
        alone = 0.0 if problem.overlap else compute(model, s)
        return alone + model.P[s] + model.A[s] <= model.T

    def computes(model: pyo.ConcreteModel, s: int) -> object:
        return compute(model, s) <= model.T

    uses = [(e, k) for e, (_, users, _) in enumerate(data.tensors) for k in range(len(users))]
    with_parameters = np.flatnonzero(data.parameters).tolist()
    every = range(len(units.edges))
    model.grows_rule = pyo.Constraint(model.U, model.S, rule=grows)
    model.ordered_rule = pyo.Constraint(every, range(stages - 1), rule=ordered)
    model.filled_rule = pyo.Constraint(model.S, rule=filled)
    model.down_rule = pyo.Constraint(uses, model.B, rule=goes_down)
    model.up_rule = pyo.Constraint(uses, model.B, rule=goes_up)
    model.some_down_rule = pyo.Constraint(model.E, model.B, rule=some_down)
    model.some_up_rule = pyo.Constraint(model.E, model.B, rule=some_up)
    model.some_held_rule = pyo.Constraint(with_parameters, model.O, rule=some_held)
    model.transfer_rule = pyo.Constraint(model.B, model.pairs, rule=transfer)
    model.least_transfer_rule = pyo.Constraint(model.B, rule=least_transfer)
    model.around_rule = pyo.Constraint(model.O, model.pairs, rule=around)
    model.least_around_rule = pyo.Constraint(model.O, rule=least_around)
    model.longest_rule = pyo.Constraint(model.S, rule=longest)
    if problem.overlap:
        model.computes_rule = pyo.Constraint(model.S, rule=computes)
    return model


def read_stages(model: pyo.ConcreteModel, value: Callable[[pyo.Var], float]) -> Ints:
    """Return the stage of each unit, shape (U,), given each variable's value."""
    last = max(model.S)
    return np.array(
        [last - sum(value(model.C[u, s]) > 0.5 for s in range(last)) for u in model.U], np.int64
    )


def stage_start(model: pyo.ConcreteModel, stage: Ints) -> list[tuple[pyo.Var, float]]:
    """Return the values of C for known stages of units, shape (U,)."""
    last = max(model.S)
    return [(model.C[u, s], float(stage[u] <= s)) for u in model.U for s in range(last)]
