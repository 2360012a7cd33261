"""The best order of a pipeline's passes on each device: an integer program for small cases.

Operations i (a pass of a stage for a microbatch) have a device, a duration, and memory: a forward
takes some when it begins, a weight gradient (or a whole backward) gives it back when it ends.

    symbol    meaning                                                             in the model
    s_i       begin of operation i                                                s[i]
    y_{i,j}   1 if i comes before j on their device, where that is open           y[i,j], i < j
    C         the makespan                                                        C
    d_i       duration of operation i
    m_i       bytes that i takes when it begins, or, below 0, gives back when it ends
    M_d       bytes that device d has for activations
    r_i, q_i  longest path of operations to the begin of i, and from its end on
    H         a makespan known to be possible

    minimise  C                                                                           (0)

    C ≥ s_i + d_i + q_i                                                                   (1)
    C ≥ min r + Σ d + min q                                                               (2)
    s_j ≥ s_i + d_i                                                                       (3)
    s_j ≥ s_i + d_i − (1 − y_{i,j}) (H − q_i − r_j)                                       (4)
    m_f + Σ_g m_g y_{g,f} ≤ M_d                                                           (5)

(1) holds for each operation i, (2) over the operations of each device, (3) where j waits for i, (4)
for all i and j on one device whose order is open, and (5) for each operation f that takes memory on
a device d. Where the order is known, y_{i,j} is that number, and y_{j,i} = 1 − y_{i,j}. In (4) the
factor H − q_i − r_j is the least that is large enough. Microbatches are alike, so each stage takes
them in order, pass by pass.

References
----------
Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, appendix: the program. The bounds on C by
heads and tails are Carlier's, from job-shop scheduling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
import pyomo.environ as pyo

from ...instances.common.arrays import Floats
from ..program import Start, Value
from ..throughput.whole_bytes import room_of


class StagePass(NamedTuple):
    """A pass of a stage for a microbatch."""

    name: str  # such as ``2F0``
    device: int  # number of its device
    duration: float  # its duration, in the unit of the makespan
    # bytes allocated when it begins, if positive, or freed when it ends, if negative
    memory_bytes: float


@dataclass(frozen=True)
class ScheduleInstance:
    """Instance of the scheduling problem: operations, precedences, and memory of each device."""

    operations: tuple[StagePass, ...]  # operations, numbered by position
    before: tuple[tuple[int, int], ...]  # pairs (i, j): j waits for i; without cycles
    capacity_bytes: tuple[float, ...]  # memory for activations of each device, bytes

    @cached_property
    def graph(self) -> nx.DiGraph[int]:
        """Graph of operations, with an edge from each to those that wait for it."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.operations)))
        graph.add_edges_from(self.before)
        return graph

    @cached_property
    def heads(self) -> Floats:
        """r: length of the longest path to the start of each operation."""
        return _longest(self.graph, [o.duration for o in self.operations])

    @cached_property
    def tails(self) -> Floats:
        """q: length of the longest path after the end of each operation."""
        return _longest(self.graph.reverse(copy=False), [o.duration for o in self.operations])

    @cached_property
    def behind(self) -> list[set[int]]:
        """Set of the operations that must come after each operation."""
        return [nx.descendants(self.graph, i) for i in range(len(self.operations))]

    @cached_property
    def own(self) -> tuple[tuple[int, ...], ...]:
        """Operations of each device."""
        lists: list[list[int]] = [[] for _ in self.capacity_bytes]
        for i, operation in enumerate(self.operations):
            lists[operation.device].append(i)
        return tuple(map(tuple, lists))

    def work(self, device: int) -> float:
        """Return the bound on the makespan by one device's work: min r + Σ d + min q."""
        own = list(self.own[device])
        if not own:
            return 0.0
        total = sum(self.operations[i].duration for i in own)
        return float(self.heads[own].min() + total + self.tails[own].min())

    def makespan(self, orders: Sequence[Sequence[int]]) -> float:
        """Return the makespan of an order per device; `inf` on deadlock or lack of memory."""
        graph = self.graph.copy()
        for device, order in enumerate(orders):
            graph.add_edges_from(pairwise(order))
            held = 0.0
            for i in order:
                taken = self.operations[i].memory_bytes
                held += taken
                if taken > 0 and held > room_of(self.capacity_bytes[device]):
                    return math.inf
        if not nx.is_directed_acyclic_graph(graph):
            return math.inf
        duration = np.array([o.duration for o in self.operations])
        return float((_longest(graph, duration.tolist()) + duration).max(initial=0.0))


def _longest(graph: nx.DiGraph[int], duration: Sequence[float]) -> Floats:
    """Return the length of the longest path to each node, without the node's own duration."""
    begin = np.zeros(len(duration))
    for i in nx.topological_sort(graph):
        for j in graph.successors(i):
            begin[j] = max(begin[j], begin[i] + duration[i])
    return begin


