"""The compact integer program of throughput: which unit on which slot, and what T that takes.

Symbols, as in the paper; a *unit* v is a set of nodes that share a device (`hypergraph`), a net e
a set of units among which data flows, a *slot* d a device, or a place for one in the pipeline:

    x_{v,d}   1 if unit v is on slot d
    in_{e,d}  1 if data of net e enters slot d (or leaves it: see `root`)
    out_{e,d} the other direction
    p_{v,d}   time of unit v on slot d              w_{e,d}  time of a transfer of net e at slot d
    m_v, M_d  memory of a unit, of a slot           T        the max-load
    z_{v,d}   1 if node v or a later one is on d    b_{v,s}  1 if v is before position s

In the paper a net is one node u and its successors, and in, out are told by u: data enters d where
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

from ..instances import InfeasibleError
from ..instances.arrays import Ints
from .compact_links import in_some_order, over_links
from .compact_order import break_symmetry, convex_per_device, in_pipeline_order
from .compact_slots import Slot, slot_of_device, slots_of, tied_units
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .infeasible import why_infeasible
from .task import Task
from .whole_bytes import MEMORY_SLACK

#: What a memory limit is scaled to: the solver's tolerance of 1e-6 is then 1e-10 of the limit.
MEMORY_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Compact:
    """The program with what it takes to read it.

    Parameters
    ----------
    model
        The Pyomo model; its objective times `scale` is in the workload's time unit.
    graph
        Units and nets.
    slots
        What x is indexed by, besides units.
    allowed
        (unit, slot) pairs that have an x.
    scale
        Time units per unit of the model.
    """

    task: Task
    model: pyo.ConcreteModel
    graph: Hypergraph
    slots: tuple[Slot, ...]
    allowed: frozenset[tuple[int, int]]
    scale: float

    def placement(self, value: Callable[[pyo.Var], float]) -> Ints:
        """Return the device of each node, given the value of each variable."""
        costs = self.task.costs
        used = [0] * len(costs.count)
        first = np.concatenate([[0], np.cumsum(costs.count)])
        device = np.full(len(self.slots), -1)
        taken = np.zeros(self.graph.size, dtype=np.int64)
        best = np.full(self.graph.size, -1.0)
        for v, d in sorted(self.allowed):
            here = value(self.model.x[v, d])
            if here > best[v]:
                taken[v], best[v] = d, here
        for d, slot in enumerate(self.slots):
            if slot.device is not None:
                device[d] = slot.device
            elif (taken == d).any():
                device[d] = first[slot.kind] + used[slot.kind]
                used[slot.kind] += 1
        return self.graph.expand(device[taken])

    def start(self, placement: Ints) -> list[tuple[pyo.Var, float]] | None:
        """Return the values of the whole-number variables for a placement of the nodes.

        None if the program leaves the placement out: it breaks a rule.
        """
        units = self.graph.restrict(placement)
        if not np.array_equal(self.graph.expand(units), placement):
            return None
        slots = slot_of_device(self.task, self.graph, self.slots, placement)
        if slots is None:
            return None
        slot_of = [slots[int(d)] for d in units]
        if any((v, d) not in self.allowed for v, d in enumerate(slot_of)):
            return None
        m = self.model
        values = [(m.x[v, d], float(slot_of[v] == d)) for v, d in sorted(self.allowed)]
        return values + [(m.w[d], float(d in slots.values())) for d in m.w]


def compact(
    task: Task,
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
        Leave out placements with a higher objective than this.
    floor
        No placement has a lower objective than this.
    watch
        Called every now and then; raise from it to give up.

    Raises
    ------
    InfeasibleError
        If some node fits on no device, or the sizes are too large in all.
    """
    problem, costs = task.throughput, task.costs
    slots = slots_of(task)
    ordered = problem.split == "contiguous"
    linked = bool(task.cluster.links)
    free = problem.cpu_split == "free"
    gaps = ordered and free and any(costs.host[slot.kind] for slot in slots)
    graph = hypergraph(task, pipeline_units(task) if ordered and not gaps else colour_units(task))
    because = why_infeasible(task, graph)
    if because is not None:
        raise InfeasibleError(because)
    scale = 1.0 if reference is None or not reference > 0 else reference / 1000.0
    p = graph.compute / scale  # (K, 2, U)
    w = graph.weight / scale  # (K, 2, E)
    limit = cutoff / scale * (1 + 1e-6)
    capacity = costs.capacity_bytes * (1 + MEMORY_SLACK)
    never = tied_units(task, graph) if gaps else frozenset()
    kind = [slot.kind for slot in slots]
    allowed = [
        (v, d)
        for v in range(graph.size)
        for d, k in enumerate(kind)
        if p[k, :, v].sum() <= min(limit, 1e300)
        and graph.memory_bytes[v] <= capacity[k]
        and not (costs.host[k] and v in never)
    ]
    has_x = frozenset(allowed)
    units_on: list[list[int]] = [[] for _ in slots]
    slots_for: list[list[int]] = [[] for _ in range(graph.size)]
    for v, d in allowed:
        units_on[d].append(v)
        slots_for[v].append(d)
    for v, own in enumerate(slots_for):
        if not own:  # it may still be that only contiguity is at fault
            nodes = ", ".join(str(task.workload.ids[u]) for u in graph.members[v][:5])
            raise InfeasibleError(
                f"nodes {nodes} must share a device and wait for others between them, which no "
                "kind of device that takes them allows under a contiguous split"
            )
    cuts = [
        (e, d)
        for d, k in enumerate(kind)
        for e, pins in enumerate(() if linked else graph.pins)
        if w[k, :, e].any() and any((v, d) in has_x for v in pins)
    ]
    cuts_on: list[list[int]] = [[] for _ in slots]
    for e, d in cuts:
        cuts_on[d].append(e)

    m = pyo.ConcreteModel(task.workload.name)
    m.x = pyo.Var(allowed, domain=pyo.Binary)
    m.enters = pyo.Var(cuts, bounds=(0, 1))
    m.leaves = pyo.Var(cuts, bounds=(0, 1))

    def x(v: int, d: int) -> pyo.Var | float:
        return m.x[v, d] if (v, d) in has_x else 0.0

    def placed_once(m: pyo.ConcreteModel, v: int) -> object:
        """Σ_d x_{v,d} = 1."""
        return pyo.quicksum(m.x[v, d] for d in slots_for[v]) == 1

    def fits(m: pyo.ConcreteModel, d: int) -> object:
        """Σ_v m_v x_{v,d} ≤ M_d."""
        unit = capacity[kind[d]] / MEMORY_SCALE if capacity[kind[d]] > 0 else 1.0
        used = [(graph.memory_bytes[v] / unit, m.x[v, d]) for v in units_on[d]]
        return pyo.quicksum(c * var for c, var in used if c > 0) <= capacity[kind[d]] / unit

    def entering(m: pyo.ConcreteModel, e: int, v: int, d: int) -> object:
        """in_{e,d} ≥ x_{v,d} − x_{root,d}."""
        watch()
        return m.enters[e, d] >= x(v, d) - x(graph.pins[e][0], d)

    def leaving(m: pyo.ConcreteModel, e: int, v: int, d: int) -> object:
        """out_{e,d} ≥ x_{root,d} − x_{v,d}."""
        return m.leaves[e, d] >= x(graph.pins[e][0], d) - x(v, d)

    full = [
        d
        for d, k in enumerate(kind)
        if sum(graph.memory_bytes[v] for v in units_on[d]) > capacity[k]
    ]
    m.placed_once = pyo.Constraint(range(graph.size), rule=placed_once)
    m.fits = pyo.Constraint(full, rule=fits)
    others = [(e, v, d) for e, d in cuts for v in graph.pins[e][1:]]
    m.entering = pyo.Constraint([i for i in others if (i[1], i[2]) in has_x], rule=entering)
    m.leaving = pyo.Constraint(
        [i for i in others if (graph.pins[i[0]][0], i[2]) in has_x], rule=leaving
    )

    # Loads: which passes are added up under which T, and whether transfers count beside compute.
    paid = over_links(m, task, graph, x, scale) if linked else None
    gpipe = problem.pipeline == "gpipe"
    bundles: list[tuple[int, ...]] = [(0,), (1,)] if gpipe else [(0, 1)]
    parts = ("compute", "transfer") if problem.overlap else ("both",)
    m.T = pyo.Var(range(len(bundles)), bounds=(0, limit if math.isfinite(limit) else None))

    def under_max_load(m: pyo.ConcreteModel, d: int, bundle: int, part: str) -> object:
        """load_d = Σ_v p_{v,d} x_{v,d} + Σ_e w_{e,d} (in_{e,d} + out_{e,d}) ≤ T."""
        terms = []
        sides = list(bundles[bundle])
        if part != "transfer":
            times = p[kind[d], sides].sum(axis=0)
            terms += [times[v] * m.x[v, d] for v in units_on[d] if times[v] > 0]
        if part != "compute":
            times = w[kind[d], sides].sum(axis=0)
            terms += [times[e] * m.enters[e, d] for e in cuts_on[d] if times[e] > 0]
            terms += [times[e] * m.leaves[e, d] for e in cuts_on[d] if times[e] > 0]
            terms += paid(d, sides) if paid is not None else []
        return pyo.quicksum(terms) <= m.T[bundle] if terms else pyo.Constraint.Skip

    m.under_max_load = pyo.Constraint(
        range(len(slots)), range(len(bundles)), parts, rule=under_max_load
    )
    objective = pyo.quicksum(m.T.values())
    if floor > 0:
        m.at_least = pyo.Constraint(expr=objective >= floor / scale)
    m.max_load = pyo.Objective(expr=objective, sense=pyo.minimize)
    m.w = pyo.Var([d for d, s in enumerate(slots) if s.chosen], domain=pyo.Binary)
    if not linked:  # else devices of a kind differ by their links
        break_symmetry(m, graph, slots, units_on)
    if ordered and linked:
        in_some_order(m, task, graph, slots, x, gaps)
    elif ordered:
        in_pipeline_order(m, task, graph, slots, x, gaps)
    elif problem.split == "per-device":
        convex_per_device(m, task, graph, slots, x)
    return Compact(task, m, graph, slots, has_x, scale)
