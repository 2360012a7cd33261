"""Bounds on latency in linear time: the critical path, with prices on memory, and the total work.

Let p_v be the least time of node v on an accelerator that supports it, q_v on a CPU, m_v its bytes,
and M the bytes of all accelerators together. The nodes of a path P run one after the other, in
calls or on CPUs, and those in calls fit into M. So for every price μ ≥ 0

    T ≥ Σ_{v∈P} min(q_v, p_v + μ m_v) − μ M .

The right side is concave and piecewise linear in μ, with breakpoints (q_v − p_v) / m_v. Two paths
are tried: the heaviest at μ = 0, and the heaviest on CPUs alone. Without CPUs, all n accelerators
share the work: T ≥ Σ_v p_v / n.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import Latency
from ...instances.common.arrays import Floats
from ..digraph import heaviest_path
from ..task import Task
from ..throughput.certificate import PROOF_MARGIN


def latency_cheap_bounds(task: Task[Latency]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the latency with their origins; none if some node is unsupported.

    Takes O(n + m) for n nodes and m edges, and O(L²) for paths of length L.
    """
    costs = task.costs
    there = costs.count > 0
    own = there & ~costs.host
    fast = costs.compute[own].min(axis=0, initial=np.inf)
    slow = costs.compute[there & costs.host].min(axis=0, initial=np.inf)
    best = np.minimum(fast, slow)
    if np.isinf(best).any() or not task.workload.n:
        return
    if not (there & costs.host).any():
        share = float(best.sum()) / int(costs.count.sum())
        yield share * (1 - PROOF_MARGIN), "total work over all devices"
    room = float((costs.capacity_bytes[own] * costs.count[own]).sum())
    for weight in (best, np.where(np.isinf(slow), best, slow)):
        path = heaviest_path(task.workload.order, task.workload.successors, weight)
        value = _along(fast[path], slow[path], costs.memory_bytes[path], room)
        yield value, "critical path"


def _along(fast: Floats, slow: Floats, memory_bytes: Floats, room: float) -> float:
    """Return the bound along a path with the best price μ of memory."""
    prices = np.zeros(1)
    if np.isfinite(room):
        both = np.isfinite(fast) & np.isfinite(slow) & (memory_bytes > 0)
        corners = (slow - fast)[both] / memory_bytes[both]
        prices = np.unique(np.concatenate([prices, corners[corners > 0]]))
    best = -np.inf
    for price in prices.tolist():
        total = float(np.minimum(slow, fast + price * memory_bytes).sum())
        fee = price * room * (1 + PROOF_MARGIN) if price else 0.0
        best = max(best, total - fee - PROOF_MARGIN * (total + fee))
    return best
