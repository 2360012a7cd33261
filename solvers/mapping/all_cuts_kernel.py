"""Kernel of the DP over chains of ideals: one more stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Floats, Ints
from ...instances.common.kernel import kernel


class StageEnds(NamedTuple):
    """Ideals at which a stage ends, with its prices; N ideals, Q states."""

    members: NDArray[np.uint64]  # (N, words): bits of the units
    work: Floats  # (N,): seconds of the units
    held: Floats  # (N,): their bytes of parameters
    sent: Floats  # (2, N): what the boundary costs within blocks and across
    prices: Floats  # (2,): of a byte of parameters
    table: Ints  # (Q, 2, 2): as of `run_states`
    overlap: bool


@kernel
def add_stage(ends, before, after, came, low, high):
    """Extend the chains of `before` by a stage that ends at ideals `low` to `high`, in `after`.

    `before` and `after`, (N, Q), are the least maximum by state, which only falls; `came`, (N, Q,
    2), the ideal and state before.
    """
    for i in range(low, high):
        worst = 0.0
        for q in range(before.shape[1]):
            worst = max(worst, after[i, q])
        for j in range(i):
            least = ends.prices[0] * (ends.held[i] - ends.held[j]) + ends.sent[0, i]
            compute = ends.work[i] - ends.work[j]
            if (max(least, compute) if ends.overlap else least + compute) >= worst:
                continue
            if reaches(before, j, worst) and is_inside(ends.members, j, i):
                extend(ends, before, after, came, j, i)


@kernel
def reaches(before, j, worst):
    """Whether a chain to ideal j is below the worst value to be improved."""
    for q in range(before.shape[1]):
        if before[j, q] < worst:
            return True
    return False


@kernel
def is_inside(members, j, i):
    """Whether ideal j is part of ideal i."""
    for k in range(members.shape[1]):
        if members[j, k] & ~members[i, k]:
            return False
    return True


@kernel
def extend(ends, before, after, came, j, i):
    """Extend the chains to ideal j by the stage from there to ideal i, ring and boundary chosen."""
    compute, reduced = ends.work[i] - ends.work[j], ends.held[i] - ends.held[j]
    for ring in range(2):
        for boundary in range(2):
            time = ends.prices[ring] * reduced + ends.sent[boundary, i]
            time = max(time, compute) if ends.overlap else time + compute
            for q in range(before.shape[1]):
                target = ends.table[q, ring, boundary]
                value = max(time, before[j, q])
                if target >= 0 and value < after[i, target]:
                    after[i, target] = value
                    came[i, target, 0], came[i, target, 1] = j, q
