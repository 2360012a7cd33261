"""The best order of a pipeline's passes on each device: an integer program for small cases.

Operations i (a pass of a stage for a microbatch) have a device, a duration d_i, and memory: a
forward takes some when it begins, a weight gradient (or a whole backward) gives it back when it
ends. Symbols:

    s_i       begin of operation i
    y_{i,j}   1 if i comes before j on their device, where that is open; else 1 − y_{j,i}
    C         the makespan
    r_i, q_i  longest path of operations to the begin of i, and from its end on
    H         a makespan known to be possible

    minimise C
    C ≥ s_i + d_i + q_i                                    for each operation
    C ≥ min r + Σ d + min q                                over the operations of each device
    s_j ≥ s_i + d_i                                        where j waits for i
    s_j ≥ s_i + d_i − (1 − y_{i,j})·M_{i,j}                on one device; likewise for j before i
    m_f + Σ_g m_g·[g before f] − Σ_w m_w·[w before f] ≤ M_d     when a forward f begins on d

with M_{i,j} = H − q_i − r_j, the least that is large enough. Microbatches are alike, so each
stage takes them in order, pass by pass.

References
----------
Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, appendix: the program. The bounds on C by
heads and tails are Carlier's, from job-shop scheduling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
import pyomo.environ as pyo

from ..instances.arrays import Floats

#: Rounding that sums of sizes may need.
MEMORY_SLACK = 1e-9


class Operation(NamedTuple):
    """A pass of a stage for a microbatch.

    Parameters
    ----------
    name
        Such as ``2F0``.
    device
        Number of its device.
    duration
        How long it takes.
    memory_bytes
        What it takes when it begins, if positive, or gives back when it ends, if negative.
    """

    name: str
    device: int
    duration: float
    memory_bytes: float


@dataclass(frozen=True)
class Shop:
    """Operations, what they wait for, and what memory the devices have for activations.

    Parameters
    ----------
    operations
        All of them.
    before
        Pairs (i, j): j waits for i. Without a cycle.
    capacity_bytes
        Of each device.
    """

    operations: tuple[Operation, ...]
    before: tuple[tuple[int, int], ...]
    capacity_bytes: tuple[float, ...]

    @cached_property
    def graph(self) -> nx.DiGraph[int]:
        """Who waits for whom."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.operations)))
        graph.add_edges_from(self.before)
        return graph

    @cached_property
    def heads(self) -> Floats:
        """r: longest path to the begin of each operation."""
        return _longest(self.graph, [o.duration for o in self.operations])

    @cached_property
    def tails(self) -> Floats:
        """q: longest path from the end of each operation on."""
        return _longest(self.graph.reverse(copy=False), [o.duration for o in self.operations])

    @cached_property
    def own(self) -> tuple[tuple[int, ...], ...]:
        """Operations of each device."""
        lists: list[list[int]] = [[] for _ in self.capacity_bytes]
        for i, operation in enumerate(self.operations):
            lists[operation.device].append(i)
        return tuple(map(tuple, lists))

    def work(self, device: int) -> float:
        """Return the least makespan that the work of one device allows: min r + Σ d + min q."""
        own = list(self.own[device])
        if not own:
            return 0.0
        total = sum(self.operations[i].duration for i in own)
        return float(self.heads[own].min() + total + self.tails[own].min())

    def makespan(self, orders: Sequence[Sequence[int]]) -> float:
        """Return the makespan of an order per device; `inf` if it deadlocks or lacks memory."""
        graph = self.graph.copy()
        for device, order in enumerate(orders):
            graph.add_edges_from(pairwise(order))
            held = 0.0
            for i in order:
                taken = self.operations[i].memory_bytes
                held += taken
                if taken > 0 and held > self.capacity_bytes[device] * (1 + MEMORY_SLACK):
                    return math.inf
        if not nx.is_directed_acyclic_graph(graph):
            return math.inf
        duration = np.array([o.duration for o in self.operations])
        return float((_longest(graph, duration.tolist()) + duration).max(initial=0.0))


def _longest(graph: nx.DiGraph[int], duration: Sequence[float]) -> Floats:
    """Return the longest path to the begin of each node, that is, without its own duration."""
    begin = np.zeros(len(duration))
    for i in nx.topological_sort(graph):
        for j in graph.successors(i):
            begin[j] = max(begin[j], begin[i] + duration[i])
    return begin


