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
from ..instances.contiguity import pipeline_edges
from .compact_slots import Slot, heaviest_first, slot_of_device, slots_of, tied_units
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .task import Task

#: What a memory limit is scaled to: the solver's tolerance of 1e-6 is then 1e-10 of the limit.
MEMORY_SCALE = 1e4
#: Units whose order of devices is told; beyond it rows are dear and symmetry is broken anyway.
SYMMETRY_UNITS = 20
#: Rounding that the definition allows in sums of sizes.
MEMORY_SLACK = 1e-9


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
    watch
        Called every now and then; raise from it to give up.
    """
    problem, costs = task.problem, task.costs
    slots = slots_of(task)
    ordered = problem.split == "contiguous"
    gaps = ordered and any(slot.position is None for slot in slots)
    graph = hypergraph(task, pipeline_units(task) if ordered and not gaps else colour_units(task))
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
        and not (slots[d].position is None and v in never)
    ]
    has_x = frozenset(allowed)
    units_on: list[list[int]] = [[] for _ in slots]
    slots_for: list[list[int]] = [[] for _ in range(graph.size)]
    for v, d in allowed:
        units_on[d].append(v)
        slots_for[v].append(d)
    for v, own in enumerate(slots_for):
        if not own:
            nodes = ", ".join(str(task.workload.ids[u]) for u in graph.members[v][:5])
            raise InfeasibleError(
                f"nodes {nodes}, which share a device, fit on no device: each lacks the memory "
                f"({graph.memory_bytes[v]:.0f} bytes), does not support them, or tears them apart"
            )
    cuts = [
        (e, d)
        for d, k in enumerate(kind)
        for e, pins in enumerate(graph.pins)
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
        return pyo.quicksum(terms) <= m.T[bundle] if terms else pyo.Constraint.Skip

    m.under_max_load = pyo.Constraint(
        range(len(slots)), range(len(bundles)), parts, rule=under_max_load
    )
    m.max_load = pyo.Objective(expr=pyo.quicksum(m.T.values()), sense=pyo.minimize)
    m.w = pyo.Var([d for d, s in enumerate(slots) if s.chosen], domain=pyo.Binary)
    stated = Compact(task, m, graph, slots, has_x, scale)
    _break_symmetry(stated, units_on)
    if ordered:
        _in_pipeline_order(stated, gaps, x)
    elif problem.split == "per-device":
        _convex_per_device(stated, x)
    return stated


def _convex_per_device(stated: Compact, x: Callable[[int, int], pyo.Var | float]) -> None:
    """No path of forward nodes leaves a device and comes back (the paper's contiguity)."""
    m, task, unit = stated.model, stated.task, stated.graph.unit_of.tolist()
    backward, free = task.workload.backward, task.problem.cpu_split == "free"
    edges = [(u, v) for u, v in task.workload.edges.tolist() if not (backward[u] or backward[v])]
    nodes = sorted({v for edge in edges for v in edge})
    slots = [d for d, s in enumerate(stated.slots) if not (free and task.costs.host[s.kind])]
    m.z = pyo.Var(nodes, slots, bounds=(0, 1))

    def here(m: pyo.ConcreteModel, v: int, d: int) -> object:
        """z_{v,d} ≥ x_{v,d}."""
        there = x(unit[v], d)
        return pyo.Constraint.Skip if isinstance(there, float) else m.z[v, d] >= there

    def or_later(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """z_{v,d} ≤ z_{u,d}."""
        return m.z[v, d] <= m.z[u, d]

    def never_again(m: pyo.ConcreteModel, u: int, v: int, d: int) -> object:
        """z_{v,d} ≤ x_{v,d} − x_{u,d} + 1."""
        if unit[u] == unit[v]:
            return pyo.Constraint.Skip
        return m.z[v, d] <= x(unit[v], d) - x(unit[u], d) + 1

    m.here = pyo.Constraint(nodes, slots, rule=here)
    m.or_later = pyo.Constraint(edges, slots, rule=or_later)
    m.never_again = pyo.Constraint(edges, slots, rule=never_again)


def _in_pipeline_order(
    stated: Compact, gaps: bool, x: Callable[[int, int], pyo.Var | float]
) -> None:
    """Every pipeline edge goes forward or stays: the pieces can run one after the other.

    Slots have positions 1 … S. Where CPUs are free, each node on one is a piece of its own and
    lies in a gap before, between or behind the positions, so order is told node by node.
    """
    m, task, graph = stated.model, stated.task, stated.graph
    edges = pipeline_edges(task.workload) if gaps else [(u, v) for u, v in graph.edges.tolist()]
    unit = graph.unit_of.tolist() if gaps else list(range(graph.size))
    points = sorted({v for edge in edges for v in edge})
    last = max((s.position for s in stated.slots if s.position is not None), default=-1)
    positions = range(last + 1)
    at = [[d for d, s in enumerate(stated.slots) if s.position == i] for i in positions]
    m.b = pyo.Var(points, positions, bounds=(0, 1))

    def on(v: int, s: int) -> object:
        return pyo.quicksum(x(unit[v], d) for d in at[s])

    def before_next(m: pyo.ConcreteModel, v: int, s: int) -> object:
        """b_{v,s+1} = b_{v,s} + x_{v,s}, ≥ if v may lie in the gap between; b_{v,S+1} = 1."""
        after = m.b[v, s] + on(v, s)
        then = m.b[v, s + 1] if s < last else 1.0
        return then >= after if gaps else then == after

    def not_behind(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """b_{u,s} ≥ b_{v,s}: u is before position s if v is."""
        return m.b[u, s] >= m.b[v, s]

    def not_behind_at(m: pyo.ConcreteModel, u: int, v: int, s: int) -> object:
        """b_{u,s} + x_{u,s} ≥ b_{v,s} + x_{v,s}: u is at or before position s if v is."""
        return m.b[u, s] + on(u, s) >= m.b[v, s] + on(v, s)

    if not gaps:
        for v in points:
            m.b[v, 0].fix(0)
    m.before_next = pyo.Constraint(points, positions, rule=before_next)
    m.not_behind = pyo.Constraint(edges, positions, rule=not_behind)
    if gaps:
        m.not_behind_at = pyo.Constraint(edges, positions, rule=not_behind_at)
    # Kinds of devices take their positions.
    m.one_kind = pyo.Constraint(
        [i for i in positions if at[i] and at[i][0] in m.w],
        rule=lambda m, i: pyo.quicksum(m.w[d] for d in at[i]) == 1,
    )
    kinds = sorted({stated.slots[d].kind for d in m.w})
    m.so_many = pyo.Constraint(
        kinds,
        rule=lambda m, k: (
            pyo.quicksum(m.w[d] for d in m.w if stated.slots[d].kind == k)
            == int(task.costs.count[k])
        ),
    )
    m.taken = pyo.Constraint(
        [(v, d) for v, d in sorted(stated.allowed) if d in m.w],
        rule=lambda m, v, d: m.x[v, d] <= m.w[d],
    )


def _break_symmetry(stated: Compact, units_on: list[list[int]]) -> None:
    """Devices of a kind are used in the order of their first units, heaviest unit first.

    x_{v,d} ≤ Σ_{u before v} x_{u,d−1}: what lies on a device needs something earlier on the one
    before it. (Positions in a pipeline cannot be exchanged.)
    Only for the heaviest SYMMETRY_UNITS: the rows grow with the square.
    """
    m, slots = stated.model, stated.slots
    rank = heaviest_first(stated.graph)
    ranked = [sorted(units, key=rank.__getitem__)[:SYMMETRY_UNITS] for units in units_on]
    rows = [
        (i, d)
        for d in range(1, len(slots))
        if slots[d].position is None and slots[d].kind == slots[d - 1].kind
        for i in range(len(ranked[d]))
    ]

    def in_order(m: pyo.ConcreteModel, i: int, d: int) -> object:
        before = [m.x[u, d - 1] for u in ranked[d][:i]]
        return m.x[ranked[d][i], d] <= (pyo.quicksum(before) if before else 0.0)

    m.in_order = pyo.Constraint(rows, rule=in_order)
