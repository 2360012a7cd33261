"""The compact integer program of throughput: which unit on which slot, and what T that takes.

A *unit* v is a set of nodes that share a device, a *net* e a set of units among which data flows
(`hypergraph`); a *slot* d is a device, or a place for one in the pipeline (`compact_slots`).

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
one of each. z, b and y belong to contiguity and the order of devices, `compact_order`, (8) to (17);
with links between devices `compact_links`, (18) to (27), takes the place of (3) to (5).

In a file that `stagecut export-model` writes, x[v,d] is x(v_d), and row (1) of unit v is
c_e_placed_once(v)_: after a prefix the rule's name and what it is for, here numbers of units.

In the paper a net is one node u and its successors, and u defines in and out: data enters d where
a successor is on d and u is not. A net that adds up several transfers has no single u; any pin, its
*root*, can stand for it, because in + out is 1 exactly where some pins are on d and some are not.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
section 5.2 and appendix. The ideal definition of contiguity by positions is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances import Throughput
from ...instances.common.arrays import Ints
from ..program import Start, Value, at
from ..task import Task
from .compact_data import CompactData, compact_data
from .compact_links import Flows, add_flows, flows_of, in_some_order
from .compact_order import break_symmetry, convex_per_device, in_pipeline_order
from .compact_slots import Slot, slot_of_device
from .hypergraph import Hypergraph

#: What a memory limit is scaled to: the solver's tolerance of 1e-6 is then 1e-10 of the limit.
MEMORY_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Compact:
    """The program with what it takes to read it.

    Parameters
    ----------
    data
        What it is stated over.
    model
        The Pyomo model; its objective times `scale` is in the workload's time unit.
    """

    data: CompactData
    model: pyo.ConcreteModel

    @property
    def graph(self) -> Hypergraph:
        """Units and nets."""
        return self.data.graph

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What x is indexed by, besides units."""
        return self.data.slots

    @property
    def scale(self) -> float:
        """Time units of the workload per unit of the model."""
        return self.data.scale

    def read(self, value: Value) -> Ints:
        """Return the device of each node, given the value of each variable."""
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
        return graph.expand(device[taken])

    def start(self, placement: Ints) -> Start | None:
        """Return the values of the whole-number variables for a placement of the nodes.

        None if the program leaves the placement out: it breaks a rule.
        """
        data, m = self.data, self.model
        units = data.graph.restrict(placement)
        if not np.array_equal(data.graph.expand(units), placement):
            return None
        slots = slot_of_device(data.task, data.graph, data.slots, placement)
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
) -> Compact:
    """State the program of a task.

    U units, E nets of P pins in all, D slots: D·(U + 2E) columns and 2·D·P rows, for contiguous
    splits D times the pipeline's edges more. Every rule of the problem is in it, so an optimal
    solution is an optimal placement; devices of a kind are interchangeable, and of placements that
    differ only in that the program keeps one.

    Parameters
    ----------
    reference
        A likely objective: times are scaled to make it 1000. Default: times as they are.
    cutoff
        Leave out placements with a higher objective than this: units and nets that alone take
        longer have no place, and no coefficient.
    floor
        No placement has a lower objective than this.
    watch
        Called every now and then; raise from it to give up.

    Raises
    ------
    InfeasibleError
        If some node fits on no device, or the sizes are too large in all.
    """
    data = compact_data(task, reference, cutoff, floor)
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
    if not data.linked:  # else devices of a kind differ by their links
        break_symmetry(m, data)
    if data.ordered and data.linked:
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
    """Every unit on one slot, within the memories."""
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
    """Which nets a slot cuts: some pins are on it and some are not."""
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
    """Return the passes (0 forward, 1 backward) that are added up under each T."""
    return [[0], [1]] if data.task.problem.pipeline == "gpipe" else [[0, 1]]


def _loads(m: pyo.ConcreteModel, data: CompactData, flows: Flows | None) -> None:
    """What the slots take; compute and transfers apart where they overlap."""
    bundles, kind = _bundles(data), data.kind
    parts = ("compute", "transfer") if data.task.problem.overlap else ("both",)
    cuts_on: list[list[int]] = [[] for _ in data.slots]
    for e, d in data.cuts:
        cuts_on[d].append(e)

    def under_max_load(m: pyo.ConcreteModel, d: int, i: int, part: str) -> object:
        """(6) load_{d,i} = Σ_v p_{v,d} x_{v,d} + Σ_e w_{e,d} (in_{e,d} + out_{e,d}) ≤ T_i
        for all slots d, bundles i; the two sums apart with overlap, and that of
        `compact_links` in place of the second with links."""
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
