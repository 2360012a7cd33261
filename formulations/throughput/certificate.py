"""Certificate of a bound by dual prices, as equation (*) of `set_partitioning` proves it.

Apart from the program, because the search needs it and not Pyomo, which takes long to import.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints
from ..task import Task
from .hypergraph import Hypergraph

#: Relative margin for rounding of sums: (*) must hold by this part of Σ |π|, and sets up to this
#: part above T are priced, too.
PROOF_MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class Prices:
    """Dual prices of units, and of memory and transfer time on the devices of each kind."""

    unit: Floats  # (U,): π
    memory: Floats  # (K,): value of the whole memory of one device, μ_k M_k
    transfer: Floats  # (K,): value of transfers as long as the target, ν_k T

    @property
    def total(self) -> float:
        """Left side of (*)."""
        return float(self.unit.sum())

    @property
    def goal(self) -> float:
        """Number below which the right side of (*) must stay, rounding of sums allowed for."""
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

    A unit's price is its first node's; `parts` is the number of parts in a price of 1 where prices
    are whole numbers of parts.
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
