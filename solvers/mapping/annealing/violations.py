"""Annealing at a target: a mapping is repaired until every stage fits under it.

`violations_kernel` prices a mapping by its edges above upper bounds, `proposals_kernel` proposes
steps from such edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Floats, Ints
from ..parameters import MIN_TARGET_SECONDS, SHUFFLE_RATE, SPLITS, VIOLATION_SCALE
from . import violations_kernel as kernel
from .anneal_kernel import for_cost
from .proposals_kernel import propose
from .violations_kernel import Violations

for_cost(
    Violations,
    begin=kernel.begin,
    finished=kernel.finished,
    propose=propose,
    make=kernel.make,
    change_left=kernel.change_left,
)


def violations(
    costs: MappingCosts,
    order: NDArray[np.int32],
    block: Ints,
    upper_bounds: tuple[Floats, Floats],
    target: float,
    *,
    keeps_counts: bool = False,
    exchange_rate: float = 0.0,
) -> Violations:
    """Return what stages exceed under upper bounds of their messages, as a cost for `anneal`.

    Parameters
    ----------
    order
        As `best_routes` returns it.
    block
        Shape (D,): block of each device.
    upper_bounds
        Of messages and ring messages in each split, in seconds; shape (S, Q) both.
    target
        In seconds; scales what is above.
    keeps_counts
        Whether steps keep how many devices of each block serve each stage.
    exchange_rate
        Probability that such a step exchanges all devices of two blocks of one size: the counts
        then change places with them.
    """
    messages, rings = upper_bounds
    members = np.argsort(block, kind="stable")
    return Violations(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        order,
        messages,
        rings,
        VIOLATION_SCALE / max(target, MIN_TARGET_SECONDS),
        block,
        members,
        np.searchsorted(block[members], np.arange(int(block.max()) + 2)),
        keeps_counts,
        exchange_rate,
        SHUFFLE_RATE,
        np.zeros(messages.shape),
        np.zeros(messages.shape),
        np.zeros(costs.stages, np.bool_),
        np.zeros(costs.stages + 1, np.int64),
        np.zeros(max(16, costs.replicas + 1), np.int64),
    )


def violation_left(cost: Violations) -> float:
    """Return the sum over stages of the violation of the best split, 0 for none."""
    left = float(cost.current.min(axis=1).sum())
    return left if left >= 0.5 else 0.0


def best_routes(costs: MappingCosts) -> NDArray[np.int32]:
    """Return the other devices of each, best route first; shape (D, D−1)."""
    order = np.empty((costs.size, costs.size - 1), np.int32)
    for d in range(costs.size):
        row = np.lexsort((costs.latency[d], costs.inverse[d]))
        order[d] = row[row != d]
    return order


def sampled_splits(
    costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
) -> tuple[Floats, Floats]:
    """Return the upper bounds of messages and ring messages in each split, shape (S, SPLITS) both.

    Where a stage has both terms, its splits are quantiles of what pairs of devices cost: half of
    them of messages, half of what ring messages leave of the slack.
    """
    slack = (threshold - costs.base) * (1 + 1e-12)
    has_both = costs.boundary.any(axis=1) & costs.ring.any(axis=1)
    count = SPLITS if has_both.any() else 1
    messages, rings = np.repeat(slack[:, None], count, 1), np.repeat(slack[:, None], count, 1)
    rows = np.linspace(0, costs.size - 1, min(costs.size, 64)).astype(np.int64)
    latency, inverse = costs.latency[rows], costs.inverse[rows]
    for s in np.flatnonzero(has_both).tolist():
        low, high = float(lower_bounds.transfer[s]), float(slack[s] - lower_bounds.allreduce[s])
        (alpha, beta), (gamma, delta) = costs.boundary[s], costs.ring[s]
        sent = (alpha * latency + beta * inverse).ravel()
        left = (slack[s] - gamma * latency - delta * inverse).ravel()
        values = [v[(v > low) & (v < high)] for v in (sent, left)]
        marks = np.linspace(0, 1, count // 2)
        spread = [np.quantile(v, marks) if len(v) else np.linspace(low, high, 12) for v in values]
        messages[s] = np.sort(np.concatenate(spread))[::-1]
        messages[s, 0], messages[s, -1] = high, low
        rings[s] = slack[s] - messages[s]
    return messages, rings