@dataclass(frozen=True, eq=False)
class ScheduleModel:
    """The program, and how its variables are read.

    Parameters
    ----------
    shop
        What is scheduled.
    model
        With `s[i]` and `y[i, j]` for the pairs i < j on one device whose order is open.
    """

    shop: Shop
    model: pyo.ConcreteModel

    def orders(self, begin: Sequence[float]) -> list[list[int]]:
        """Return the operations of each device by their begins; ties by what waits for what."""
        place = {i: p for p, i in enumerate(nx.topological_sort(self.shop.graph))}
        orders: list[list[int]] = [[] for _ in self.shop.capacity_bytes]
        for i in sorted(place, key=lambda i: (round(begin[i], 6), place[i])):
            orders[self.shop.operations[i].device].append(i)
        return orders

    def start(self, orders: Sequence[Sequence[int]]) -> list[tuple[pyo.Var, float]]:
        """Return the values of y that say the same as `orders`."""
        place = {i: p for order in orders for p, i in enumerate(order)}
        return [(var, float(place[i] < place[j])) for (i, j), var in self.model.y.items()]


def schedule_model(shop: Shop, horizon: float) -> ScheduleModel:
    """State the program for makespans up to `horizon`."""
    operations = shop.operations
    reach = {i: nx.descendants(shop.graph, i) for i in range(len(operations))}
    pairs = [
        (i, j)
        for mine in shop.own
        for k, i in enumerate(mine)
        for j in mine[k + 1 :]
        if j not in reach[i] and i not in reach[j]
    ]
    model = pyo.ConcreteModel()
    model.C = pyo.Var(bounds=(0, horizon))
    model.objective = pyo.Objective(expr=model.C)
    model.s = pyo.Var(
        range(len(operations)),
        bounds=lambda _, i: (
            float(shop.heads[i]),
            max(float(shop.heads[i]), horizon - operations[i].duration - float(shop.tails[i])),
        ),
    )
    model.y = pyo.Var(pairs, domain=pyo.Binary)

    def comes_before(i: int, j: int) -> float:
        """1 if i comes before j: known, or an expression in y, which does as a number here."""
        if j in reach[i] or i in reach[j]:
            return float(j in reach[i])
        return model.y[i, j] if (i, j) in model.y else 1 - model.y[j, i]  # type: ignore[no-any-return]

    @model.Constraint(range(len(operations)))  # type: ignore[untyped-decorator]
    def ends(model: pyo.ConcreteModel, i: int) -> object:
        return model.s[i] + operations[i].duration + float(shop.tails[i]) <= model.C

    @model.Constraint(range(len(shop.own)))  # type: ignore[untyped-decorator]
    def work(model: pyo.ConcreteModel, d: int) -> object:
        return shop.work(d) <= model.C

    @model.Constraint(sorted(set(shop.before)))  # type: ignore[untyped-decorator]
    def waits(model: pyo.ConcreteModel, i: int, j: int) -> object:
        return model.s[j] >= model.s[i] + operations[i].duration

    @model.Constraint([*pairs, *((j, i) for i, j in pairs)])  # type: ignore[untyped-decorator]
    def one_at_a_time(model: pyo.ConcreteModel, i: int, j: int) -> object:
        enough = max(0.0, horizon - float(shop.tails[i]) - float(shop.heads[j]))
        return model.s[j] >= model.s[i] + operations[i].duration - (1 - comes_before(i, j)) * enough

    takers = [
        i
        for i, o in enumerate(operations)
        if o.memory_bytes > 0 and math.isfinite(shop.capacity_bytes[o.device])
    ]

    @model.Constraint(takers)  # type: ignore[untyped-decorator]
    def memory(_: pyo.ConcreteModel, f: int) -> object:
        device = operations[f].device
        cap = shop.capacity_bytes[device] * (1 + MEMORY_SLACK)
        scale = cap or 1.0
        held = sum(
            operations[g].memory_bytes / scale * comes_before(g, f)
            for g in shop.own[device]
            if g != f and operations[g].memory_bytes
        )
        total = operations[f].memory_bytes / scale + held
        if isinstance(total, float):  # nothing is open
            return pyo.Constraint.Feasible if total <= cap / scale else pyo.Constraint.Infeasible
        return total <= cap / scale

    return ScheduleModel(shop, model)
