"""Latency as an integer program: the published big-M form, and the strong form with potentials.

Each accelerator runs up to q *calls*, one after the other; a call s waits for all its inputs,
transfers them in, computes, and transfers out. The CPUs are a pool without limit.

    symbol       meaning                                                       in the model
    x_{v,s}      1 if node v is in call s                                      x[v,s]
    x_{v,C}      1 if it is on the CPUs                                        x[v,-1]
    in_{u,s}     1 if the output of u enters call s                            enters[u,s]
    out_{u,s}    1 if it leaves it                                             leaves[u,s]
    start_s      when call s starts                                            start[s]
    finish_s     when it ends                                                  finish[s]
    done_v       when node v has finished                                      done[v]
    T            the latency                                                   T
    in_{u,v,s}   1 if edge (u, v) enters call s                                into[u,v,s]
    p_{v,s}      time of node v in call s         q_v  on a CPU
    c_{u,s}      time of a transfer of u's output at call s
    m_v, M_d     memory of a node, of an accelerator
    H            latency of a known plan: what would end later is left out

    minimise  T                                                                           (0)

    Σ_s x_{v,s} + x_{v,C} = 1                                                             (1)
    Σ_{s on d} Σ_v m_v x_{v,s} ≤ M_d                                                      (2)
    in_{u,s} ≥ x_{v,s} − x_{u,s}                                                          (3)
    out_{u,s} ≥ x_{u,s} − x_{v,s}                                                         (4)
    start_s ≥ done_u − H (1 − in_{u,s})                                                   (5)
    finish_s = start_s + Σ_v p_{v,s} x_{v,s} + Σ_u c_{u,s} (in_{u,s} + out_{u,s})         (6)
    done_v ≥ finish_s − 2H (1 − x_{v,s})                                                  (7)
    done_v ≥ done_u + q_v x_{v,C}                                                         (8)
    done_v ≥ q_v x_{v,C}                                                                  (9)
    start_{s+1} ≥ finish_s                                                               (10)
    Σ_{s on d} x_{v,s} = Σ_{s on d} x_{u,s}                                              (11)
    start_{first call of d} ≤ start_{first call of d+1}                                  (12)
    T ≥ done_v                                                                           (13)

over nodes v, edges (u, v), calls s, and accelerators d. Nodes of a colour share a device: with one
call per accelerator they share x; with more, (11) holds for any two. Devices of a kind are
interchangeable: (12) keeps one order. With links, (6) has `links.py`'s terms, (20) to (24).

The strong form adds `potentials.py`, (14) to (18).

Calls that take no time could wait for each other in a circle without the program noticing; that
never makes its bound wrong, and the verifier refuses such a plan.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances import CallPlacement, Latency
from ..program import Start, Value
from ..task import Task
from ..throughput.whole_bytes import room_of
from .execute_kernel import execute, flatten, slots_of
from .links import CallLinks, add_links, call_links
from .milp_data import CPUS, LatencyData, latency_data
from .potentials import add_potentials


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """The program with what it takes to read it.

    Parameters
    ----------
    data
        What it is stated over.
    model
        The Pyomo model; its objective times `scale` is in the workload's time unit.
    """

    data: LatencyData
    model: pyo.ConcreteModel

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return self.data.scale

    def read(self, value: Value) -> CallPlacement:
        """Return the plan, given the value of each variable."""
        data = self.data
        device, call = data.graph.pool.copy(), np.full(len(data.unit), -1)
        for v, unit in enumerate(data.unit):
            for s, (d, number) in enumerate(data.calls):
                if value(self.model.x[unit, s]) > 0.5:
                    device[v], call[v] = d, number
        return CallPlacement(device, call)

    def start(self, plan: CallPlacement) -> Start:
        """Return the values of x for a plan; alike accelerators in the order of their starts.

        With links between accelerators they stay what they are.
        """
        data, costs = self.data, self.data.task.costs
        slot, kind, devices, before = slots_of(data.task, data.graph, plan)
        _, start, _, _ = execute(flatten(data.task, data.graph), slot, kind, devices, before)
        first = {int(d): float(start[devices == d].min()) for d in np.unique(devices)}
        used = [0] * len(data.graph.kinds)
        where: dict[int, int] = {d: d for d in first} if data.linked else {}
        for d in () if data.linked else sorted(first, key=lambda d: (first[d], d)):
            k = data.graph.kinds.index(int(costs.kind_of[d]))
            alike = np.flatnonzero(costs.kind_of == data.graph.kinds[k])
            where[d] = int(alike[used[k]])
            used[k] += 1
        rank = np.zeros(len(devices), np.int64)
        for r in range(1, len(devices)):
            rank[r] = rank[r - 1] + 1 if devices[r] == devices[r - 1] else 0
        taken = {}
        for v, unit in enumerate(data.unit):
            r = int(slot[v])
            taken[unit] = (
                CPUS if r < 0 else data.calls.index((where[int(devices[r])], int(rank[r])))
            )
        return [(var, float(taken[unit] == s)) for (unit, s), var in self.model.x.items()]


def latency_model(
    task: Task[Latency], horizon: float, floor: float, *, potentials: bool
) -> LatencyModel:
    """State the program.

    n nodes, m edges, S calls: S·3n columns and S·(3m + n) rows, with potentials 2·S·m of each more.

    Parameters
    ----------
    horizon
        H: no plan that ends later matters.
    floor
        No plan ends earlier.
    potentials
        Whether to state the strong form.
    """
    data = latency_data(task, horizon, floor)
    m = pyo.ConcreteModel(task.workload.name)
    _variables(m, data)
    links = call_links(task, [d for d, _ in data.calls], data.scale) if data.linked else None
    if links is not None:
        add_links(m, links, data)
    _placements(m, data)
    _transfers(m, data)
    _times(m, data, links)
    _order(m, data)
    if potentials:
        add_potentials(m, data)
    m.objective = pyo.Objective(expr=m.T)
    return LatencyModel(data, m)


def _variables(m: pyo.ConcreteModel, data: LatencyData) -> None:
    h, slots = data.horizon, range(len(data.calls))
    m.x = pyo.Var(data.units, [CPUS, *slots], domain=pyo.Binary)
    m.enters = pyo.Var(data.senders, slots, bounds=(0, 1))
    m.leaves = pyo.Var(data.senders, slots, bounds=(0, 1))
    m.start = pyo.Var(slots, bounds=(0, h))
    m.finish = pyo.Var(slots, bounds=(0, 2 * h))
    m.done = pyo.Var(range(len(data.unit)), bounds=(0, h))
    m.T = pyo.Var(bounds=(min(max(0.0, data.floor), h), h))
    time = np.vstack([data.p, data.q])  # row −1 is the CPUs'
    for v, i in enumerate(data.unit):
        for s in (CPUS, *slots):
            if not np.isfinite(time[s, v]):
                m.x[i, s].fix(0)


def _placements(m: pyo.ConcreteModel, data: LatencyData) -> None:
    """Every node in one call or on the CPUs, within the memories."""
    costs, unit, slots = data.task.costs, data.unit, range(len(data.calls))
    size = max(float(costs.memory_bytes.sum()), 1.0) / 1e4

    def once(m: pyo.ConcreteModel, i: int) -> object:
        """(1) Σ_s x_{v,s} + x_{v,C} = 1  for all nodes v."""
        return pyo.quicksum(m.x[i, s] for s in [CPUS, *slots]) == 1

    def fits(m: pyo.ConcreteModel, d: int) -> object:
        """(2) Σ_{s on d} Σ_v m_v x_{v,s} ≤ M_d  for all accelerators d."""
        room = float(room_of(costs.capacity_bytes[costs.kind_of[d]]))
        if np.isinf(room):
            return pyo.Constraint.Skip
        held = pyo.quicksum(
            float(costs.memory_bytes[v]) / size * m.x[unit[v], s]
            for s in slots
            if data.calls[s][0] == d
            for v in range(len(unit))
        )
        return held <= room / size

    m.once = pyo.Constraint(data.units, rule=once)
    m.fits = pyo.Constraint(data.accelerators, rule=fits)


def _transfers(m: pyo.ConcreteModel, data: LatencyData) -> None:
    """Whose output moves, and that calls wait for it."""
    unit, h, slots = data.unit, data.horizon, range(len(data.calls))

    def comes_in(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(3) in_{u,s} ≥ x_{v,s} − x_{u,s}  for all edges (u, v), calls s."""
        return m.enters[u, s] >= m.x[unit[v], s] - m.x[unit[u], s]

    def goes_out(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(4) out_{u,s} ≥ x_{u,s} − x_{v,s}  for all edges (u, v), calls s."""
        return m.leaves[u, s] >= m.x[unit[u], s] - m.x[unit[v], s]

    def waits(m: pyo.ConcreteModel, u: int, s: int) -> object:
        """(5) start_s ≥ done_u − H (1 − in_{u,s})  for all nodes u with successors, calls s."""
        return m.start[s] >= m.done[u] - h * (1 - m.enters[u, s])

    m.comes_in = pyo.Constraint(data.edges, slots, rule=comes_in)
    m.goes_out = pyo.Constraint(data.edges, slots, rule=goes_out)
    m.waits = pyo.Constraint(data.senders, slots, rule=waits)


def _times(m: pyo.ConcreteModel, data: LatencyData, links: CallLinks | None) -> None:
    """When calls and nodes end."""
    unit, h, p, c = data.unit, data.horizon, data.p, data.c
    nodes, slots = range(len(unit)), range(len(data.calls))
    on_cpu = np.where(np.isfinite(data.q), data.q, 0.0)

    def takes(m: pyo.ConcreteModel, s: int) -> object:
        """(6) finish_s = start_s + Σ_v p_{v,s} x_{v,s} + Σ_u c_{u,s} (in_{u,s} + out_{u,s})  for
        all calls s."""
        able = [v for v in nodes if np.isfinite(p[s, v])]
        work = pyo.quicksum(float(p[s, v]) * m.x[unit[v], s] for v in able)
        if links is not None:
            return m.finish[s] == m.start[s] + work + links.paid(m, s)
        moved = pyo.quicksum(
            float(c[s, u]) * (m.enters[u, s] + m.leaves[u, s]) for u in data.senders
        )
        return m.finish[s] == m.start[s] + work + moved

    def ends(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """(7) done_v ≥ finish_s − 2H (1 − x_{v,s})  for all nodes v, calls s."""
        return m.done[v] >= m.finish[s] - 2 * h * (1 - m.x[unit[v], s])

    def on_cpus(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(8) done_v ≥ done_u + q_v x_{v,C}  for all edges (u, v)."""
        return m.done[v] >= m.done[u] + float(on_cpu[v]) * m.x[unit[v], CPUS]

    def first_on_cpus(m: pyo.ConcreteModel, v: int) -> object:
        """(9) done_v ≥ q_v x_{v,C}  for all nodes v."""
        return m.done[v] >= float(on_cpu[v]) * m.x[unit[v], CPUS]

    m.takes = pyo.Constraint(slots, rule=takes)
    m.ends = pyo.Constraint(nodes, slots, rule=ends)
    m.on_cpus = pyo.Constraint(data.task.workload.edges.tolist(), rule=on_cpus)
    m.first_on_cpus = pyo.Constraint(nodes, rule=first_on_cpus)


def _order(m: pyo.ConcreteModel, data: LatencyData) -> None:
    """One call after the other, colours together, alike accelerators in one order, T the last."""
    task, calls, accelerators = data.task, data.calls, data.accelerators
    workload, kind_of = task.workload, task.costs.kind_of
    nodes, slots = range(workload.n), range(len(calls))

    def one_by_one(m: pyo.ConcreteModel, s: int) -> object:
        """(10) start_{s+1} ≥ finish_s  for all calls s but the last of an accelerator."""
        if calls[s][1] + 1 == task.problem.calls:
            return pyo.Constraint.Skip
        return m.start[s + 1] >= m.finish[s]

    def together(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(11) Σ_{s on d} x_{v,s} = Σ_{s on d} x_{u,s}  for all v of the colour of u, the first."""
        mates = workload.colour_classes[workload.colours[v]] if workload.colours[v] >= 0 else (v,)
        if data.unit[v] != v or mates[0] == v or task.problem.calls == 1:
            return pyo.Constraint.Skip
        own = [s for s in slots if calls[s][0] == d]
        return pyo.quicksum(m.x[v, s] for s in own) == pyo.quicksum(m.x[mates[0], s] for s in own)

    def alike(m: pyo.ConcreteModel, d: int) -> object:
        """(12) start_{first call of d} ≤ start_{first call of d+1}  for all d and d + 1 alike."""
        if d + 1 not in accelerators or kind_of[d] != kind_of[d + 1] or data.linked:
            return pyo.Constraint.Skip
        return m.start[calls.index((d, 0))] <= m.start[calls.index((d + 1, 0))]

    def last(m: pyo.ConcreteModel, v: int) -> object:
        """(13) T ≥ done_v  for all nodes v."""
        return m.done[v] <= m.T

    m.one_by_one = pyo.Constraint(slots, rule=one_by_one)
    m.together = pyo.Constraint(nodes, accelerators, rule=together)
    m.alike = pyo.Constraint(accelerators, rule=alike)
    m.last = pyo.Constraint(nodes, rule=last)
