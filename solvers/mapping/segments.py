"""Unsplittable segments: stages that share a block at a threshold, as crossing costs too much.

At a threshold T messages of a boundary can cross between blocks only if the cheapest route across,
with the least all-reduce, fits the slack of the stage. Between boundaries that cannot be crossed
lie the *unsplittable segments*: each replica has all stages of a segment in one block. So blocks
must hold R copies of every segment, and a block of |b| devices holds at most ⌊|b|/L⌋ replicas of a
stage whose segment has L stages. If that is less than R, the stage's all-reduce crosses as well,
which may leave too little slack for crossing the segment's end; segments grow until nothing
changes. On few devices, the ring of such a stage is sought among those with at most so many
replicas per block; on more, only its cheapest link across is counted.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import LowerBounds, least_sufficient_cost
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.rings_kernel import has_spread_ring
from ...instances.common.arrays import Bools, Ints
from .parameters import MAX_SPREAD_DEVICES
from .segments_kernel import least_across

Segments = list[tuple[int, int]]


class SegmentTest:
    """A test for `threshold_bound`: whether blocks can hold R copies of every segment.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    """

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

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> Segments | None:
        """Return the first and last stage of each segment; None if the threshold is infeasible."""
        slack = (threshold - costs.base) * (1 + 1e-12)
        can_cross = np.ones(costs.stages, np.bool_)
        while True:
            ends = np.flatnonzero(can_cross).tolist()
            segments = list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
            changed = False
            for first, last in segments:
                copies = self._sizes // (last + 1 - first)
                if copies.sum() < costs.replicas:
                    return None
                for s in range(first, last + 1):
                    reduce = self._allreduce(
                        costs, lower_bounds, s, copies, slack[s] - lower_bounds.transfer[s]
                    )
                    if lower_bounds.transfer[s] + reduce > slack[s]:
                        return None
                if last + 1 < costs.stages and self._message[last] + reduce > slack[last]:
                    can_cross[last] = False
                    changed = True
            if not changed:
                return segments

    def _spread_ring(self, costs: MappingCosts, s: int, copies: Ints) -> float:
        """Least longest link of a ring of stage s with so many replicas per block at most."""
        key = (*costs.ring[s].tolist(), *copies.tolist())
        if key not in self._known:

            def enough(admitted: Bools) -> bool:
                return has_spread_ring(admitted, self._block, copies, costs.replicas)

            self._known[key] = least_sufficient_cost(costs.ring_costs(s), enough)
        return self._known[key]

    def _allreduce(
        self, costs: MappingCosts, lower_bounds: LowerBounds, s: int, copies: Ints, slack: float
    ) -> float:
        """Least all-reduce of stage s if block b holds at most `copies[b]` of its replicas.

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

    def pack(self, costs: MappingCosts, block: Ints, segments: Segments) -> Ints | None:
        """Return slots, (S, R), with each copy of a segment in one block; None without a packing.

        Longest segments first; each block takes copies of one segment as long as they fit.
        """
        slack = [np.flatnonzero(block == b).tolist() for b in range(len(self._sizes))]
        slots = np.zeros((costs.stages, costs.replicas), np.int64)
        for first, last in sorted(segments, key=lambda segment: segment[0] - segment[1]):
            length = last + 1 - first
            # the block that is filled best comes first, so that what is left stays in one piece
            order = sorted(range(len(slack)), key=lambda b: (len(slack[b]) % length, len(slack[b])))
            placed = 0
            for b in order:
                while len(slack[b]) >= length and placed < costs.replicas:
                    slots[first : last + 1, placed] = slack[b][:length]
                    del slack[b][:length]
                    placed += 1
            if placed < costs.replicas:
                return None
        return slots


def _numbers(names: Ints) -> Ints:
    """Number a partition by first member, so that equal partitions become equal."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])