@dataclass(frozen=True, eq=False)
class ScheduleModel:
    """The Pyomo program, with its data for reading solutions."""

    instance: ScheduleInstance  # the operations that it schedules
    horizon: float  # H
    model: pyo.ConcreteModel  # the Pyomo model
    scale: float  # its times times `scale` are those of the instance

    def read(self, value: Value) -> list[list[int]]:
        """Return each device's operations by start time; ties are in order of precedence."""
        place = {i: p for p, i in enumerate(nx.topological_sort(self.instance.graph))}
        orders: list[list[int]] = [[] for _ in self.instance.capacity_bytes]
        for i in sorted(place, key=lambda i: (round(value(self.model.s[i]), 6), place[i])):
            orders[self.instance.operations[i].device].append(i)
        return orders

    def start(self, orders: Sequence[Sequence[int]]) -> Start:
        """Return the values of y that express `orders`."""
        place = {i: p for order in orders for p, i in enumerate(order)}
        return [(var, float(place[i] < place[j])) for (i, j), var in self.model.y.items()]


def schedule_model(instance: ScheduleInstance, horizon: float) -> ScheduleModel:
    """State the program for makespans up to `horizon`.

    Times are scaled so that the horizon is 1000: solvers have absolute tolerances.
    """
    scale = horizon / 1000.0 if horizon > 0 else 1.0
    operations = tuple(o._replace(duration=o.duration / scale) for o in instance.operations)
    m = pyo.ConcreteModel("schedule")
    stated = ScheduleModel(replace(instance, operations=operations), horizon / scale, m, scale)
    _variables(stated)
    m.objective = pyo.Objective(expr=m.C)
    _times(stated)
    _memory(stated)
    return stated


def _variables(stated: ScheduleModel) -> None:
    instance, m, horizon = stated.instance, stated.model, stated.horizon

    def begins(_: pyo.ConcreteModel, i: int) -> tuple[float, float]:
        head = float(instance.heads[i])
        return head, max(head, horizon - instance.operations[i].duration - float(instance.tails[i]))

    pairs = [
        (i, j)
        for own in instance.own
        for i, j in combinations(own, 2)
        if j not in instance.behind[i] and i not in instance.behind[j]
    ]
    m.C = pyo.Var(bounds=(0, horizon))
    m.s = pyo.Var(range(len(instance.operations)), bounds=begins)
    m.y = pyo.Var(pairs, domain=pyo.Binary)


def _before(
    instance: ScheduleInstance, m: pyo.ConcreteModel, i: int, j: int
) -> pyo.Expression | float:
    """Return y_{i,j}: a number where the order is known, else an expression."""
    if j in instance.behind[i] or i in instance.behind[j]:
        return float(j in instance.behind[i])
    return m.y[i, j] if (i, j) in m.y else 1 - m.y[j, i]


def _times(stated: ScheduleModel) -> None:
    """Add rows (1) to (4): lengths of paths, work of devices, waits, one operation at a time."""
    instance, m, horizon = stated.instance, stated.model, stated.horizon
    d = [operation.duration for operation in instance.operations]

    def ends(m: pyo.ConcreteModel, i: int) -> object:
        """(1) C ≥ s_i + d_i + q_i  for all operations i."""
        return m.s[i] + d[i] + float(instance.tails[i]) <= m.C

    def work(m: pyo.ConcreteModel, device: int) -> object:
        """(2) C ≥ min r + Σ d + min q  over the operations of each device."""
        return instance.work(device) <= m.C

    def waits(m: pyo.ConcreteModel, i: int, j: int) -> object:
        """(3) s_j ≥ s_i + d_i  for all i, j where j waits for i."""
        return m.s[j] >= m.s[i] + d[i]

    def one_at_a_time(m: pyo.ConcreteModel, i: int, j: int) -> object:
        """(4) s_j ≥ s_i + d_i − (1 − y_{i,j}) (H − q_i − r_j)  for all i, j in open order."""
        enough = max(0.0, horizon - float(instance.tails[i]) - float(instance.heads[j]))
        return m.s[j] >= m.s[i] + d[i] - (1 - _before(instance, m, i, j)) * enough

    pairs = list(m.y)
    m.ends = pyo.Constraint(range(len(d)), rule=ends)
    m.work = pyo.Constraint(range(len(instance.own)), rule=work)
    m.waits = pyo.Constraint(sorted(set(instance.before)), rule=waits)
    m.one_at_a_time = pyo.Constraint([*pairs, *((j, i) for i, j in pairs)], rule=one_at_a_time)


def _memory(stated: ScheduleModel) -> None:
    """Add rows (5): the bytes held when an operation begins."""
    instance, m = stated.instance, stated.model
    operations = instance.operations

    def memory(m: pyo.ConcreteModel, f: int) -> object:
        """(5) m_f + Σ_g m_g y_{g,f} ≤ M_d  for all f with m_f > 0, g on the same device d."""
        device = operations[f].device
        capacity = float(room_of(instance.capacity_bytes[device]))
        scale = capacity or 1.0
        held = sum(
            operations[g].memory_bytes / scale * _before(instance, m, g, f)
            for g in instance.own[device]
            if g != f and operations[g].memory_bytes
        )
        total = operations[f].memory_bytes / scale + held
        if isinstance(total, float):  # nothing is open
            fits = total <= capacity / scale
            return pyo.Constraint.Feasible if fits else pyo.Constraint.Infeasible
        return total <= capacity / scale

    takers = [
        i
        for i, operation in enumerate(operations)
        if operation.memory_bytes > 0 and math.isfinite(instance.capacity_bytes[operation.device])
    ]
    m.memory = pyo.Constraint(takers, rule=memory)
