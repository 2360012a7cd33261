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
interchangeable: (12) keeps one order, unless they are named. With links, (6) has other transfers;
see (20) to (24) below.

Calls that take no time could wait for each other in a circle without the program noticing; that
never makes its bound wrong, and the verifier refuses such a plan.

*Links between devices.* Further symbols:

    symbol         meaning                                                       in the model
    sends_{u,s,r}  1 if the output of u passes over the link from call s to r    sends[u,s,r]
    fetches_{u,s}  1 if call s brings it in from host memory                     fetches[u,s]
    stores_{u,s}   1 if call s brings it out to host memory                      stores[u,s]
    l_{u,s,r}      time of u's output over the link
    c_{u,s}        time through host memory

    sends_{u,s,r} ≥ x_{u,s} + x_{v,r} − 1                                                (20)
    fetches_{u,s} ≥ x_{v,s} − x_{u,s} − Σ_{r linked with s} x_{u,r}                      (21)
    stores_{u,s} ≥ x_{u,s} − x_{v,s} − Σ_{r linked with s} x_{v,r}                       (22)
    fetches_{u,s} + Σ_r sends_{u,r,s} ≥ x_{v,s} − x_{u,s}                                (23)
    stores_{u,s} + Σ_r sends_{u,s,r} ≥ x_{u,s} − x_{v,s}                                 (24)

and the transfers in (6) are, in place of Σ_u c_{u,s} (in_{u,s} + out_{u,s}),

    Σ_u c_{u,s} (fetches_{u,s} + stores_{u,s}) + Σ_u Σ_r l_{u,s,r} (sends_{u,s,r} + sends_{u,r,s})

For integer x the rows leave the least values, which are those of the definition.

*Strong form.* Each path pays for every call that it enters or leaves, whatever H is. Further
symbols:

    symbol       meaning                                                       in the model
    in_{u,v,s}   1 if edge (u, v) enters call s                                into[u,v,s]
    out_{u,v,s}  1 if edge (u, v) leaves call s                                out_of[u,v,s]
    π_v          time that any path ending in v takes at least                 potential[v]

    in_{u,v,s} ≥ x_{v,s} − x_{u,s}                                                       (14)
    out_{u,v,s} ≥ x_{u,s} − x_{v,s}                                                      (15)
    π_v ≥ π_u + time_v + Σ_s c_{u,s} (in_{u,v,s} + out_{u,v,s})                          (16)
    π_v ≥ time_v,   with time_v = q_v x_{v,C} + Σ_s p_{v,s} x_{v,s}                      (17)
    π_v ≤ done_v                                                                         (18)

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020, section 4, for (0) to (13); the strong form is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyomo.environ as pyo

from ...instances import CallPlacement, Latency
from ...instances.common.arrays import Floats
from ..program import Start, Value
from ..task import Task
from ..throughput.whole_bytes import room_of
from .execute_kernel import call_slots, execute, flatten
from .graph import LatencyGraph, latency_graph


@dataclass(frozen=True, eq=False)
class CallLinks:
    """Times of transfers between calls, over links and through host memory: S calls, n nodes."""

    # for each call, the calls on devices linked with its device
    linked: tuple[tuple[int, ...], ...]
    # for each ordered pair of linked calls, shape (n,): l_{u,s,r}
    by_link: dict[tuple[int, int], Floats]
    by_host: Floats  # (S, n): c_{u,s}

    def paid(self, m: pyo.ConcreteModel, s: int) -> pyo.Expression:
        """Return the time of call s's transfers, as an expression."""
        senders = list(dict.fromkeys(u for u, _ in m.fetches))
        return pyo.quicksum(
            float(self.by_host[s, u]) * (m.fetches[u, s] + m.stores[u, s]) for u in senders
        ) + pyo.quicksum(
            float(self.by_link[s, r][u]) * (m.sends[u, s, r] + m.sends[u, r, s])
            for u in senders
            for r in self.linked[s]
        )


