"""Set partitioning: every unit in one set, every set on one device. Program, dual, certificate.

*Program.* Let 𝒮_k(T) be the sets of units whose load on a device of kind k is at most T, that it
supports, and that fit into its memory M_k; n_k is the number of such devices.

    symbol    meaning                                                             in the model
    x_{S,k}   1 if a device of kind k holds the units S                           x[i], i-th (S, k)
    T         the max-load                                                        T

A split of max-load at most T exists if and only if there is x ∈ {0, 1} with

    Σ_k Σ_{S ∈ 𝒮_k(T): v ∈ S} x_{S,k} = 1    for all units v                               (1)
    Σ_{S ∈ 𝒮_k(T)} x_{S,k} ≤ n_k             for all kinds k                               (2)

and the least T is that of the program over the sets 𝒮_k(∞), with

    load_k(S) x_{S,k} ≤ T                     for all S and k                               (3)

*Dual.* Give the units any prices π, free in sign, and let V_k(π) = max {Σ_{v∈S} π_v: S ∈ 𝒮_k(T)},
the empty set included. In a split of max-load at most T each device of kind k holds a set of value
at most V_k(π), so that Σ_v π_v ≤ Σ_k n_k V_k(π). If instead

    Σ_v π_v > Σ_k n_k V_k(π)                                                             (*)

then no split has a max-load of at most T: *T is a bound*, and (π, T) is a certificate that anyone
can check with one optimization over the sets of one device of each kind.

*Memory and overlap.* It is enough to bound V_k from above. For any μ_k ≥ 0, V_k(π) is at most the
greatest Σ_{v∈S} (π_v − μ_k m_v) + μ_k M_k over sets of a load of at most T, whatever their memory.
Where transfers overlap compute, a load is the larger of the two, and for any ν_k ≥ 0, V_k(π) is at
most the greatest Σ_{v∈S} π_v − ν_k transfer_k(S) + ν_k T over sets of a compute time of at most T.

*GPipe.* max_d FW_d + max_d BW_d ≥ max_d (FW_d + BW_d), with overlap too, so a bound for PipeDream's
objective is one for GPipe's. *Contiguous splits* are splits, so that it is one for them too.

References
----------
G. B. Dantzig, P. Wolfe, "Decomposition principle for linear programs", Operations Research 8, 1960.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ...instances import Placement, Throughput
from ..program import Start, Value
from ..task import Task
from .hypergraph import Hypergraph
from .whole_bytes import room_of

#: A set of units, a kind of device, and the load of the set there.
Column = tuple[frozenset[int], int, float]

#: More units than this have too many sets to list.
MOST_UNITS = 14


@dataclass(frozen=True, eq=False)
class SetPartitioning:
    """The program over given sets; times are in the workload's unit."""

    task: Task[Throughput]  # task, graph, columns: what it is stated for
    graph: Hypergraph
    columns: Sequence[Column]
    model: pyo.ConcreteModel  # the Pyomo model
    scale: float = 1.0

    def read(self, value: Value) -> Placement:
        """Return the placement, given the value of each variable."""
        count = self.task.costs.count
        free = (np.cumsum(count) - count).tolist()
        device = np.zeros(self.graph.size, np.int64)
        for s, (members, kind, _) in enumerate(self.columns):
            if value(self.model.x[s]) > 0.5:
                device[list(members)] = free[kind]
                free[kind] += 1
        return Placement(self.graph.expand(device))

    def start(self, solution: Placement) -> Start:
        """Return the values of the integer variables for a placement."""
        units, kind_of = self.graph.restrict(solution.device), self.task.costs.kind_of
        held = {
            (frozenset(np.flatnonzero(units == d).tolist()), int(kind_of[d]))
            for d in np.unique(units).tolist()
        }
        taken = [float((members, kind) in held) for members, kind, _ in self.columns]
        return [(self.model.x[s], there) for s, there in enumerate(taken)]


def load_of(graph: Hypergraph, kind: int, members: frozenset[int], *, overlap: bool) -> float:
    """Return the load of a set of units on a device of a kind, by definition."""
    compute = sum(float(graph.compute[kind, :, v].sum()) for v in members)
    transfer = sum(
        float(graph.weight[kind, :, e].sum())
        for e, pins in enumerate(graph.pins)
        if 0 < len(members.intersection(pins)) < len(pins)
    )
    return max(compute, transfer) if overlap else compute + transfer


def all_columns(task: Task[Throughput], graph: Hypergraph) -> Iterator[Column]:
    """Yield every set that a device can hold, with kind and load, for small graphs.

    Takes time proportional to K · 2^U.
    """
    for kind in range(len(task.costs.count)):
        room = float(room_of(task.costs.capacity_bytes[kind]))
        for code in range(1, 1 << graph.size):
            members = frozenset(v for v in range(graph.size) if code >> v & 1)
            load = load_of(graph, kind, members, overlap=task.problem.overlap)
            if np.isfinite(load) and sum(graph.memory_bytes[v] for v in members) <= room:
                yield members, kind, load


def model(
    task: Task[Throughput], graph: Hypergraph, columns: Sequence[Column] | None = None
) -> pyo.ConcreteModel:
    """Return the set-partitioning program over all, or given, sets, for PipeDream's objective.

    It minimises the max-load; only for graphs of up to `MOST_UNITS` units or so.
    """
    columns = list(all_columns(task, graph)) if columns is None else columns
    count = task.costs.count
    m = pyo.ConcreteModel("set partitioning")
    m.x = pyo.Var(range(len(columns)), domain=pyo.Binary)
    m.T = pyo.Var(domain=pyo.NonNegativeReals)
    m.max_load = pyo.Objective(expr=m.T)

    def every_unit_in_one_set(m: pyo.ConcreteModel, v: int) -> object:
        """(1) Σ_k Σ_{S: v ∈ S} x_{S,k} = 1  for all units v."""
        held = [m.x[s] for s, (members, _, _) in enumerate(columns) if v in members]
        return pyo.quicksum(held) == 1 if held else pyo.Constraint.Infeasible

    def no_more_sets_than_devices(m: pyo.ConcreteModel, k: int) -> object:
        """(2) Σ_S x_{S,k} ≤ n_k  for all kinds k."""
        used = [m.x[s] for s, (_, kind, _) in enumerate(columns) if kind == k]
        return pyo.quicksum(used) <= int(count[k]) if used else pyo.Constraint.Skip

    def under_max_load(m: pyo.ConcreteModel, s: int) -> object:
        """(3) load_k(S) x_{S,k} ≤ T  for all S and k."""
        return columns[s][2] * m.x[s] <= m.T

    m.every_unit_in_one_set = pyo.Constraint(range(graph.size), rule=every_unit_in_one_set)
    m.no_more_sets_than_devices = pyo.Constraint(range(len(count)), rule=no_more_sets_than_devices)
    m.under_max_load = pyo.Constraint(range(len(columns)), rule=under_max_load)
    return m
