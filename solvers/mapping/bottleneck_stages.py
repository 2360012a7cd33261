"""Integer programs for the bottleneck stages: bounds, and mappings completed from their solutions.

Where one or two stages reduce far more bytes than the others, or some boundaries admit few pairs,
these decide the longest stage time, as a rule. So the least threshold at which they have their
messages and rings is proved by programs (`split_branching`), while thresholds rise from the bound.
The solution there places their devices, the other stages get the remaining ones, and annealing
repairs the mapping.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import BISECTION_WIDTH, Verdict
from ...instances.common.arrays import Ints
from ..core.search import OPTIMAL_GAP
from .annealing.anneal_kernel import anneal, state_of
from .annealing.costs import sampled_splits, violations
from .layouts import matched
from .methods import ANNEALING
from .parameters import COMPLETE_COLD, COMPLETE_HOT, PROGRAMS
from .split_branching import (
    CombinedRelaxation,
    all_splits,
    branch_on_splits,
    refuted_threshold,
)
from .state import MappingState


def bottleneck_programs(mapping: MappingState) -> None:
    """Raise the bound by messages and rings of the same devices, and complete their solutions.

    Thresholds rise step by step until one is not refuted, then they are bisected: to the optimum
    where no stage has both. While another process anneals, this has no time limit of its own as
    long as thresholds are refuted. Nothing happens on too many devices.
    """
    costs, search = mapping.costs, mapping.search
    trades = (costs.boundary.any(axis=1) & costs.ring.any(axis=1)).any()
    beside = ANNEALING in search.beside
    most, least_width = PROGRAMS.max_devices_one_kind, BISECTION_WIDTH
    if trades:
        most = PROGRAMS.max_devices_beside if beside else PROGRAMS.max_devices
        least_width = PROGRAMS.width
    if costs.size > most or (trades and (costs.unlike or not mapping.rings_only)):
        return
    begun, left, high, step = search.seconds, search.seconds_left, np.inf, PROGRAMS.step
    refuted, leaves = True, all_splits(costs.stages)
    relaxation = CombinedRelaxation(search, costs, mapping.lower_bounds, mapping.block)
    with search.phase("programs"):
        while not search.should_stop() and search.gap > OPTIMAL_GAP:
            endless = refuted and beside
            given = left if endless else PROGRAMS.share * left
            low, at = mapping.bound_s, search.seconds
            width = min(mapping.objective_s, high) - low
            if at > begun + given or width <= least_width * low:
                return
            threshold = min(low * (1 + step), (low + min(high, mapping.objective_s)) / 2)
            verdict, devices = branch_on_splits(
                relaxation, leaves, threshold, PROGRAMS.test_share * left
            )
            refuted = verdict is Verdict.INFEASIBLE
            if devices:
                _repair_at_margins(mapping, devices, threshold)
            if not refuted:
                high = threshold
            elif search.seconds - at < PROGRAMS.quick_share * left:
                step *= 2
            bound = refuted_threshold(leaves)
            mapping.raise_bound(bound, "messages and rings of bottlenecks (HiGHS)")


def _repair_at_margins(mapping: MappingState, devices: dict[int, Ints], threshold: float) -> None:
    """Complete devices by stage to mappings, repaired at targets above the threshold in seconds."""
    slots = _completed_slots(mapping, devices)
    for margin in PROGRAMS.margins:
        target = threshold * (1 + margin)
        if mapping.search.should_stop() or target > mapping.objective_s:
            return
        _repair(mapping, slots, target)


def _completed_slots(mapping: MappingState, rows: dict[int, Ints]) -> Ints:
    """Return slots, shape (S, R), with given rows of stages; others take free devices by block."""
    costs = mapping.costs
    slots = np.full((costs.stages, costs.replicas), -1)
    for s, row in rows.items():
        slots[s] = row
    left = np.setdiff1d(np.arange(costs.size), slots)
    left = left[np.argsort(mapping.block[left], kind="stable")]
    others = [s for s in range(costs.stages) if s not in rows]
    slots[others] = left[: len(others) * costs.replicas].reshape(len(others), costs.replicas)
    return slots


def _repair(mapping: MappingState, slots: Ints, target: float) -> None:
    """Anneal a mapping at a target in seconds, with as many devices per block; offer the result."""
    costs = mapping.costs
    state = state_of(costs, slots, matched(costs, slots))
    upper_bounds = sampled_splits(costs, mapping.lower_bounds, target)
    cost = violations(costs, mapping.order, mapping.block, upper_bounds, target, keeps_counts=True)
    seed = mapping.search.limits.seed * 7919 % 2**31
    anneal(cost, state, PROGRAMS.repair_steps, seed, COMPLETE_HOT, COMPLETE_COLD)
    slots = state.slots()
    mapping.offer(slots, matched(costs, slots))
