"""Latency as an integer program: the published big-M form, and the strong form with potentials.

    x_{v,s}    1 if node v is in call s (a call of an accelerator), x_{v,0} if it is on the CPUs
    in_{u,s}   1 if the output of u enters call s         out_{u,s}  1 if it leaves it
    start_s    when call s starts                         finish_s   when it ends
    done_v     when node v has finished                   T          the latency
    π_v        time that any path ending in v takes at least, by what is paid along it

Nodes of a colour share a device: with one call per accelerator they share x; with more, the sums
of x over the calls of an accelerator are equal. H is the latency of a known plan: what would end
later is left out. Calls that take no time could wait for each other in a circle without the
program noticing; that never makes its bound wrong, and the verifier refuses such a plan.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020, section 4. The potentials are ours: every path pays every cut, whatever H is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ..instances import Calls
from .latency import LatencyGraph, latency_graph
from .latency_execute import execute, flatten, slots_of
from .latency_links import over_links
from .task import Task

CPUS = -1


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """The program with what it takes to read it.

    Parameters
    ----------
    model
        The Pyomo model; its objective times `scale` is in the workload's time unit.
    calls
        (device, number) of each call s.
    unit
        Which x stands for each node.
    """

    task: Task
    graph: LatencyGraph
    model: pyo.ConcreteModel
    calls: tuple[tuple[int, int], ...]
    unit: tuple[int, ...]
    scale: float

    def plan(self, value: Callable[[pyo.Var], float]) -> Calls:
        """Return the plan, given the value of each variable."""
        device, call = self.graph.pool.copy(), np.full(len(self.unit), -1)
        for v, unit in enumerate(self.unit):
            for s, (d, number) in enumerate(self.calls):
                if value(self.model.x[unit, s]) > 0.5:
                    device[v], call[v] = d, number
        return Calls(device, call)

    def start(self, plan: Calls) -> list[tuple[pyo.Var, float]]:
        """Return the values of x for a plan; alike accelerators in the order of their starts.

        With links between accelerators they stay what they are.
        """
        slot, kind, devices, before = slots_of(self.task, self.graph, plan)
        flat = flatten(self.task, self.graph)
        _, start, _, _ = execute(flat, slot, kind, devices, before)
        first = {int(d): float(start[devices == d].min()) for d in np.unique(devices)}
        used = [0] * len(self.graph.kinds)
        linked = bool(self.task.cluster.links)
        where: dict[int, int] = {d: d for d in first} if linked else {}
        for d in () if linked else sorted(first, key=lambda d: (first[d], d)):
            k = self.graph.kinds.index(int(self.task.costs.kind_of[d]))
            mine = np.flatnonzero(self.task.costs.kind_of == self.graph.kinds[k])
            where[d] = int(mine[used[k]])
            used[k] += 1
        rank = np.zeros(len(devices), np.int64)
        for r in range(1, len(devices)):
            rank[r] = rank[r - 1] + 1 if devices[r] == devices[r - 1] else 0
        taken = {}
        for v, unit in enumerate(self.unit):
            r = int(slot[v])
            taken[unit] = (
                CPUS if r < 0 else self.calls.index((where[int(devices[r])], int(rank[r])))
            )
        return [(var, float(taken[unit] == s)) for (unit, s), var in self.model.x.items()]


def latency_model(task: Task, horizon: float, floor: float, *, potentials: bool) -> LatencyModel:
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
    workload, problem = task.workload, task.latency
    graph = latency_graph(task, whole_colours=False)
    costs = task.costs
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    calls = [(d, j) for d in accelerators for j in range(problem.calls)]
    row = [graph.kinds.index(int(costs.kind_of[d])) for d, _ in calls]
    unit = list(range(workload.n))
    if problem.calls == 1:
        for members in workload.colour_classes:
            for v in members:
                unit[v] = min(members)
    scale = horizon / 1000.0 if horizon > 0 else 1.0
    p, q, c = graph.compute / scale, graph.cpu / scale, graph.transfer / scale
    h = horizon / scale
    slots = range(len(calls))
    nodes = range(workload.n)
    edges = [(u, v) for u, v in workload.edges.tolist() if unit[u] != unit[v]]
    senders = sorted({u for u, _ in edges})
    able = {
        (i, s): bool(np.isfinite([p[row[s], v] for v in nodes if unit[v] == i]).all())
        for i in set(unit)
        for s in slots
    }
    home = {i: bool(np.isfinite([q[v] for v in nodes if unit[v] == i]).all()) for i in set(unit)}

    m = pyo.ConcreteModel()
    m.x = pyo.Var(sorted(set(unit)), [CPUS, *slots], domain=pyo.Binary)
    for (i, s), var in m.x.items():
        if not (home[i] if s == CPUS else able[i, s]):
            var.fix(0)
    m.enters = pyo.Var(senders, slots, bounds=(0, 1))
    m.leaves = pyo.Var(senders, slots, bounds=(0, 1))
    m.start = pyo.Var(slots, bounds=(0, h))
    m.finish = pyo.Var(slots, bounds=(0, 2 * h))
    m.done = pyo.Var(nodes, bounds=(0, h))
    m.latency = pyo.Var(bounds=(min(max(0.0, floor / scale), h), h))

    def x(v: int, s: int) -> pyo.Var:
        return m.x[unit[v], s]

    linked = bool(task.cluster.links)
    moved_by = None
    if linked:
        moved_by = over_links(m, task, [d for d, _ in calls], edges, x, scale)

    def once(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        return pyo.quicksum(m.x[i, s] for s in [CPUS, *slots]) == 1

    def fits(_m: pyo.ConcreteModel, d: int) -> pyo.Expression:
        room = float(costs.capacity_bytes[costs.kind_of[d]]) * (1 + 1e-9)
        size = max(float(costs.memory_bytes.sum()), 1.0) / 1e4
        if np.isinf(room):
            return pyo.Constraint.Skip
        held = pyo.quicksum(
            float(costs.memory_bytes[v]) / size * x(v, s)
            for s in slots
            if calls[s][0] == d
            for v in nodes
        )
        return held <= room / size

    def comes_in(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.enters[u, s] >= x(v, s) - x(u, s)

    def goes_out(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.leaves[u, s] >= x(u, s) - x(v, s)

    def waits(m: pyo.ConcreteModel, u: int, s: int) -> pyo.Expression:
        return m.start[s] >= m.done[u] - h * (1 - m.enters[u, s])

    def takes(m: pyo.ConcreteModel, s: int) -> pyo.Expression:
        k = row[s]
        work = pyo.quicksum(float(p[k, v]) * x(v, s) for v in nodes if np.isfinite(p[k, v]))
        if moved_by is not None:
            return m.finish[s] == m.start[s] + work + moved_by(s)
        moved = pyo.quicksum(float(c[k, u]) * (m.enters[u, s] + m.leaves[u, s]) for u in senders)
        return m.finish[s] == m.start[s] + work + moved

    def ends(m: pyo.ConcreteModel, v: int, s: int) -> pyo.Expression:
        return m.done[v] >= m.finish[s] - 2 * h * (1 - x(v, s))

    def on_cpus(m: pyo.ConcreteModel, u: int, v: int) -> pyo.Expression:
        return m.done[v] >= m.done[u] + (float(q[v]) if np.isfinite(q[v]) else 0.0) * x(v, CPUS)

    def first_on_cpus(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        return m.done[v] >= (float(q[v]) if np.isfinite(q[v]) else 0.0) * x(v, CPUS)

    def one_by_one(m: pyo.ConcreteModel, s: int) -> pyo.Expression:
        if calls[s][1] + 1 == problem.calls:
            return pyo.Constraint.Skip
        return m.start[s + 1] >= m.finish[s]

    def together(_m: pyo.ConcreteModel, v: int, d: int) -> pyo.Expression:
        mates = workload.colour_classes[workload.colours[v]] if workload.colours[v] >= 0 else (v,)
        if unit[v] != v or mates[0] == v or problem.calls == 1:
            return pyo.Constraint.Skip
        mine = [s for s in slots if calls[s][0] == d]
        return pyo.quicksum(x(v, s) for s in mine) == pyo.quicksum(x(mates[0], s) for s in mine)

    def alike(m: pyo.ConcreteModel, d: int) -> pyo.Expression:
        if d + 1 not in accelerators or costs.kind_of[d] != costs.kind_of[d + 1] or linked:
            return pyo.Constraint.Skip
        return m.start[calls.index((d, 0))] <= m.start[calls.index((d + 1, 0))]

    def last(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        return m.latency >= m.done[v]

    m.once = pyo.Constraint(sorted(set(unit)), rule=once)
    m.fits = pyo.Constraint(accelerators, rule=fits)
    m.comes_in = pyo.Constraint(edges, slots, rule=comes_in)
    m.goes_out = pyo.Constraint(edges, slots, rule=goes_out)
    m.waits = pyo.Constraint(senders, slots, rule=waits)
    m.takes = pyo.Constraint(slots, rule=takes)
    m.ends = pyo.Constraint(nodes, slots, rule=ends)
    m.on_cpus = pyo.Constraint(workload.edges.tolist(), rule=on_cpus)
    m.first_on_cpus = pyo.Constraint(nodes, rule=first_on_cpus)
    m.one_by_one = pyo.Constraint(slots, rule=one_by_one)
    m.together = pyo.Constraint(nodes, accelerators, rule=together)
    m.alike = pyo.Constraint(accelerators, rule=alike)
    m.last = pyo.Constraint(nodes, rule=last)
    if potentials:
        _potentials(task, m, edges, row, unit, p, q, c)
    m.objective = pyo.Objective(expr=m.latency)
    return LatencyModel(task, graph, m, tuple(calls), tuple(unit), scale)


def _potentials(  # type: ignore[no-untyped-def]
    task: Task, m: pyo.ConcreteModel, edges: list[tuple[int, int]], row: list[int], unit: list[int],
    p, q, c,
) -> None:  # fmt: skip
    """π_v ≥ π_u + time of v + c_u for each call that the edge (u, v) enters or leaves."""
    nodes, slots = range(task.workload.n), range(len(row))
    m.into = pyo.Var(edges, slots, bounds=(0, 1))
    m.out_of = pyo.Var(edges, slots, bounds=(0, 1))
    m.potential = pyo.Var(nodes, domain=pyo.NonNegativeReals)

    def time(v: int) -> pyo.Expression:
        here = [(float(q[v]), CPUS), *((float(p[row[s], v]), s) for s in slots)]
        return pyo.quicksum(t * m.x[unit[v], s] for t, s in here if np.isfinite(t))

    def enters(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.into[u, v, s] >= m.x[unit[v], s] - m.x[unit[u], s]

    def leaves(m: pyo.ConcreteModel, u: int, v: int, s: int) -> pyo.Expression:
        return m.out_of[u, v, s] >= m.x[unit[u], s] - m.x[unit[v], s]

    def onward(m: pyo.ConcreteModel, u: int, v: int) -> pyo.Expression:
        paid = 0.0
        if unit[u] != unit[v]:
            paid = pyo.quicksum(
                float(c[row[s], u]) * (m.into[u, v, s] + m.out_of[u, v, s]) for s in slots
            )
        return m.potential[v] >= m.potential[u] + time(v) + paid

    def begin(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        return m.potential[v] >= time(v)

    def below(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        return m.potential[v] <= m.done[v]

    m.enters_edge = pyo.Constraint(edges, slots, rule=enters)
    m.leaves_edge = pyo.Constraint(edges, slots, rule=leaves)
    m.onward = pyo.Constraint(task.workload.edges.tolist(), rule=onward)
    m.begin = pyo.Constraint(nodes, rule=begin)
    m.below = pyo.Constraint(nodes, rule=below)
