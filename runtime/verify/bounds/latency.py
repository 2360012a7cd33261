"""Bounds on the latency that need no evidence: work, the critical path, intervals of paths.

Let p_v be the least time of node v on an accelerator that supports it, q_v on a CPU, m_v its bytes,
M the bytes of all accelerators together.

1. Without CPUs all accelerators share the work: T ≥ Σ_v p_v / n.
2. The nodes of a path P run one after the other, and those in calls fit into M. So for μ ≥ 0

       T ≥ Σ_{v∈P} min(q_v, p_v + μ m_v) − μ M ,

   of which the heaviest path is the best; tried are some of the μ at which a minimum changes.
3. See `path_intervals`.
"""

from __future__ import annotations

import math

import numpy as np

from ....instances import Costs, Workload
from ....instances.common.arrays import Floats
from .path_intervals import path_interval_bound

#: What is taken off for rounding, as a part of the sum of all magnitudes.
ROUNDING = 1e-12

#: Values of μ that are tried.
PRICES = 256


def latency_bound(workload: Workload, costs: Costs, calls: int, target: float) -> float:
    """Return a bound on the latency: the best, or one of them that is the target."""
    there = costs.count > 0
    own = there & ~costs.host
    fast = costs.compute[own].min(axis=0, initial=np.inf)
    slow = costs.compute[there & costs.host].min(axis=0, initial=np.inf)
    least = np.minimum(fast, slow)
    if not workload.n or np.isinf(least).any():
        return 0.0
    best = 0.0
    if not (there & costs.host).any():
        work = math.fsum(least.tolist()) / int(costs.count.sum())
        best = work * (1 - ROUNDING)
    best = max(best, _critical_path(workload, costs, fast, slow))
    if best < target:
        best = max(best, path_interval_bound(workload, costs, calls, target))
    return best


def _critical_path(workload: Workload, costs: Costs, fast: Floats, slow: Floats) -> float:
    own = (costs.count > 0) & ~costs.host
    room = float((costs.capacity_bytes[own] * costs.count[own]).sum())
    memory = costs.memory_bytes
    prices = np.zeros(1)
    both = np.isfinite(fast) & np.isfinite(slow) & (memory > 0) & (slow > fast)
    if math.isfinite(room) and both.any():
        corners = np.unique((slow - fast)[both] / memory[both])
        some = np.linspace(0, len(corners) - 1, min(len(corners), PRICES)).astype(np.int64)
        prices = np.append(prices, corners[np.unique(some)])
    until = np.zeros((workload.n, len(prices)))
    for v in workload.order:
        for u in workload.predecessors[v]:
            np.maximum(until[v], until[u], out=until[v])
        until[v] += np.minimum(slow[v], fast[v] + prices * memory[v])
    fee = prices * (room if math.isfinite(room) else 0.0)
    longest = until.max(axis=0)
    return float((longest - fee - ROUNDING * (longest + fee)).max())
