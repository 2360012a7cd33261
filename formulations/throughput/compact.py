"""Compact integer program of throughput: units to slots, at the least max-load T.

A *unit* v is a set of nodes that share a device, a *net* e a set of units among which data flows
(`hypergraph`); a *slot* d is a device, or a place for one in the pipeline (`compact_data`).

    symbol     meaning                                                         in the model
    x_{v,d}    1 if unit v is on slot d                                        x[v,d]
    in_{e,d}   1 if data of net e enters slot d (or leaves it: see *root*)     enters[e,d]
    out_{e,d}  1 if it goes the other direction                                leaves[e,d]
    T_i        the max-load of bundle i of passes                              T[i]
    z_{v,d}    1 if node v or a later one is on slot d                         z[v,d]
    b_{v,s}    1 if v is before position s                                     b[v,s]
    y_d        1 if the kind of slot d takes the slot's position               y[d]
    p_{v,d}    time of unit v on slot d
    w_{e,d}    time of a transfer of net e at slot d
    m_v, M_d   memory of a unit, of a slot
    H          no load above it is of interest: that of a known plan

    minimise  Σ_i T_i                                                                     (0)

    Σ_d x_{v,d} = 1                                                                       (1)
    Σ_v m_v x_{v,d} ≤ M_d                                                                 (2)
    in_{e,d} ≥ x_{v,d} − x_{root,d}                                                       (3)
    out_{e,d} ≥ x_{root,d} − x_{v,d}                                                      (4)
    in_{e,d} = out_{e,d} = 0  where w_{e,d} > H                                           (5)
    Σ_v p_{v,d} x_{v,d} + Σ_e w_{e,d} (in_{e,d} + out_{e,d}) ≤ T_i                        (6)
    Σ_i T_i ≥ what is known to be a bound                                                 (7)

over units v, nets e with other pins v, slots d, and bundles i: one of both passes, or, for GPipe,
one of each. z, b and y belong to contiguity and the order of devices, (8) to (17) below; with
links between devices, (18) to (27) take the place of (3) to (5).

In a file that `stagecut export-model` writes, x[v,d] is x(v_d), and row (1) of unit v is
c_e_placed_once(v)_: after a prefix the rule's name and what it is for, here numbers of units.

In the paper a net is one node u and its successors, and u defines in and out: data enters d where
a successor is on d and u is not. A net that adds up several transfers has no single u; any pin, its
*root*, can stand for it, because in + out is 1 exactly where some pins are on d and some are not.

Contiguity per device is the paper's; edges and nodes are forward ones:

    z_{v,d} ≥ x_{v,d}                            a slot reaches the nodes on it              (8)
    z_{v,d} ≤ z_{u,d}                            and all before them: edge (u, v)            (9)
    z_{v,d} ≤ x_{v,d} − x_{u,d} + 1              none is on it that follows one outside     (10)

Positions s = 0 … S, each with a slot per kind of device; S + 1 is behind the last. Where CPUs are
free, each node on one is a piece of its own and lies in a gap before, between or behind the
positions, so the order is stated node by node:

    b_{v,s+1} = b_{v,s} + Σ_{d at s} x_{v,d}     before s + 1: before s or at it            (11)
    b_{u,s} ≥ b_{v,s}                            edge (u, v): u is before s if v is         (12)
    b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}        and at or before s if v is, with free CPUs (13)
    Σ_{d at s} y_d = 1                           one kind takes each position               (14)
    Σ_{d of kind k} y_d = n_k                    every device has a position                (15)
    x_{v,d} ≤ y_d                                and what is there is on it                 (16)

Devices of a kind are otherwise interchangeable; of what differs only in that, one is kept:

    x_{v,d} ≤ Σ_{u before v} x_{u,d−1}           slots of a kind by their first units       (17)

*Links between devices.* With links it matters where data comes from, so nets are split by their
sources: a *flow* f goes from its unit o to its target units t. Slots are devices, numbered alike.

    symbol           meaning                                                     in the model
    sends_{f,d,e}    1 if f passes over the link from device d to device e       sends[f,d,e]
    fetches_{f,d}    1 if d brings f in from host memory                         fetches[f,d]
    stores_{f,d}     1 if d brings f out to host memory                          stores[f,d]
    place_d          place of device d's piece, in whatever order                place[d]
    rank_v           place of node v's piece                                     rank[v]
    same_{u,v}       1 if the nodes of edge (u, v) are in one piece              same[u,v]
    l_{f,d,e}, h_f   time of f over a link, and through host memory

    sends_{f,d,e} ≥ x_{o,d} + x_{t,e} − 1                                                   (18)
    fetches_{f,d} ≥ x_{t,d} − x_{o,d} − Σ_{e linked with d} x_{o,e}                         (19)
    stores_{f,d}  ≥ x_{o,d} − x_{t,d} − Σ_{e linked with d} x_{t,e}                         (20)
    fetches_{f,d} + Σ_e sends_{f,e,d} ≥ x_{t,d} − x_{o,d}                                   (21)
    stores_{f,d}  + Σ_e sends_{f,d,e} ≥ x_{o,d} − x_{t,d}                                   (22)

and device d pays, in (6), for what it sends, gets, fetches and stores:

    Σ_f Σ_e l_{f,d,e} (sends_{f,d,e} + sends_{f,e,d}) + Σ_f h_f (fetches_{f,d} + stores_{f,d})

What alone takes longer than H is 0, without a coefficient. For integer x these rows leave the least
values, which are those of the definition: for a target t of f, `sends` is 1 where o is on d and t
on e; `fetches` where t is on d, and o on no linked device; `stores` where o is on d, and t on no
linked one. Whatever enters or leaves a device does so in one of these ways: (21) and (22), implied,
keep the relaxation as strong as without links.

Where devices are no places in the pipeline, as they have links or names, contiguous pieces can run
one after the other in whatever order of devices, with N places. Where CPUs are free, each node on
one is a piece:

    rank_v ≤ place_d + N (1 − x_{v,d})                                                      (23)
    rank_v ≥ place_d − N (1 − x_{v,d})                                                      (24)
    rank_v ≥ rank_u + 1 − same_{u,v}                                                        (25)
    same_{u,v} ≤ 1 + x_{u,d} − x_{v,d}                                                      (26)
    same_{u,v} ≤ Σ_{d with one piece} x_{v,d}                                               (27)

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
section 5.2 and appendix. The ideal definition of contiguity by positions is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances import Placement, Throughput
from ...instances.common.arrays import Floats
from ...instances.model.contiguity import pipeline_edges
from ..program import Start, Value, at
from ..task import Task
from .compact_data import (
    SYMMETRY_UNITS,
    CompactData,
    CompactSlot,
    compact_data,
    heaviest_first,
    slot_of_device,
)
from .hypergraph import Hypergraph


@dataclass(frozen=True, eq=False)
class Flows:
    """Data flows between units: F flows, times in the program's unit."""

    source: tuple[int, ...]  # source, targets: units o and t of each flow
    targets: tuple[tuple[int, ...], ...]
    side: tuple[int, ...]  # pass of each flow: 0 forward, 1 backward
    linked: dict[int, list[int]]  # for each accelerator, those linked with it
    # for each flow and ordered pair of linked devices, l_{f,d,e}
    by_link: dict[tuple[int, int], Floats]
    by_host: Floats  # (F, D): h_f on each device
    limit: float  # H

    @property
    def pins(self) -> list[tuple[int, int]]:
        """Pairs of a flow and one of its targets."""
        return [(f, t) for f, targets in enumerate(self.targets) for t in targets]

    def paid(self, m: pyo.ConcreteModel, d: int, passes: Sequence[int]) -> list[pyo.Expression]:
        """Return the terms of what device d pays for the flows of some passes."""
        terms = []
        for f in (f for f, side in enumerate(self.side) if side in passes and d in self.linked):
            terms += [
                float(self.by_link[d, e][f]) * (m.sends[f, d, e] + m.sends[f, e, d])
                for e in self.linked[d]
                if self.by_link[d, e][f] <= self.limit
            ]
            if self.by_host[f, d] <= self.limit:
                terms.append(float(self.by_host[f, d]) * (m.fetches[f, d] + m.stores[f, d]))
        return terms


