"""Annealing at target stage times between bound and incumbent, from several starts in turn.

A target is reached when no message exceeds its bound in some split of each stage's slack. Starts
are block counts that are likely to reach the target, the incumbent, and the last attempt. Where
all-reduces other than rings are allowed, rounds alternate with descents on the stage times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....instances import ReplicaPlacement
from ..layouts import matched
from ..parameters import (
    COUNT_MODEL_STRIDE,
    COUNT_STEPS,
    DESCENT_HEATS,
    DESCENT_STEPS,
    EXCHANGE_RATE,
    FIRST_STEPS,
    FIXED_COUNT_COLD,
    FIXED_COUNT_HOT,
    FIXED_COUNT_STEPS,
    REPAIR_COLD,
    REPAIR_COOL,
    REPAIR_HOT,
    ROUNDS_BETWEEN_DESCENTS,
    STEPS_GROWTH,
    TARGET_STRIDE,
)
from ..state import MappingState
from .anneal_kernel import State, anneal, state_of
from .costs import descend, sampled_splits, violation_left, violations
from .count_model import (
    CountModel,
    choose_counts,
    new_count_model,
    rare_upper_bounds,
    sample_placement,
    set_counts,
    update_weights,
)
from .violations_kernel import Violations


@dataclass
class StartStrategy:
    """Way to start the annealing at a target; strategies take turns by weighted round-robin."""

    # function of the mapping, this strategy and a seed that tries the target once
    run: Callable[[MappingState, StartStrategy, int], None]
    state: State  # placement under repair
    temperature: float  # temperature at which its repair begins
    failed_target: float  # the largest target tried without success, in seconds; at least the bound
    target: float = 0.0  # stage time to be reached, in seconds
    # factor on the steps of a repair; it grows whenever all targets have failed
    effort: float = 1.0
    weight: float = 1.0  # round-robin weight: share of the work, relative to the other strategies
    work: float = 0.0  # steps since the strategy last improved the incumbent

    def next(self, mapping: MappingState, failed: bool) -> None:
        """Choose the next target between the bound and the incumbent."""
        low, high = mapping.bound_s, mapping.objective_s
        if failed:
            self.failed_target = max(self.failed_target, self.target)
        self.failed_target = max(self.failed_target, low)
        if self.failed_target >= high - 0.1 * (high - low):  # all failed: try harder
            self.failed_target = low
            self.effort *= STEPS_GROWTH
        third = (high - self.failed_target) / 3
        stride = min(third, TARGET_STRIDE * low) if low > 0 else third
        self.target = self.failed_target + stride


def start_strategies(mapping: MappingState) -> list[StartStrategy]:
    """Return the start strategies: last attempt, incumbent, block counts where there are blocks."""
    costs, low = mapping.costs, mapping.bound_s
    incumbent = _incumbent(mapping)
    starts = [
        StartStrategy(_continue, incumbent, REPAIR_HOT, low),
        StartStrategy(_from_incumbent, incumbent, REPAIR_COOL, low),
    ]
    # counts know neither memory nor speed
    if mapping.segments is not None and costs.fits.all() and not costs.unlike:
        low *= 1 + COUNT_MODEL_STRIDE
        model = new_count_model(costs, mapping.block)

        def from_count_model(mapping: MappingState, start: StartStrategy, seed: int) -> None:
            _from_count_model(mapping, start, model, seed)

        both = bool((costs.boundary.any(axis=1) & costs.ring.any(axis=1)).any())
        starts.insert(
            0,
            StartStrategy(
                from_count_model, incumbent, REPAIR_COOL, low, weight=4.0 if both else 1.0
            ),
        )
    for start in starts:
        start.state = incumbent.copy()
        start.next(mapping, failed=False)
    return starts


def anneal_targets(
    mapping: MappingState, starts: list[StartStrategy], rounds: int | None = None
) -> None:
    """Anneal at targets until a limit, or for so many rounds; one strategy runs in each.

    It is the one with the least work per weight; improving the incumbent resets its work to 0, so
    that it runs again.
    """
    search = mapping.search
    turn = 0
    if mapping.costs.unlike:  # a target leaves each device of a stage another slack
        return
    with search.phase("annealing"):
        while not search.is_over() and (rounds is None or turn < rounds):
            if search.out_of_nodes(turn):
                return
            start = min(starts, key=lambda a: a.work / a.weight)
            turn += 1
            mapping.turns += 1
            before = mapping.objective_s
            start.run(mapping, start, search.limits.seed * 7919 + mapping.turns * 31)
            if mapping.objective_s < before:
                start.work = 0.0


def _continue(mapping: MappingState, start: StartStrategy, seed: int) -> None:
    """Repair the placement of the last attempt."""
    left = _repair(mapping, start, seed)
    _offer(mapping, start, left)
    start.next(mapping, failed=left > 0)


def _from_incumbent(mapping: MappingState, start: StartStrategy, seed: int) -> None:
    """Repair the incumbent."""
    start.state = _incumbent(mapping)
    _continue(mapping, start, seed)


def _from_count_model(
    mapping: MappingState, start: StartStrategy, model: CountModel, seed: int
) -> None:
    """Choose block counts, draw a placement, and anneal with fixed counts, at ever lower targets.

    At first blocks of equal size exchange all devices, with bounds on rare routes alone.
    """
    costs, least = mapping.costs, mapping.lower_bounds
    rng = np.random.default_rng(seed)
    # at most some seconds: 512 devices have 2 million, 4096 in blocks of 8 would have 270 million
    steps = min(COUNT_STEPS * len(model.counts) * model.counts.size, 10_000_000)
    choose_counts(model, costs, least, start.target, steps, rng)
    start.work += 0.3 * steps  # measured: one takes a third of a step of repair
    start.state = sample_placement(model, costs, rng)
    cost = violations(
        costs,
        mapping.order,
        model.block,
        rare_upper_bounds(model, costs, least, start.target),
        start.target,
        keeps_counts=True,
        exchange_rate=EXCHANGE_RATE,
    )
    steps = FIXED_COUNT_STEPS * costs.size // 3
    _sliced(mapping, start, cost, steps, (REPAIR_HOT, FIXED_COUNT_COLD), int(rng.integers(2**31)))
    set_counts(model, costs, start.state)
    left = 0.0
    while left == 0 and not mapping.search.is_over():
        upper_bounds = sampled_splits(costs, least, start.target)
        cost = violations(
            costs, mapping.order, model.block, upper_bounds, start.target, keeps_counts=True
        )
        heats = FIXED_COUNT_HOT, FIXED_COUNT_COLD
        left = _sliced(
            mapping, start, cost, FIXED_COUNT_STEPS * costs.size, heats, int(rng.integers(2**31))
        )
        _offer(mapping, start, left)
        if left:
            update_weights(model, costs, start.state, upper_bounds)
        start.next(mapping, failed=left > 0)


def _repair(mapping: MappingState, start: StartStrategy, seed: int) -> float:
    """Repair the strategy's state at its target; return the violation left."""
    upper_bounds = sampled_splits(mapping.costs, mapping.lower_bounds, start.target)
    cost = violations(mapping.costs, mapping.order, mapping.block, upper_bounds, start.target)
    steps = int(start.effort * FIRST_STEPS)
    return _sliced(mapping, start, cost, steps, (start.temperature, REPAIR_COLD), seed)


