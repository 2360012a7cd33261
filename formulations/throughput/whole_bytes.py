"""Sizes of units and devices as whole numbers, for proofs that no rounding can spoil."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ...instances import Problem
from ..task import Task
from .hypergraph import Hypergraph

#: Share of a memory by which sums of sizes may pass it: rounding. The same as the verifier's.
MEMORY_SLACK = 1e-9

#: Whole numbers up to here have exact sums in floating point.
EXACT = 2**53


@dataclass(frozen=True)
class WholeBytes:
    """Sizes in a unit that makes them all whole: bytes, or a power-of-2 part of one.

    Parameters
    ----------
    units
        By unit.
    rooms
        By kind: no device of the kind holds more in a plan that the verifier accepts; None where
        memory has no limit.
    """

    units: tuple[int, ...]
    rooms: tuple[int | None, ...]


def whole_bytes(task: Task[Problem], graph: Hypergraph) -> WholeBytes:
    """Return the sizes of a task's units and devices.

    The verifier adds the sizes of nodes in floating point. Where that rounds, rooms are larger by
    what it may lose.
    """
    sizes = [Fraction(size) for size in task.costs.memory_bytes.tolist()]
    scale = max((size.denominator for size in sizes), default=1)  # powers of 2
    nodes = [int(size * scale) for size in sizes]
    loss = Fraction(0)
    if sum(nodes) // (math.gcd(*nodes) or 1) >= EXACT:
        loss = Fraction(len(nodes), EXACT // 2)
    limits = (task.costs.capacity_bytes * (1 + MEMORY_SLACK)).tolist()
    return WholeBytes(
        units=tuple(sum(nodes[v] for v in members) for members in graph.members),
        rooms=tuple(
            None if math.isinf(limit) else math.floor(Fraction(limit) * scale * (1 + loss))
            for limit in limits
        ),
    )
