"""Threshold test by segments: whether a mapping can have stage times of at most T seconds.

At T messages of a boundary can cross between blocks only if the cheapest route across, with the
least all-reduce, fits the slack of the stage. Between boundaries that cannot be crossed lie the
*unsplittable segments*: each replica has all stages of a segment in one block. So blocks must hold
R copies of every segment, and a block of |b| devices holds at most ⌊|b|/L⌋ replicas of a stage
whose segment has L stages. If that is less than R, the stage's all-reduce crosses as well, which
may leave too little slack for crossing the segment's end; segments grow until nothing changes. On
few devices, the ring of such a stage is sought among those with at most so many replicas per block;
on more, only its cheapest link across is counted.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import LowerBounds, Verdict, least_sufficient_cost
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.kernels import has_spread_ring, least_across
from ...instances.common.arrays import Bools, Ints
from .parameters import MAX_SPREAD_DEVICES


class SegmentTest:
    """Threshold test: whether blocks can hold R copies of every unsplittable segment."""

    def __init__(self, costs: MappingCosts, block: Ints) -> None:
        self._block, self._sizes = block, np.bincount(block)
        self._known: dict[tuple[float, ...], float] = {}
        self._spread = len(block) <= MAX_SPREAD_DEVICES
        tables = costs.latency, costs.inverse, block
        self._message = least_across(*tables, costs.boundary, True)
        self._ring = least_across(*tables, costs.ring, True)
        factors = np.array([[1.0, 0.0], [0.0, 1.0]])
        self._across = least_across(*tables, factors, True)  # latency, inverse
        self._inside = least_across(*tables, factors, False)
        self._islands = bool((_numbers(costs.island) == _numbers(block)).all())

    def __call__(self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Verdict:
        """Test a threshold: segments, as first and last stage, grow until nothing changes."""
        slack = (threshold - costs.base) * (1 + 1e-12)
        can_cross = np.ones(costs.stages, np.bool_)
        while True:
            ends = np.flatnonzero(can_cross).tolist()
            segments = list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
            changed = False
            for first, last in segments:
                copies = self._sizes // (last + 1 - first)
                if copies.sum() < costs.replicas:
                    return Verdict.INFEASIBLE
                for s in range(first, last + 1):
                    reduce = self._allreduce(
                        costs, lower_bounds, s, copies, slack[s] - lower_bounds.transfer[s]
                    )
                    if lower_bounds.transfer[s] + reduce > slack[s]:
                        return Verdict.INFEASIBLE
                if last + 1 < costs.stages and self._message[last] + reduce > slack[last]:
                    can_cross[last] = False
                    changed = True
            if not changed:
                return Verdict.FEASIBLE

    def _spread_ring(self, costs: MappingCosts, s: int, copies: Ints) -> float:
        """Least longest message in seconds of a ring of stage s with at most `copies` per block."""
        key = (*costs.ring[s].tolist(), *copies.tolist())
        if key not in self._known:

            def enough(admitted: Bools) -> bool:
                return has_spread_ring(admitted, self._block, copies, costs.replicas)

            self._known[key] = least_sufficient_cost(costs.ring_costs(s), enough)
        return self._known[key]

    def _allreduce(
        self, costs: MappingCosts, lower_bounds: LowerBounds, s: int, copies: Ints, slack: float
    ) -> float:
        """Least seconds of stage s's all-reduce; block b holds at most `copies[b]` of its replicas.

        Above `slack` any value is returned that exceeds it.
        """
        r, alone = costs.replicas, float(lower_bounds.allreduce[s])
        most = int(copies.max())
        if most >= r or not costs.ring[s].any():
            return alone
        ring = float(self._ring[s])
        if self._spread and ring <= slack < float(costs.ring_costs(s).max()):
            ring = max(ring, self._spread_ring(costs, s, copies))
        if np.isinf(costs.non_ring_lower_bound[s]):
            return max(alone, ring)
        if not self._islands:
            return max(alone, min(ring, float(costs.non_ring_lower_bound[s])))
        size = float(costs.ring[s, 1]) * r / (2 * (r - 1))
        best = min(ring, 2 * (r.bit_length() - 1) * float(self._across @ (1, size)))
        for k in range(2, most + 1):
            if r % k == 0:
                inside = 2 * (k - 1) * float(self._inside @ (1, size / k))
                across = 2 * (r // k - 1) * float(self._across @ (1, size / r))
                best = min(best, inside + across)
        return max(alone, best)


def _numbers(names: Ints) -> Ints:
    """Number a partition by first member, so that equal partitions become equal."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])