def _sliced(
    mapping: MappingState,
    start: StartStrategy,
    cost: Violations,
    steps: int,
    heats: tuple[float, float],
    seed: int,
) -> float:
    """Anneal in slices between two looks at the clock; return the violation left."""
    hot, cold = heats
    slices = max(1, -(-steps // 200_000))  # some tenths of a second
    left = 1.0
    for k in range(slices):
        anneal(
            cost,
            start.state,
            steps // slices,
            (seed + k) % 2**31,
            hot * (cold / hot) ** (k / slices),
            hot * (cold / hot) ** ((k + 1) / slices),
        )
        left = violation_left(cost)
        start.work += steps / slices
        if left == 0 or mapping.search.should_stop():
            break
    return left


def _offer(mapping: MappingState, start: StartStrategy, left: float) -> None:
    """Offer a strategy's placement; with violations left, messages are matched anew."""
    slots, sends_to = start.state.slots(), start.state.sends_to[:-1].copy()
    mapping.offer(slots, matched(mapping.costs, slots) if left else sends_to)


def _incumbent(mapping: MappingState) -> State:
    """Return the incumbent as a state of the annealing."""
    best = mapping.search.best
    assert isinstance(best, ReplicaPlacement)
    return state_of(mapping.costs, mapping.costs.numbers(best.slots), best.sends_to)


def descents(mapping: MappingState, starts: list[StartStrategy]) -> None:
    """Alternate descents from the incumbent with rounds of annealing until a limit."""
    search = mapping.search
    turn = 0
    while not search.is_over():
        for heat in DESCENT_HEATS:
            with mapping.step("descent"):
                _descent(mapping, heat, turn)
            if search.is_over():
                return
            turn += 1
        if search.out_of_nodes(turn):
            return
        with mapping.step("annealing"):
            anneal_targets(mapping, starts, rounds=ROUNDS_BETWEEN_DESCENTS)


def _descent(mapping: MappingState, heat: float, turn: int) -> None:
    """Descend from the incumbent, at a temperature to begin with, and offer the result."""
    search, costs = mapping.search, mapping.costs
    best = search.best
    assert isinstance(best, ReplicaPlacement)
    with search.phase("descents"):
        seed = (search.limits.seed * 7919 + turn) % 2**31
        slots, _ = descend(
            costs, costs.numbers(best.slots), best.sends_to, DESCENT_STEPS, seed, hot=heat
        )
        mapping.offer(slots, matched(costs, slots))
