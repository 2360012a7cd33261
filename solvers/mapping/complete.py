"""Completion of partial mappings: some stages have their devices, the others get what is left."""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Ints
from .annealing.anneal_kernel import anneal
from .annealing.state import new_moves, state_of
from .annealing.violations import sampled_splits, violations
from .layouts import matched
from .parameters import COMPLETE_COLD, COMPLETE_HOT
from .search import MappingSearch


def completed_slots(mapping: MappingSearch, rows: dict[int, Ints]) -> Ints:
    """Return slots, (S, R), with the given rows of stages; others take free devices by block."""
    costs = mapping.costs
    slots = np.full((costs.stages, costs.replicas), -1)
    for s, row in rows.items():
        slots[s] = row
    left = np.setdiff1d(np.arange(costs.size), slots)
    left = left[np.argsort(mapping.block[left], kind="stable")]
    others = [s for s in range(costs.stages) if s not in rows]
    slots[others] = left[: len(others) * costs.replicas].reshape(len(others), costs.replicas)
    return slots


def repair_and_offer(
    mapping: MappingSearch, slots: Ints, threshold: float, steps: int, attempt: int
) -> None:
    """Repair a mapping by annealing at a threshold, and offer the result."""
    costs = mapping.costs
    state = state_of(costs, slots, matched(costs, slots))
    upper_bounds = sampled_splits(costs, mapping.lower_bounds, threshold)
    cost = violations(costs, mapping.order, mapping.block, upper_bounds, threshold)
    seed = (mapping.search.limits.seed * 7919 + attempt) % 2**31
    anneal(cost, state, new_moves(state), steps, seed, COMPLETE_HOT, COMPLETE_COLD)
    slots = state.slots()
    mapping.offer(slots, matched(costs, slots))