#: Number of the CPUs among calls.
CPUS = -1


@dataclass(frozen=True, eq=False)
class LatencyData:
    """The sets and times of the program: n nodes, S calls; times in units of `scale`."""

    task: Task[Latency]  # task, graph: the task, and its costs
    graph: LatencyGraph
    calls: tuple[tuple[int, int], ...]  # (device, number) of each call s
    unit: tuple[int, ...]  # (n,): node whose x stands for each node's
    scale: float  # time units of the workload per time unit of the program
    horizon: float  # horizon, floor: H, and a proved bound, in the program's time unit
    floor: float
    named: bool  # whether accelerators cannot be exchanged for others of their kind

    @property
    def linked(self) -> bool:
        """Whether accelerators are linked: then all are named, and (6) has other transfers."""
        return bool(self.task.cluster.links)

    @cached_property
    def units(self) -> list[int]:
        """Nodes that have variables x, each for a whole unit."""
        return sorted(set(self.unit))

    @cached_property
    def accelerators(self) -> list[int]:
        """Accelerators, the devices that run calls."""
        return sorted({d for d, _ in self.calls})

    @cached_property
    def p(self) -> Floats:
        """Shape (S, n): time of each node in each call; `inf` where it is unsupported."""
        kind = [int(self.task.costs.kind_of[d]) for d, _ in self.calls]
        return self.graph.compute[[self.graph.kinds.index(k) for k in kind]] / self.scale

    @cached_property
    def c(self) -> Floats:
        """Shape (S, n): time of a transfer of each node's output at each call."""
        kind = [int(self.task.costs.kind_of[d]) for d, _ in self.calls]
        return self.graph.transfer[[self.graph.kinds.index(k) for k in kind]] / self.scale

    @cached_property
    def q(self) -> Floats:
        """Shape (n,): time of each node on a CPU; `inf` where it is unsupported."""
        return self.graph.cpu / self.scale

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Edges whose ends can be in different calls."""
        unit = self.unit
        return [(u, v) for u, v in self.task.workload.edges.tolist() if unit[u] != unit[v]]

    @cached_property
    def senders(self) -> list[int]:
        """Nodes whose output another call, or a CPU, may read."""
        return sorted({u for u, _ in self.edges})


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """The Pyomo program, with its data for reading solutions and writing starts."""

    data: LatencyData  # the data that it states
    # the Pyomo model; its objective times `scale` is in the workload's time unit
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
        """Return the values of x for a plan, with alike accelerators ordered by their starts.

        Named and linked accelerators stay what they are.
        """
        data, task = self.data, self.data.task
        kind_of, q = task.costs.kind_of, task.problem.calls
        slot, calls = call_slots(task, data.graph, plan)
        _, start, _, _ = execute(flatten(task, data.graph), slot, calls)
        first = {a: float(start[a * q]) for a in np.unique(slot[slot >= 0] // q).tolist()}
        kinds = kind_of[data.accelerators]
        where = {a: a for a in first}
        if not data.named:
            for kind in np.unique(kinds):
                alike = np.flatnonzero(kinds == kind).tolist()
                used = sorted((a for a in first if a in alike), key=lambda a: (first[a], a))
                where.update(zip(used, alike, strict=False))
        taken = {
            unit: CPUS if s < 0 else where[s // q] * q + s % q
            for unit, s in zip(data.unit, slot.tolist(), strict=True)
        }
        return [(var, float(taken[unit] == s)) for (unit, s), var in self.model.x.items()]


def latency_model(
    task: Task[Latency],
    horizon: float,
    floor: float,
    *,
    potentials: bool,
    named: bool = False,
    reference: float | None = None,
) -> LatencyModel:
    """State the program, given a floor and a horizon H of the latency.

    With n nodes, m edges, and S calls: S·3n columns and S·(3m + n) rows; `potentials`, the strong
    form, adds 2·S·m of each. `named` omits (12), so that further rows may name accelerators. Times
    are scaled to make `reference`, a likely latency, 1000.
    """
    data = latency_data(task, horizon, floor, named=named, reference=reference)
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
    """Declare the variables of the published form."""
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
    """State that each node is in one call or on the CPUs, within the memories: (1), (2)."""
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
    """State transfers into and out of calls, and that calls wait for their inputs: (3) to (5)."""
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
    """State the finish times of calls and nodes: (6) to (9)."""
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
    """State the order of calls, colours, alike accelerators, and T: (10) to (13)."""
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
        if d + 1 not in accelerators or kind_of[d] != kind_of[d + 1] or data.named:
            return pyo.Constraint.Skip
        return m.start[calls.index((d, 0))] <= m.start[calls.index((d + 1, 0))]

    def last(m: pyo.ConcreteModel, v: int) -> object:
        """(13) T ≥ done_v  for all nodes v."""
        return m.done[v] <= m.T

    m.one_by_one = pyo.Constraint(slots, rule=one_by_one)
    m.together = pyo.Constraint(nodes, accelerators, rule=together)
    m.alike = pyo.Constraint(accelerators, rule=alike)
    m.last = pyo.Constraint(nodes, rule=last)


def latency_data(
    task: Task[Latency],
    horizon: float,
    floor: float,
    *,
    named: bool = False,
    reference: float | None = None,
) -> LatencyData:
    """Return the sets and times of the program; the parameters are those of `latency_model`."""
    workload, costs, calls = task.workload, task.costs, task.problem.calls
    accelerators = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    unit = list(range(workload.n))
    if calls == 1:
        for members in workload.colour_classes:
            for v in members:
                unit[v] = min(members)
    likely = horizon if reference is None else reference
    scale = likely / 1000.0 if likely > 0 else 1.0
    return LatencyData(
        task=task,
        graph=latency_graph(task, whole_colours=False),
        calls=tuple((d, j) for d in accelerators for j in range(calls)),
        unit=tuple(unit),
        scale=scale,
        horizon=horizon / scale,
        floor=floor / scale,
        named=named or bool(task.cluster.links),
    )


def call_links(task: Task[Latency], device: Sequence[int], scale: float) -> CallLinks:
    """Return the times of transfers between calls on given devices, in units of `scale`."""
    costs = task.linked_costs
    assert costs.messages is not None
    link, time = costs.messages.link, costs.messages.time / scale
    slots = range(len(device))
    linked = [tuple(r for r in slots if link[device[s], device[r]] >= 0) for s in slots]
    return CallLinks(
        linked=tuple(linked),
        by_link={(s, r): time[link[device[s], device[r]]] for s in slots for r in linked[s]},
        by_host=costs.transfer[costs.kind_of[list(device)]] / scale,
    )


def add_links(m: pyo.ConcreteModel, links: CallLinks, data: LatencyData) -> None:
    """State transfers over links and through host memory, (20) to (24).

    With S calls and m edges these are up to n S² columns and m S² rows more.
    """
    edges, unit, linked = data.edges, data.unit, links.linked
    slots, pairs = range(len(linked)), list(links.by_link)
    m.sends = pyo.Var(data.senders, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(data.senders, slots, bounds=(0, 1))
    m.stores = pyo.Var(data.senders, slots, bounds=(0, 1))

    def sending(m: pyo.ConcreteModel, u: int, v: int, s: int, r: int) -> object:
        """(20) sends_{u,s,r} ≥ x_{u,s} + x_{v,r} − 1  for all edges (u, v), linked s and r."""
        return m.sends[u, s, r] >= m.x[unit[u], s] + m.x[unit[v], r] - 1

    def fetching(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(21) fetches_{u,s} ≥ x_{v,s} − x_{u,s} − Σ_{r linked with s} x_{u,r}  for edges, s."""
        near = pyo.quicksum(m.x[unit[u], r] for r in (s, *linked[s]))
        return m.fetches[u, s] >= m.x[unit[v], s] - near

    def storing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(22) stores_{u,s} ≥ x_{u,s} − x_{v,s} − Σ_{r linked with s} x_{v,r}  for edges, s."""
        near = pyo.quicksum(m.x[unit[v], r] for r in (s, *linked[s]))
        return m.stores[u, s] >= m.x[unit[u], s] - near

    def arriving(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(23) fetches_{u,s} + Σ_r sends_{u,r,s} ≥ x_{v,s} − x_{u,s}  for all edges (u, v), s."""
        ways = m.fetches[u, s] + pyo.quicksum(m.sends[u, r, s] for r in linked[s])
        return ways >= m.x[unit[v], s] - m.x[unit[u], s]

    def departing(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(24) stores_{u,s} + Σ_r sends_{u,s,r} ≥ x_{u,s} − x_{v,s}  for all edges (u, v), s."""
        ways = m.stores[u, s] + pyo.quicksum(m.sends[u, s, r] for r in linked[s])
        return ways >= m.x[unit[u], s] - m.x[unit[v], s]

    m.sending = pyo.Constraint(edges, pairs, rule=sending)
    m.fetching = pyo.Constraint(edges, slots, rule=fetching)
    m.storing = pyo.Constraint(edges, slots, rule=storing)
    m.arriving = pyo.Constraint(edges, slots, rule=arriving)
    m.departing = pyo.Constraint(edges, slots, rule=departing)


def add_potentials(m: pyo.ConcreteModel, data: LatencyData) -> None:
    """State the potentials of the strong form, (14) to (18)."""
    unit, p, q, c = data.unit, data.p, data.q, data.c
    nodes, slots = range(len(unit)), range(len(data.calls))
    m.into = pyo.Var(data.edges, slots, bounds=(0, 1))
    m.out_of = pyo.Var(data.edges, slots, bounds=(0, 1))
    m.potential = pyo.Var(nodes, domain=pyo.NonNegativeReals)

    def time(m: pyo.ConcreteModel, v: int) -> pyo.Expression:
        where = [(float(q[v]), CPUS), *((float(p[s, v]), s) for s in slots)]
        return pyo.quicksum(t * m.x[unit[v], s] for t, s in where if np.isfinite(t))

    def enters_edge(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(14) in_{u,v,s} ≥ x_{v,s} − x_{u,s}  for all edges (u, v), calls s."""
        return m.into[u, v, s] >= m.x[unit[v], s] - m.x[unit[u], s]

    def leaves_edge(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(15) out_{u,v,s} ≥ x_{u,s} − x_{v,s}  for all edges (u, v), calls s."""
        return m.out_of[u, v, s] >= m.x[unit[u], s] - m.x[unit[v], s]

    def onward(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(16) π_v ≥ π_u + time_v + Σ_s c_{u,s} (in_{u,v,s} + out_{u,v,s})  for all edges."""
        paid = 0.0
        if unit[u] != unit[v]:
            paid = pyo.quicksum(
                float(c[s, u]) * (m.into[u, v, s] + m.out_of[u, v, s]) for s in slots
            )
        return m.potential[v] >= m.potential[u] + time(m, v) + paid

    def begin(m: pyo.ConcreteModel, v: int) -> object:
        """(17) π_v ≥ time_v  for all nodes v."""
        return m.potential[v] >= time(m, v)

    def below(m: pyo.ConcreteModel, v: int) -> object:
        """(18) π_v ≤ done_v  for all nodes v."""
        return m.potential[v] <= m.done[v]

    m.enters_edge = pyo.Constraint(data.edges, slots, rule=enters_edge)
    m.leaves_edge = pyo.Constraint(data.edges, slots, rule=leaves_edge)
    m.onward = pyo.Constraint(data.task.workload.edges.tolist(), rule=onward)
    m.begin = pyo.Constraint(nodes, rule=begin)
    m.below = pyo.Constraint(nodes, rule=below)
