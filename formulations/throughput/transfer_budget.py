"""How much transfer time a device can have in plans of a max-load within a limit.

Let T be the limit, p_v the least time of unit v on any device, and D the number of devices. In a
plan of max-load at most T, all devices together take D T at most, and compute takes Σ_v p_v of that
at least, so that what is left for transfers is at most

    B(T) = D T − Σ_v p_v.                                                                  (1)

Every transfer that one device pays for, another one pays for too. With overlap, (1) does not
hold.
"""

from __future__ import annotations

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats
from ..task import Task
from .certificate import PROOF_MARGIN
from .hypergraph import Hypergraph


def transfer_budget(task: Task[Throughput], graph: Hypergraph, limit: float) -> float:
    """Return B(T) of (1), with a margin for rounding; `inf` where it does not hold."""
    costs = task.costs
    if task.problem.overlap or not np.isfinite(limit):
        return np.inf
    used = costs.count > 0
    least = graph.compute.sum(axis=1)[used].min(axis=0).sum()
    whole = float(costs.count.sum()) * limit
    return float(whole * (1 + PROOF_MARGIN) - least * (1 - PROOF_MARGIN))


def most_transfer(task: Task[Throughput], graph: Hypergraph, limit: float) -> Floats:
    """Return the most transfer time that a device of each kind can have; shape (K,).

    The devices at the other ends pay at least part of the same transfers.
    """
    budget, costs = transfer_budget(task, graph, limit), task.costs
    weight = graph.weight.sum(axis=1)
    most = np.full(len(costs.count), np.inf)
    for k in np.flatnonzero(costs.count):
        other = [j for j in np.flatnonzero(costs.count) if j != k or costs.count[k] > 1]
        paid = weight[k] > 0
        if other and paid.any():
            part = float((weight[other][:, paid] / weight[k, paid]).min())
            most[k] = max(0.0, budget) / (1 + part)
    return most
