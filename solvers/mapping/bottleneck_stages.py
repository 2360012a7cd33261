"""Integer programs for the bottleneck stages: bounds, and mappings completed from their solutions.

Where one or two stages reduce far more bytes than the others, or some boundaries admit few pairs,
these decide the longest stage time, as a rule. So the least threshold at which they have their
rings, or their messages, is proved by programs (`threshold_tests`); the solution there places their
devices, the other stages get the remaining ones, and annealing repairs the mapping.

Where stages have messages and rings, the programs are combined (`split_branching`), and thresholds
rise from the bound.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import (
    BISECTION_WIDTH,
    LowerBounds,
    ThresholdTest,
    Verdict,
    possible_values,
    threshold_bound,
)
from ...formulations.mapping.costs import MappingCosts
from ...instances import Solution
from ...instances.common.arrays import Floats, Ints
from ..core.search import OPTIMAL_GAP, Clock
from .annealing.anneal_kernel import anneal, state_of
from .annealing.costs import sampled_splits, violations
from .layouts import matched
from .methods import ANNEALING
from .parameters import (
    COMBINED,
    COMPLETE_COLD,
    COMPLETE_HOT,
    MESSAGE_PROGRAMS,
    RING_PROGRAMS,
    THRESHOLD_GROWTH,
    THRESHOLD_STEP,
    ThresholdPrograms,
)
from .split_branching import (
    CombinedRelaxation,
    all_splits,
    branch_on_splits,
    refuted_threshold,
)
from .state import MappingState
from .threshold_tests import MessageTest, ProgramTest, RingTest


def ring_programs(mapping: MappingState) -> None:
    """Raise the bound by the rings of bottleneck stages, where only all-reduces count."""
    if mapping.costs.ring.any() and not mapping.costs.boundary.any():
        _solve_programs(mapping, RingTest, RING_PROGRAMS)


def message_programs(mapping: MappingState) -> None:
    """Raise the bound by the messages over bottleneck boundaries, where only messages count."""
    if mapping.costs.boundary.any() and not mapping.costs.ring.any():
        _solve_programs(mapping, MessageTest, MESSAGE_PROGRAMS)


def _solve_programs(
    mapping: MappingState, kind: type[ProgramTest[Solution]], programs: ThresholdPrograms
) -> None:
    """Search the least feasible threshold in each pass, and complete its solution to a mapping."""
    search = mapping.search
    if mapping.costs.size > programs.max_devices:
        return
    for most_pairs, seconds in programs.passes:
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        with search.phase(programs.name):
            limit = min(seconds, programs.program_share * search.seconds_left)
            test = kind(search, mapping.block, most_pairs, limit)

            def tested(
                costs: MappingCosts,
                lower_bounds: LowerBounds,
                threshold: float,
                test: ProgramTest[Solution] = test,
            ) -> Verdict:
                verdict = test(costs, lower_bounds, threshold)
                early = threshold * (1 + programs.early_margin) < mapping.objective_s
                if verdict is Verdict.FEASIBLE and early:
                    _complete(mapping, test, 1, programs.repair_steps)
                return verdict

            limit = min(programs.seconds, programs.share * search.seconds_left)
            threshold_search(mapping, tested, f"{programs.name} of bottlenecks (HiGHS)", limit)
            _complete(mapping, test, programs.attempts, programs.repair_steps)


def combined_programs_apply(mapping: MappingState) -> bool:
    """Whether stages have messages and rings, with few enough devices for `combined_programs`."""
    costs = mapping.costs
    beside = ANNEALING in mapping.search.beside
    most = COMBINED.max_devices_beside if beside else COMBINED.max_devices
    trades = costs.boundary.any(axis=1) & costs.ring.any(axis=1)
    trades &= not costs.unlike
    return bool(trades.any()) and mapping.rings_only and costs.size <= most


def combined_programs(mapping: MappingState) -> None:
    """Raise the bound by messages and rings of the same devices, and complete their solutions.

    Thresholds rise step by step until one is not refuted, then they are bisected. While another
    process anneals, this has no time limit of its own as long as thresholds are refuted.
    """
    costs, search = mapping.costs, mapping.search
    begun, left, high, step = search.seconds, search.seconds_left, np.inf, COMBINED.step
    refuted, leaves = True, all_splits(costs.stages)
    relaxation = CombinedRelaxation(search, costs, mapping.lower_bounds, mapping.block)
    with search.phase("messages and rings"):
        while not search.should_stop() and search.gap > OPTIMAL_GAP:
            endless = refuted and ANNEALING in search.beside
            given = left if endless else COMBINED.share * left
            low, at = mapping.bound_s, search.seconds
            width = min(mapping.objective_s, high) - low
            if at > begun + given or width < COMBINED.width * low:
                return
            threshold = min(low * (1 + step), (low + min(high, mapping.objective_s)) / 2)
            verdict, devices = branch_on_splits(
                relaxation, leaves, threshold, COMBINED.test_share * left
            )
            refuted = verdict is Verdict.INFEASIBLE
            if devices:
                _repair_at_margins(mapping, devices, threshold)
            if not refuted:
                high = threshold
            elif search.seconds - at < COMBINED.quick_share * left:
                step *= 2
            bound = refuted_threshold(leaves)
            mapping.raise_bound(bound, "messages and rings of bottlenecks (HiGHS)")


def _repair_at_margins(mapping: MappingState, devices: dict[int, Ints], threshold: float) -> None:
    """Complete devices by stage to mappings, repaired at targets above the threshold in seconds."""
    slots = _completed_slots(mapping, devices)
    for margin in COMBINED.margins:
        target = threshold * (1 + margin)
        if mapping.search.should_stop() or target > mapping.objective_s:
            return
        _repair(mapping, slots, target, COMBINED.repair_steps, 0, keeps_counts=True)


def threshold_search(
    mapping: MappingState, test: ThresholdTest, origin: str, seconds: float
) -> None:
    """Raise the bound to the least threshold that a test by programs does not refute.

    Programs are easier at lower thresholds, so thresholds rise from the bound in growing steps.
    Between the last two they are bisected, over the possible values of the objective if those are
    few.
    """
    search, costs, least = mapping.search, mapping.costs, mapping.lower_bounds
    clock = Clock(seconds, within=search)
    high = _steps(mapping, test, origin, clock)
    if clock.should_stop():
        return
    values = possible_values(costs, mapping.bound_s, high)
    if values is None:
        bound = threshold_bound(costs, least, high, clock.should_stop, test, mapping.bound_s)
        mapping.raise_bound(bound, origin)
    elif len(values):
        _bisect(mapping, test, origin, values, clock)


def _steps(mapping: MappingState, test: ThresholdTest, origin: str, clock: Clock) -> float:
    """Raise the bound in steps; return the first feasible threshold, or the incumbent's time."""
    step, low, refuted = THRESHOLD_STEP, mapping.bound_s, True
    while not clock.should_stop():
        high = low * (1 + step)
        if high >= mapping.objective_s * (1 - BISECTION_WIDTH):
            break
        verdict = test(mapping.costs, mapping.lower_bounds, high)
        if verdict is Verdict.FEASIBLE:
            return high
        refuted = refuted and verdict is Verdict.INFEASIBLE
        if refuted:
            mapping.raise_bound(high, origin)
        low, step = high, step * THRESHOLD_GROWTH
    return mapping.objective_s * (1 + 1e-9)


