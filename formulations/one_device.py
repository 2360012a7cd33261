"""What one device can take by T: a bound on the max-load without any symmetry.

    g_k(T) = max Σ_{v∈S} π_v   over sets S of units that a device of kind k holds with load ≤ T

In a placement of max-load T every device holds such a set and every unit is held once, so

    Σ_k n_k g_k(T) < Σ_v π_v   proves that T is impossible,

whatever the prices π. Here π is the time on the first kind of accelerator. Contiguity is dropped;
GPipe's objective, max FW + max BW, is at least max (FW + BW), which is taken instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from ..instances.arrays import Floats
from .compact import MEMORY_SCALE, MEMORY_SLACK
from .hypergraph import Hypergraph
from .task import Task


def prices(task: Task, graph: Hypergraph) -> Floats:
    """Return π, shape (U,): the time on the first kind that supports the unit, accelerators first.

    0 where no kind does.
    """
    costs = task.costs
    kinds = sorted(np.flatnonzero(costs.count > 0), key=lambda k: (bool(costs.host[k]), k))
    time = graph.compute.sum(axis=1)[kinds]
    finite = np.isfinite(time)
    chosen: Floats = time[finite.argmax(axis=0), np.arange(graph.size)]
    return np.where(finite.any(axis=0), chosen, 0.0)


@dataclass(frozen=True, eq=False)
class OneDevice:
    """The program; its objective times `scale` is g_k(T)."""

    model: pyo.ConcreteModel
    scale: float


def one_device(
    task: Task, graph: Hypergraph, kind: int, limit: float, price: Floats
) -> OneDevice:
    """State the program of g_k(T).

    U + 2E columns and two rows per pin, for U units and E nets.

    Parameters
    ----------
    kind
        k.
    limit
        T, above 0; times are scaled to make it 1000.
    price
        π, shape (U,), at least 0.
    """
    costs = task.costs
    p = graph.compute[kind].sum(axis=0) * (1000.0 / limit)
    w = graph.weight[kind].sum(axis=0) * (1000.0 / limit)
    capacity = costs.capacity_bytes[kind] * (1 + MEMORY_SLACK)
    size = graph.memory_bytes
    units = [v for v in range(graph.size) if p[v] <= 1000.0 + 1e-6 and size[v] <= capacity]
    nets = [e for e, pins in enumerate(graph.pins) if w[e] > 0 and not set(pins).isdisjoint(units)]
    held = set(units)
    scale = max(float(price.max(initial=0.0)), 1e-300) / 1000.0

    m = pyo.ConcreteModel()
    m.x = pyo.Var(units, domain=pyo.Binary)  # 1 if the device holds unit v
    m.high = pyo.Var(nets, bounds=(0, 1))  # largest x of a net's pins
    m.low = pyo.Var(nets, bounds=(0, 1))  # least x of a net's pins: the net is cut if they differ
    pins = [(e, v) for e in nets for v in graph.pins[e]]
    m.highest = pyo.Constraint(
        [(e, v) for e, v in pins if v in held], rule=lambda m, e, v: m.high[e] >= m.x[v]
    )
    m.lowest = pyo.Constraint(
        pins, rule=lambda m, e, v: m.low[e] <= (m.x[v] if v in held else 0.0)
    )
    compute = [p[v] * m.x[v] for v in units if p[v] > 0]
    transfer = [w[e] * (m.high[e] - m.low[e]) for e in nets]
    loads = [compute, transfer] if task.problem.overlap else [compute + transfer]
    m.in_time = pyo.Constraint(
        [i for i, terms in enumerate(loads) if terms],
        rule=lambda m, i: pyo.quicksum(loads[i]) <= 1000.0,
    )
    if size[units].sum() > capacity:
        share = size * (MEMORY_SCALE / capacity)
        m.fits = pyo.Constraint(
            expr=pyo.quicksum(share[v] * m.x[v] for v in units if share[v] > 0) <= MEMORY_SCALE
        )
    m.taken = pyo.Objective(
        expr=pyo.quicksum(price[v] / scale * m.x[v] for v in units), sense=pyo.maximize
    )
    return OneDevice(m, scale)
