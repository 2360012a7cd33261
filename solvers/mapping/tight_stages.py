"""Tight stages first: the least threshold at which they have rings or messages, then the others.

Where one or two stages reduce far more than the others, or some boundaries admit few pairs, these
alone decide, as a rule. So their rings (`rings.py`) or messages (`messages.py`) are proved and
found exactly; the other stages are put on the devices left over and repaired by annealing.

Where stages have both kinds of messages, the two programs are joined (`both.py`), for the bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...formulations.mapping.bound import (
    BISECTION_WIDTH,
    LowerBounds,
    possible_values,
    threshold_bound,
)
from ...formulations.mapping.costs import MappingCosts
from ...instances import Solution
from ...instances.common.arrays import Floats, Ints
from ..core.search import OPTIMAL_GAP
from .annealing.anneal_kernel import anneal, state_of
from .annealing.costs import sampled_splits, violations
from .both import BothTest
from .layouts import matched
from .parameters import (
    ANNEALING,
    BOTH_ATTEMPTS,
    BOTH_BESIDE_DEVICES,
    BOTH_MARGINS,
    BOTH_MAX_DEVICES,
    BOTH_QUICK,
    BOTH_REPAIR_STEPS,
    BOTH_SHARE,
    BOTH_STEP,
    BOTH_TEST_SHARE,
    BOTH_WIDTH,
    COMPLETE_COLD,
    COMPLETE_HOT,
    MESSAGE_ATTEMPTS,
    MESSAGE_COMPLETE_MARGIN,
    MESSAGE_MAX_DEVICES,
    MESSAGE_PAIRS,
    MESSAGE_PROGRAM_SECONDS,
    MESSAGE_PROGRAM_SHARE,
    MESSAGE_REPAIR_STEPS,
    MESSAGE_SECONDS,
    MESSAGE_SHARE,
    RING_ATTEMPTS,
    RING_MAX_DEVICES,
    RING_PAIRS,
    RING_REPAIR_STEPS,
    RING_SECONDS,
    RING_SHARE,
    THRESHOLD_GROWTH,
    THRESHOLD_STEP,
)
from .search import MappingSearch
from .threshold_tests import MessageTest, RingTest

#: A test of a threshold: None where no mapping exists, something false where it is not decided.
Test = Callable[[MappingCosts, LowerBounds, float], object | None]


def rings_first(mapping: MappingSearch) -> None:
    """Raise the bound by rings, and complete the rings found to a mapping."""
    costs, search = mapping.costs, mapping.search
    if not costs.ring.any() or costs.boundary.any() or costs.size > RING_MAX_DEVICES:
        return
    for most_pairs in RING_PAIRS:
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        with search.phase("rings"):
            test = RingTest(search, mapping.block, most_pairs)
            seconds = min(RING_SECONDS, RING_SHARE * search.seconds_left)
            threshold_search(mapping, test, "rings of the tight stages (HiGHS)", seconds)
            _complete(mapping, test, RING_ATTEMPTS, RING_REPAIR_STEPS)


def messages_first(mapping: MappingSearch) -> None:
    """Raise the bound by messages, and complete those found to a mapping."""
    costs, search = mapping.costs, mapping.search
    if not costs.boundary.any() or costs.ring.any() or costs.size > MESSAGE_MAX_DEVICES:
        return
    for most_pairs, program_seconds in zip(MESSAGE_PAIRS, MESSAGE_PROGRAM_SECONDS, strict=True):
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        with search.phase("messages"):
            of_program = min(program_seconds, MESSAGE_PROGRAM_SHARE * search.seconds_left)
            test = MessageTest(search, mapping.block, most_pairs, of_program)

            def tested(
                costs: MappingCosts,
                lower_bounds: LowerBounds,
                threshold: float,
                test: MessageTest[Solution] = test,
            ) -> object | None:
                found = test(costs, lower_bounds, threshold)
                if found and threshold * (1 + MESSAGE_COMPLETE_MARGIN) < mapping.objective_s:
                    _complete(mapping, test, 1, MESSAGE_REPAIR_STEPS)
                return found

            seconds = min(MESSAGE_SECONDS, MESSAGE_SHARE * search.seconds_left)
            threshold_search(mapping, tested, "messages of the tight boundaries (HiGHS)", seconds)
            _complete(mapping, test, MESSAGE_ATTEMPTS, MESSAGE_REPAIR_STEPS)


def has_both(mapping: MappingSearch) -> bool:
    """Whether `both` is for this mapping: stages have both kinds, and devices are not too many."""
    costs = mapping.costs
    beside = ANNEALING in mapping.search.beside
    most = BOTH_BESIDE_DEVICES if beside else BOTH_MAX_DEVICES
    trades = costs.boundary.any(axis=1) & costs.ring.any(axis=1)
    return bool(trades.any()) and mapping.rings_only and costs.size <= most


def both(mapping: MappingSearch) -> None:
    """Raise the bound by messages and rings of the same devices: by steps upwards, then bisect.

    What is found at a threshold is completed to a mapping. While another process anneals, this goes
    on for as long as thresholds are refuted.
    """
    costs, search = mapping.costs, mapping.search

    def complete(devices: dict[int, Ints], threshold: float) -> None:
        slots = _completed_slots(mapping, devices)
        for attempt in range(BOTH_ATTEMPTS):
            for margin in BOTH_MARGINS:
                target = threshold * (1 + margin)
                if search.should_stop() or target > mapping.objective_s:
                    break
                _repair(mapping, slots, target, BOTH_REPAIR_STEPS, attempt, keeps_counts=True)

    begun, left, high, step = search.seconds, search.seconds_left, np.inf, BOTH_STEP
    refuted = True
    test = BothTest(search, mapping.block, BOTH_TEST_SHARE * left, complete)
    with search.phase("messages and rings"):
        while not search.should_stop() and search.gap > OPTIMAL_GAP:
            given = left if refuted and ANNEALING in search.beside else BOTH_SHARE * left
            low, at = mapping.bound_s, search.seconds
            if at > begun + given or min(mapping.objective_s, high) - low < BOTH_WIDTH * low:
                return
            threshold = min(low * (1 + step), (low + min(high, mapping.objective_s)) / 2)
            refuted = test(costs, mapping.lower_bounds, threshold) is None
            if not refuted:
                high = threshold
            elif search.seconds - at < BOTH_QUICK * left:
                step *= 2
            mapping.raise_bound(test.refuted, "messages and rings of the tight stages (HiGHS)")


def threshold_search(mapping: MappingSearch, test: Test, origin: str, seconds: float) -> None:
    """Raise the bound to the least threshold that a costly test does not refute.

    Programs are the easier the lower the threshold: steps go upwards, each longer than the one
    before. Between the last two it is bisected; where stages have messages of one kind, over the
    values that the objective can have.
    """
    search, costs, least = mapping.search, mapping.costs, mapping.lower_bounds
    until = search.seconds + seconds

    def enough() -> bool:
        return search.seconds > until or search.should_stop()

    high = _steps(mapping, test, origin, enough)
    if enough():
        return
    values = possible_values(costs, mapping.bound_s, high)
    if values is None:
        bound = threshold_bound(costs, least, high, enough, test, mapping.bound_s)
        mapping.raise_bound(bound, origin)
    elif len(values):
        _bisect(mapping, test, origin, values, enough)


def _steps(mapping: MappingSearch, test: Test, origin: str, enough: Callable[[], bool]) -> float:
    """Raise the bound step by step; return a threshold found possible, or the incumbent's."""
    step, low, refuted = THRESHOLD_STEP, mapping.bound_s, True
    while not enough():
        high = low * (1 + step)
        if high >= mapping.objective_s * (1 - BISECTION_WIDTH):
            break
        found = test(mapping.costs, mapping.lower_bounds, high)
        if found:
            return high
        refuted = refuted and found is None
        if refuted:
            mapping.raise_bound(high, origin)
        low, step = high, step * THRESHOLD_GROWTH
    return mapping.objective_s * (1 + 1e-9)