def _bisect(
    mapping: MappingState,
    test: ThresholdTest,
    origin: str,
    values: Floats,
    clock: Clock,
) -> None:
    """Bisect over ascending values, of which the last is feasible, or the incumbent's.

    First towards the least feasible value, whose solution gives a mapping; then towards the largest
    that is refuted. The two differ where tests end undecided.
    """
    refuted, feasible = -1, len(values) - 1
    undecided: list[int] = []
    mapping.raise_bound(float(values[0]), origin)
    upwards = True
    while not clock.should_stop():
        low, high = (
            (max([refuted, *undecided]), feasible)
            if upwards
            else (refuted, min([feasible, *undecided]))
        )
        if high - low < 2:
            if not upwards:
                return
            upwards = False
            continue
        k = (low + high) // 2
        verdict = test(mapping.costs, mapping.lower_bounds, float(values[k]))
        if verdict is Verdict.INFEASIBLE:
            refuted, undecided = k, [d for d in undecided if d > k]
            mapping.raise_bound(float(values[k + 1]), origin)
        elif verdict is Verdict.FEASIBLE:
            feasible, undecided = k, [d for d in undecided if d < k]
        else:
            undecided.append(k)


def _complete(
    mapping: MappingState,
    test: ProgramTest[Solution],
    attempts: int,
    steps: int,
) -> None:
    """Complete the solution of a test at its least threshold to mappings, and offer them.

    Each attempt has another solution, and twice the steps of repair of the one before.
    """
    search, costs = mapping.search, mapping.costs

    def done() -> bool:
        found = bool(test.devices) and test.threshold < mapping.objective_s
        return not found or search.should_stop() or search.gap <= OPTIMAL_GAP

    for k in range(attempts):
        if k:
            test(costs, mapping.lower_bounds, test.threshold)
        if done():
            return
        _repair(mapping, _completed_slots(mapping, test.devices), test.threshold, steps << k, k)
        if isinstance(test, MessageTest) and not done() and mapping.block.any():
            slots = test.complete(costs, mapping.lower_bounds)
            if slots is not None:
                mapping.offer(slots, matched(costs, slots))
        if done():
            return


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


def _repair(
    mapping: MappingState,
    slots: Ints,
    threshold: float,
    steps: int,
    attempt: int,
    *,
    keeps_counts: bool = False,
) -> None:
    """Anneal a mapping at a target of `threshold` seconds, and offer the result."""
    costs = mapping.costs
    state = state_of(costs, slots, matched(costs, slots))
    upper_bounds = sampled_splits(costs, mapping.lower_bounds, threshold)
    cost = violations(
        costs, mapping.order, mapping.block, upper_bounds, threshold, keeps_counts=keeps_counts
    )
    seed = (mapping.search.limits.seed * 7919 + attempt) % 2**31
    anneal(cost, state, steps, seed, COMPLETE_HOT, COMPLETE_COLD)
    slots = state.slots()
    mapping.offer(slots, matched(costs, slots))
