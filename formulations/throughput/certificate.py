"""Certificates of bounds on the max-load: dual prices π and a target T, as in `set_partitioning`.

They prove T by equation (*) there. This is a module of its own because searches need it, but not
Pyomo, which takes long to import.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints
from ..task import Task
from .hypergraph import Hypergraph

#: Relative margin for rounding of sums: (*) must hold by this part of Σ |π|, and sets whose load is
#: above T by up to this part are priced, too.
PROOF_MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class Prices:
    """Dual prices of units, and of a device's memory and transfer time, by kind of device."""

    unit: Floats  # (U,): π
    memory: Floats  # (K,): value of the whole memory of one device, μ_k M_k
    transfer: Floats  # (K,): value of transfers as long as the target, ν_k T

    @property
    def total(self) -> float:
        """Left side of (*)."""
        return float(self.unit.sum())

    @property
    def goal(self) -> float:
        """Number below which the right side of (*) must stay, with a margin for rounding."""
        return self.total - PROOF_MARGIN * float(np.abs(self.unit).sum())


def certificate(
    task: Task[Throughput],
    graph: Hypergraph,
    prices: Prices,
    target: float,
    order: Ints,
    parts: int = 0,
) -> dict[str, object]:
    """Return the evidence for `target` as a `PriceCertificate`, which `check_bound` reads.

    The price of a unit is given as that of its first node. If prices are whole multiples of some
    fraction, `parts` is the number of these fractions in a price of 1.
    """
    capacity = np.where(np.isinf(task.costs.capacity_bytes), 1.0, task.costs.capacity_bytes)
    first = np.array([nodes[0] for nodes in graph.members])
    node = np.zeros(task.workload.n)
    node[first] = prices.unit
    return {
        "target": target,
        "prices": node.tolist(),
        "memory_prices": (
            prices.memory / (np.where(capacity > 0, capacity, 1.0) * (1 + PROOF_MARGIN))
        ).tolist(),
        "transfer_prices": (prices.transfer / target if target > 0 else prices.transfer).tolist(),
        "order": first[order].tolist(),
        "parts": parts,
    }