#: Memory limit in the program's unit: the solver's tolerance of 1e-6 is then 1e-10 of the limit.
MEMORY_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Compact:
    """The Pyomo program, with the data that translates its solutions to placements."""

    data: CompactData  # the data that it states
    # the Pyomo model; its objective times `scale` is in the workload's time unit
    model: pyo.ConcreteModel

    @property
    def graph(self) -> Hypergraph:
        """Units and nets."""
        return self.data.graph

    @property
    def slots(self) -> tuple[CompactSlot, ...]:
        """The slots, the second index of x."""
        return self.data.slots

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return self.data.scale

    def read(self, value: Value) -> Placement:
        """Return the placement, given the value of each variable."""
        costs, graph = self.data.task.costs, self.graph
        used = [0] * len(costs.count)
        first = np.concatenate([[0], np.cumsum(costs.count)])
        device = np.full(len(self.slots), -1)
        taken = np.zeros(graph.size, dtype=np.int64)
        best = np.full(graph.size, -1.0)
        for (v, d), var in self.model.x.items():
            here = value(var)
            if here > best[v]:
                taken[v], best[v] = d, here
        for d, slot in enumerate(self.slots):
            if slot.device is not None:
                device[d] = slot.device
            elif (taken == d).any():
                device[d] = first[slot.kind] + used[slot.kind]
                used[slot.kind] += 1
        return Placement(graph.expand(device[taken]))

    def start(self, solution: Placement) -> Start | None:
        """Return the values of the integer variables for a placement.

        None if the placement breaks a rule of the program.
        """
        data, m, placement = self.data, self.model, solution.device
        units = data.graph.restrict(placement)
        if not np.array_equal(data.graph.expand(units), placement):
            return None
        slots = slot_of_device(data, placement)
        if slots is None:
            return None
        slot_of = [slots[int(d)] for d in units]
        if any((v, d) not in data.allowed for v, d in enumerate(slot_of)):
            return None
        values = [(var, float(slot_of[v] == d)) for (v, d), var in m.x.items()]
        return values + [(var, float(d in slots.values())) for d, var in m.y.items()]


