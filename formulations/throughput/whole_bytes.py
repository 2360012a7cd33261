"""Sizes of units and memories as integers, for proofs without rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from ...instances import Problem
from ...instances.common.arrays import Floats
from ..task import Task
from .hypergraph import Hypergraph

#: Share of a memory by which a sum of sizes may exceed it, for rounding, and the most bytes: below
#: one, so that whole bytes count exactly. The same as the verifier's.
MEMORY_SLACK, MOST_SLACK = 1e-9, 0.5

#: Integers up to this have exact sums in floating point; beyond, single bytes are lost.
EXACT = 2**53


def room_of(memory: ArrayLike) -> Floats:
    """Return the most bytes that devices of given memories hold in plans the verifier accepts.

    Examples
    --------
    >>> room_of([3.0, 12e9, np.inf]).tolist()
    [3.000000003, 12000000000.5, inf]
    """
    have = np.asarray(memory, np.float64)
    slack = MEMORY_SLACK * have
    return np.asarray(have + np.where(have < EXACT, np.minimum(slack, MOST_SLACK), slack))


@dataclass(frozen=True)
class WholeBytes:
    """Sizes as integers in a unit that makes all of them whole: a byte, or a power of 1/2 of it."""

    units: tuple[int, ...]  # by unit
    # by kind: the most that a device of the kind holds in a plan that the verifier accepts; None if
    # its memory has no limit
    rooms: tuple[int | None, ...]


def whole_bytes(task: Task[Problem], graph: Hypergraph) -> WholeBytes:
    """Return the sizes of a task's units and devices as integers.

    The verifier adds the sizes of nodes in floating point; if that rounds, rooms are enlarged by
    the most that it can lose.
    """
    sizes = [Fraction(size) for size in task.costs.memory_bytes.tolist()]
    scale = max((size.denominator for size in sizes), default=1)  # powers of 2
    nodes = [int(size * scale) for size in sizes]
    loss = Fraction(0)
    if sum(nodes) // (math.gcd(*nodes) or 1) >= EXACT:
        loss = Fraction(len(nodes), EXACT // 2)
    limits = room_of(task.costs.capacity_bytes).tolist()
    return WholeBytes(
        units=tuple(sum(nodes[v] for v in members) for members in graph.members),
        rooms=tuple(
            None if math.isinf(limit) else math.floor(Fraction(limit) * scale * (1 + loss))
            for limit in limits
        ),
    )