def _bisect(
    mapping: MappingSearch, test: Test, origin: str, values: Floats, enough: Callable[[], bool]
) -> None:
    """Bisect over values, of which the last is possible, or the incumbent's.

    First towards the least that is found possible, for the mapping; then towards the largest that
    is refuted.
    """
    refuted, possible = -1, len(values) - 1
    doubts: list[int] = []
    mapping.raise_bound(float(values[0]), origin)
    upwards = True
    while not enough():
        low, high = (
            (max([refuted, *doubts]), possible) if upwards else (refuted, min([possible, *doubts]))
        )
        if high - low < 2:
            if not upwards:
                return
            upwards = False
            continue
        k = (low + high) // 2
        found = test(mapping.costs, mapping.lower_bounds, float(values[k]))
        if found is None:
            refuted, doubts = k, [d for d in doubts if d > k]
            mapping.raise_bound(float(values[k + 1]), origin)
        elif found:
            possible, doubts = k, [d for d in doubts if d < k]
        else:
            doubts.append(k)


def _complete(
    mapping: MappingSearch,
    test: RingTest[Solution] | MessageTest[Solution],
    attempts: int,
    steps: int,
) -> None:
    """Offer mappings in which the tight stages have what the test found at its least threshold.

    Parameters
    ----------
    attempts
        How often, each time with other devices found by the test.
    steps
        Of the first repair; doubled with each attempt.
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


def _completed_slots(mapping: MappingSearch, rows: dict[int, Ints]) -> Ints:
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


def _repair(
    mapping: MappingSearch,
    slots: Ints,
    threshold: float,
    steps: int,
    attempt: int,
    *,
    keeps_counts: bool = False,
) -> None:
    """Repair a mapping by annealing at a threshold, and offer the result."""
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