def compact(
    task: Task[Throughput],
    *,
    reference: float | None = None,
    cutoff: float = math.inf,
    floor: float = 0.0,
    watch: Callable[[], None] = lambda: None,
    named: bool = False,
) -> Compact:
    """State the program of a task.

    With U units, E nets with P pins in all, and D slots, it has D·(U + 2E) columns and 2·D·P rows,
    and D times the pipeline's edges more for contiguous splits. It contains every rule of the
    problem, so an optimal solution is an optimal placement. Devices of a kind are interchangeable:
    of placements that differ only in that, the program keeps one, unless devices are `named`. Then
    each is a slot that rows may name, and the pieces of a contiguous split can have any order of
    devices, (23) to (27).

    Times are scaled to make `reference`, a likely objective, 1000. Units and nets that alone take
    longer than `cutoff` get no variable and no coefficient; `floor` is a proved bound. `watch` is
    called every now and then and may raise. InfeasibleError if some node fits on no device, or the
    sizes are too large in total.
    """
    data = compact_data(task, reference, cutoff, floor, named=named)
    m = pyo.ConcreteModel(task.workload.name)
    _variables(m, data)
    _placements(m, data)
    flows = flows_of(data) if data.linked else None
    if flows is None:
        _transfers(m, data, watch)
    else:
        add_flows(m, flows)
    _loads(m, data, flows)
    _objective(m, data)
    if not data.named:
        break_symmetry(m, data)
    if data.ordered and data.named:
        in_some_order(m, data)
    elif data.ordered:
        in_pipeline_order(m, data)
    elif task.problem.split == "per-device":
        convex_per_device(m, data)
    return Compact(data, m)


def _variables(m: pyo.ConcreteModel, data: CompactData) -> None:
    m.x = pyo.Var(sorted(data.allowed), domain=pyo.Binary)
    m.enters = pyo.Var(data.cuts, bounds=(0, 1))
    m.leaves = pyo.Var(data.cuts, bounds=(0, 1))
    longest = data.limit if math.isfinite(data.limit) else None
    m.T = pyo.Var(range(len(_bundles(data))), bounds=(0, longest))
    m.y = pyo.Var([d for d, s in enumerate(data.slots) if s.chosen], domain=pyo.Binary)


def _placements(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Add rows (1) and (2): each unit on one slot, within the memories."""
    memory, capacity = data.graph.memory_bytes, data.capacity[data.kind]

    def placed_once(m: pyo.ConcreteModel, v: int) -> object:
        """(1) Σ_d x_{v,d} = 1  for all units v."""
        return pyo.quicksum(m.x[v, d] for d in data.slots_for[v]) == 1

    def fits(m: pyo.ConcreteModel, d: int) -> object:
        """(2) Σ_v m_v x_{v,d} ≤ M_d  for all slots d that not all units would fit on."""
        unit = capacity[d] / MEMORY_SCALE if capacity[d] > 0 else 1.0
        sizes = [(memory[v] / unit, m.x[v, d]) for v in data.units_on[d]]
        return pyo.quicksum(size * var for size, var in sizes if size > 0) <= capacity[d] / unit

    full = [d for d, units in enumerate(data.units_on) if memory[units].sum() > capacity[d]]
    m.placed_once = pyo.Constraint(range(data.graph.size), rule=placed_once)
    m.fits = pyo.Constraint(full, rule=fits)


def _transfers(m: pyo.ConcreteModel, data: CompactData, watch: Callable[[], None]) -> None:
    """Add rows (3) to (5): the nets that a slot cuts, with some pins on it and some not."""
    pins = data.graph.pins

    def entering(m: pyo.ConcreteModel, e: int, v: int, d: int) -> object:
        """(3) in_{e,d} ≥ x_{v,d} − x_{root,d}  for all nets e with w_{e,d} ≤ H, other pins v."""
        watch()
        return m.enters[e, d] >= at(m, v, d) - at(m, pins[e][0], d)

    def leaving(m: pyo.ConcreteModel, e: int, v: int, d: int) -> object:
        """(4) out_{e,d} ≥ x_{root,d} − x_{v,d}  for all nets e with w_{e,d} ≤ H, other pins v."""
        return m.leaves[e, d] >= at(m, pins[e][0], d) - at(m, v, d)

    def uncut(m: pyo.ConcreteModel, e: int, v: int, d: int) -> object:
        """(5) in_{e,d} = out_{e,d} = 0, so x_{v,d} = x_{root,d}, for nets e with w_{e,d} > H."""
        return at(m, v, d) == at(m, pins[e][0], d)

    def some(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(e, v, d) for e, d in pairs for v in pins[e][1:]]

    in_x = data.allowed
    others = some(data.cuts)
    m.entering = pyo.Constraint([i for i in others if i[1:] in in_x], rule=entering)
    m.leaving = pyo.Constraint(
        [(e, v, d) for e, v, d in others if (pins[e][0], d) in in_x], rule=leaving
    )
    m.uncut = pyo.Constraint(
        [(e, v, d) for e, v, d in some(data.uncut) if (v, d) in in_x or (pins[e][0], d) in in_x],
        rule=uncut,
    )


def _bundles(data: CompactData) -> list[list[int]]:
    """Return the passes (0 forward, 1 backward) that are summed under each T."""
    return [[0], [1]] if data.task.problem.pipeline == "gpipe" else [[0, 1]]


def _loads(m: pyo.ConcreteModel, data: CompactData, flows: Flows | None) -> None:
    """Add rows (6): the load of each slot; compute and transfers separately if they overlap."""
    bundles, kind = _bundles(data), data.kind
    parts = ("compute", "transfer") if data.task.problem.overlap else ("both",)
    cuts_on: list[list[int]] = [[] for _ in data.slots]
    for e, d in data.cuts:
        cuts_on[d].append(e)

    def under_max_load(m: pyo.ConcreteModel, d: int, i: int, part: str) -> object:
        """(6) load_{d,i} = Σ_v p_{v,d} x_{v,d} + Σ_e w_{e,d} (in_{e,d} + out_{e,d}) ≤ T_i
        for all slots d, bundles i; the two sums apart with overlap, and that of
        what (18) to (22) charge in place of the second with links."""
        terms = []
        if part != "transfer":
            times = data.p[kind[d], bundles[i]].sum(axis=0)
            terms += [times[v] * m.x[v, d] for v in data.units_on[d] if times[v] > 0]
        if part != "compute":
            times = data.w[kind[d], bundles[i]].sum(axis=0)
            terms += [times[e] * m.enters[e, d] for e in cuts_on[d] if times[e] > 0]
            terms += [times[e] * m.leaves[e, d] for e in cuts_on[d] if times[e] > 0]
            terms += [] if flows is None else flows.paid(m, d, bundles[i])
        return pyo.quicksum(terms) <= m.T[i] if terms else pyo.Constraint.Skip

    m.under_max_load = pyo.Constraint(
        range(len(data.slots)), range(len(bundles)), parts, rule=under_max_load
    )


def _objective(m: pyo.ConcreteModel, data: CompactData) -> None:
    def above_floor(m: pyo.ConcreteModel) -> object:
        """(7) Σ_i T_i ≥ what is known to be a bound."""
        return pyo.quicksum(m.T.values()) >= data.floor

    if data.floor > 0:
        m.above_floor = pyo.Constraint(rule=above_floor)
    m.max_load = pyo.Objective(expr=pyo.quicksum(m.T.values()), sense=pyo.minimize)


def flows_of(data: CompactData) -> Flows:
    """Return the flows of a task with links."""
    task, unit = data.task, data.graph.unit_of.tolist()
    costs = task.linked_costs
    assert costs.messages is not None
    link = costs.messages.link
    nodes_of: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for u, successors in enumerate(task.workload.successors):
        targets = tuple(sorted({unit[v] for v in successors} - {unit[u]}))
        if targets:
            side = int(task.workload.backward[u])
            nodes_of.setdefault((unit[u], targets, side), []).append(u)
    flows = list(nodes_of)
    member = np.zeros((len(flows), task.workload.n))
    for f, nodes in enumerate(nodes_of.values()):
        member[f, nodes] = 1.0
    message, host = (
        member @ times.T / data.scale for times in (costs.messages.time, costs.transfer)
    )
    devices = [d for d, k in enumerate(costs.kind_of.tolist()) if not costs.host[k]]
    linked = {d: [e for e in devices if link[d, e] >= 0] for d in devices}
    return Flows(
        source=tuple(o for o, _, _ in flows),
        targets=tuple(targets for _, targets, _ in flows),
        side=tuple(side for _, _, side in flows),
        linked=linked,
        by_link={(d, e): message[:, link[d, e]] for d in devices for e in linked[d]},
        by_host=host[:, costs.kind_of],
        limit=data.limit,
    )


def add_flows(m: pyo.ConcreteModel, flows: Flows) -> None:
    """Add transfers over links and through host memory.

    F flows of P pins in all, D devices, L ordered linked pairs: F (2 D + L) columns, P (4 D + L)
    rows.
    """
    linked, source = flows.linked, flows.source
    devices, pairs, pins = list(linked), list(flows.by_link), flows.pins
    numbers = range(len(source))
    m.sends = pyo.Var(numbers, pairs, bounds=(0, 1))
    m.fetches = pyo.Var(numbers, devices, bounds=(0, 1))
    m.stores = pyo.Var(numbers, devices, bounds=(0, 1))
    for f, d, e in m.sends:
        if flows.by_link[d, e][f] > flows.limit:
            m.sends[f, d, e].fix(0)
    for f, d in m.fetches:
        if flows.by_host[f, d] > flows.limit:
            m.fetches[f, d].fix(0)
            m.stores[f, d].fix(0)

    def sending(m: pyo.ConcreteModel, f: int, t: int, d: int, e: int) -> object:
        """(18) sends_{f,d,e} ≥ x_{o,d} + x_{t,e} − 1  for all pins (f, t), linked d and e."""
        return m.sends[f, d, e] >= at(m, source[f], d) + at(m, t, e) - 1

    def fetching(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(19) fetches_{f,d} ≥ x_{t,d} − x_{o,d} − Σ_{e linked with d} x_{o,e}  for all pins, d."""
        near = pyo.quicksum(at(m, source[f], e) for e in (d, *linked[d]))
        return m.fetches[f, d] >= at(m, t, d) - near

    def storing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(20) stores_{f,d} ≥ x_{o,d} − x_{t,d} − Σ_{e linked with d} x_{t,e}  for all pins, d."""
        near = pyo.quicksum(at(m, t, e) for e in (d, *linked[d]))
        return m.stores[f, d] >= at(m, source[f], d) - near

    def arriving(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(21) fetches_{f,d} + Σ_e sends_{f,e,d} ≥ x_{t,d} − x_{o,d}  for all pins, d."""
        ways = pyo.quicksum(m.sends[f, e, d] for e in linked[d]) + m.fetches[f, d]
        return ways >= at(m, t, d) - at(m, source[f], d)

    def departing(m: pyo.ConcreteModel, f: int, t: int, d: int) -> object:
        """(22) stores_{f,d} + Σ_e sends_{f,d,e} ≥ x_{o,d} − x_{t,d}  for all pins, d."""
        ways = pyo.quicksum(m.sends[f, d, e] for e in linked[d]) + m.stores[f, d]
        return ways >= at(m, source[f], d) - at(m, t, d)

    m.sending = pyo.Constraint(pins, pairs, rule=sending)
    m.fetching = pyo.Constraint(pins, devices, rule=fetching)
    m.storing = pyo.Constraint(pins, devices, rule=storing)
    m.arriving = pyo.Constraint(pins, devices, rule=arriving)
    m.departing = pyo.Constraint(pins, devices, rule=departing)


def convex_per_device(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Add rows (8) to (10): no path of forward nodes leaves a device and comes back."""
    task, unit = data.task, data.graph.unit_of.tolist()
    backward, free = task.workload.backward, task.problem.cpu_split == "free"
    edges = [(u, v) for u, v in task.workload.edges.tolist() if not (backward[u] or backward[v])]
    nodes = sorted({v for edge in edges for v in edge})
    convex = [d for d, k in enumerate(data.kind) if not (free and task.costs.host[k])]
    m.z = pyo.Var(nodes, convex, bounds=(0, 1))

    def here(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(8) z_{v,d} ≥ x_{v,d}  for all nodes v, slots d."""
        placed = at(m, unit[v], d)
        return pyo.Constraint.Skip if isinstance(placed, float) else m.z[v, d] >= placed

    def or_later(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(9) z_{v,d} ≤ z_{u,d}  for all edges (u, v), slots d."""
        return m.z[v, d] <= m.z[u, d]

    def never_again(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(10) z_{v,d} ≤ x_{v,d} − x_{u,d} + 1  for all edges (u, v), slots d."""
        if unit[u] == unit[v]:
            return pyo.Constraint.Skip
        return m.z[v, d] <= at(m, unit[v], d) - at(m, unit[u], d) + 1

    m.here = pyo.Constraint(nodes, convex, rule=here)
    m.or_later = pyo.Constraint(edges, convex, rule=or_later)
    m.never_again = pyo.Constraint(edges, convex, rule=never_again)


def in_pipeline_order(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Add rows (11) to (16): pipeline edges go forward or stay, so pieces run one after another."""
    task, free_cpus = data.task, data.free_cpus
    edges = (
        pipeline_edges(task.workload)
        if free_cpus
        else [(u, v) for u, v in data.graph.edges.tolist()]
    )
    unit = data.graph.unit_of.tolist() if free_cpus else list(range(data.graph.size))
    points = sorted({v for edge in edges for v in edge})
    last = max((s.position for s in data.slots if s.position is not None), default=-1)
    positions = range(last + 1)
    slots_at = [[d for d, s in enumerate(data.slots) if s.position == i] for i in positions]
    m.b = pyo.Var(points, positions, bounds=(0, 1))
    if not free_cpus:
        for v in points:
            m.b[v, 0].fix(0)

    def on(m: pyo.ConcreteModel, v: int, s: int) -> pyo.Expression:
        return pyo.quicksum(at(m, unit[v], d) for d in slots_at[s])

    def before_next(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """(11) b_{v,s+1} = b_{v,s} + x_{v,s}, b_{v,S+1} = 1  for all v, s; ≥ with free CPUs."""
        after = m.b[v, s] + on(m, v, s)
        then = m.b[v, s + 1] if s < last else 1.0
        return then >= after if free_cpus else then == after

    def not_behind(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(12) b_{u,s} ≥ b_{v,s}  for all edges (u, v), positions s."""
        return m.b[u, s] >= m.b[v, s]

    def not_behind_at(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """(13) b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}  for all edges (u, v), positions s."""
        return m.b[u, s] + on(m, u, s) >= m.b[v, s] + on(m, v, s)

    m.before_next = pyo.Constraint(points, positions, rule=before_next)
    m.not_behind = pyo.Constraint(edges, positions, rule=not_behind)
    if free_cpus:
        m.not_behind_at = pyo.Constraint(edges, positions, rule=not_behind_at)
    _kinds_take_positions(m, data, slots_at)


def _kinds_take_positions(
    m: pyo.ConcreteModel, data: CompactData, slots_at: list[list[int]]
) -> None:
    kind, count = data.kind, data.task.costs.count

    def one_kind(m: pyo.ConcreteModel, s: int) -> object:
        """(14) Σ_{d at s} y_d = 1  for all positions s that are offered to several kinds."""
        return pyo.quicksum(m.y[d] for d in slots_at[s]) == 1

    def so_many(m: pyo.ConcreteModel, k: int) -> object:
        """(15) Σ_{d of kind k} y_d = n_k  for all kinds k, of n_k devices."""
        return pyo.quicksum(m.y[d] for d in m.y if kind[d] == k) == int(count[k])

    def taken(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(16) x_{v,d} ≤ y_d  for all units v, slots d."""
        return m.x[v, d] <= m.y[d]

    offered = [s for s, slots in enumerate(slots_at) if slots and slots[0] in m.y]
    m.one_kind = pyo.Constraint(offered, rule=one_kind)
    m.so_many = pyo.Constraint(sorted({kind[d] for d in m.y}), rule=so_many)
    m.taken = pyo.Constraint([(v, d) for v, d in m.x if d in m.y], rule=taken)


def break_symmetry(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Add rows (17): devices of a kind in the order of their first units, heaviest unit first.

    A unit on a device needs an earlier one on the device before. (Positions in a pipeline cannot be
    exchanged.) Only for the heaviest `SYMMETRY_UNITS`, as rows grow with their square.
    """
    rank, slots = heaviest_first(data.graph), data.slots
    ranked = [sorted(units, key=rank.__getitem__)[:SYMMETRY_UNITS] for units in data.units_on]
    rows = [
        (i, d)
        for d in range(1, len(slots))
        if slots[d].position is None and slots[d].kind == slots[d - 1].kind
        for i in range(len(ranked[d]))
    ]

    def in_order(m: pyo.ConcreteModel, i: int, d: int) -> object:
        """(17) x_{v,d} ≤ Σ_{u before v} x_{u,d−1}  for the i-th heaviest unit v of slot d."""
        before = [m.x[u, d - 1] for u in ranked[d][:i]]
        return m.x[ranked[d][i], d] <= (pyo.quicksum(before) if before else 0.0)

    m.in_order = pyo.Constraint(rows, rule=in_order)


def in_some_order(m: pyo.ConcreteModel, data: CompactData) -> None:
    """Add rows (23) to (27): pieces that can run one after the other, in any order of devices."""
    unit, free_cpus = data.graph.unit_of.tolist(), data.free_cpus
    edges = sorted({(u, v) for u, v in pipeline_edges(data.task.workload) if unit[u] != unit[v]})
    nodes = sorted({v for edge in edges for v in edge})
    whole = [d for d, k in enumerate(data.kind) if not (free_cpus and data.task.costs.host[k])]
    most = max(0, len(whole) - 1 + (len(nodes) if free_cpus else 0))
    m.place = pyo.Var(whole, bounds=(0, most))
    m.rank = pyo.Var(nodes, bounds=(0, most))
    m.same = pyo.Var(edges, bounds=(0, 1))

    def at_most(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(23) rank_v ≤ place_d + N (1 − x_{v,d})  for all nodes v, devices d with one piece."""
        return m.rank[v] <= m.place[d] + most * (1 - at(m, unit[v], d))

    def at_least(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """(24) rank_v ≥ place_d − N (1 − x_{v,d})  for all nodes v, devices d with one piece."""
        return m.rank[v] >= m.place[d] - most * (1 - at(m, unit[v], d))

    def later(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(25) rank_v ≥ rank_u + 1 − same_{u,v}  for all edges (u, v)."""
        return m.rank[v] >= m.rank[u] + 1 - m.same[u, v]

    def together(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """(26) same_{u,v} ≤ 1 + x_{u,d} − x_{v,d}  for all edges (u, v), devices d."""
        return m.same[u, v] <= 1 + at(m, unit[u], d) - at(m, unit[v], d)

    def in_a_piece(m: pyo.ConcreteModel, u: int, v: int) -> object:
        """(27) same_{u,v} ≤ Σ_{d with one piece} x_{v,d}  for all edges (u, v), with free CPUs."""
        return m.same[u, v] <= pyo.quicksum(at(m, unit[v], d) for d in whole)

    m.at_most = pyo.Constraint(nodes, whole, rule=at_most)
    m.at_least = pyo.Constraint(nodes, whole, rule=at_least)
    m.later = pyo.Constraint(edges, rule=later)
    m.together = pyo.Constraint(edges, whole, rule=together)
    if free_cpus:
        m.in_a_piece = pyo.Constraint(edges, rule=in_a_piece)
