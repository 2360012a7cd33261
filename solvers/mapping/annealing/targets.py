"""Annealing at targets between bound and incumbent, with several start strategies in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....instances import ReplicaPlacement
from ...core.search import OPTIMAL_GAP
from ..layouts import matched
from ..parameters import (
    BLOCK_WIDTH,
    COUNT_STEPS,
    COUNT_WORK,
    DESCENT_HEATS,
    DESCENT_STEPS,
    EXCHANGE_RATE,
    FIRST_STEPS,
    FIXED_COUNT_COLD,
    FIXED_COUNT_HOT,
    FIXED_COUNT_STEPS,
    MAX_COUNT_STEPS,
    REPAIR_COLD,
    REPAIR_COOL,
    REPAIR_HOT,
    ROUNDS_BETWEEN_DESCENTS,
    SLICE_STEPS,
    STEPS_GROWTH,
    TARGET_STRIDE,
)
from ..search import MappingSearch
from .anneal_kernel import State, state_of
from .anneal_kernel import anneal as anneal_state
from .block_counts import (
    CountModel,
    choose_counts,
    hard_upper_bounds,
    likely_upper_bounds,
    new_count_model,
    read_counts,
    realise,
    update_weights,
)
from .costs import descend, sampled_splits, violation_left, violations
from .violations_kernel import Violations


@dataclass
class StartStrategy:
    """A way to start the annealing at a target; strategies take turns.

    Parameters
    ----------
    play
        Function of the search, this strategy and a seed that tries the target once.
    state, heat
        The mapping under repair, and the temperature at which its repair begins.
    given_up
        The largest target that was tried in vain, in seconds.
    share
        Its share of the work, relative to the other strategies.
    work
        Steps since it last improved the incumbent.
    """

    run: Callable[[MappingSearch, StartStrategy, int], None]
    state: State
    heat: float
    given_up: float
    target: float = 0.0
    effort: float = 1.0
    share: float = 1.0
    work: float = 0.0

    def next(self, mapping: MappingSearch, failed: bool) -> None:
        """Choose the next target between the bound and the incumbent."""
        low, high = mapping.bound_s, mapping.objective_s
        if failed:
            self.given_up = max(self.given_up, self.target)
        self.given_up = max(self.given_up, low)
        if self.given_up >= high - 0.1 * (high - low):  # all were given up: try harder
            self.given_up = low
            self.effort *= STEPS_GROWTH
        third = (high - self.given_up) / 3
        self.target = self.given_up + (min(third, TARGET_STRIDE * low) if low > 0 else third)


def start_strategies(mapping: MappingSearch) -> list[StartStrategy]:
    """Return the start strategies that the incumbent and the blocks allow."""
    costs, low = mapping.costs, mapping.bound_s
    incumbent = _incumbent(mapping)
    starts = [
        StartStrategy(_continue, incumbent, REPAIR_HOT, low),
        StartStrategy(_from_incumbent, incumbent, REPAIR_COOL, low),
    ]
    if mapping.segments is not None:
        low *= 1 + BLOCK_WIDTH
        model = new_count_model(costs, mapping.block)

        def from_count_model(mapping: MappingSearch, start: StartStrategy, seed: int) -> None:
            _from_count_model(mapping, start, model, seed)

        both = bool((costs.boundary.any(axis=1) & costs.ring.any(axis=1)).any())
        starts.insert(
            0,
            StartStrategy(
                from_count_model, incumbent, REPAIR_COOL, low, share=4.0 if both else 1.0
            ),
        )
    for start in starts:
        start.state = incumbent.copy()
        start.next(mapping, failed=False)
    return starts


def anneal(mapping: MappingSearch, starts: list[StartStrategy], rounds: int | None = None) -> None:
    """Anneal at targets between bound and incumbent until a limit; start strategies take turns.

    The next turn goes to the strategy with the least work per share; improving the incumbent
    resets a strategy's work to 0, so that it goes on.

    Parameters
    ----------
    rounds
        Turns to take; default: no limit.
    """
    search = mapping.search
    turn = 0
    with search.phase("annealing"):
        while not search.should_stop() and (rounds is None or turn < rounds):
            if search.gap <= OPTIMAL_GAP:
                return
            if search.limits.nodes is not None and turn >= search.limits.nodes:
                search.stop_for("nodes")
                return
            start = min(starts, key=lambda a: a.work / a.share)
            turn += 1
            mapping.turns += 1
            before = mapping.objective_s
            start.run(mapping, start, search.limits.seed * 7919 + mapping.turns * 31)
            if mapping.objective_s < before:
                start.work = 0.0


def _continue(mapping: MappingSearch, start: StartStrategy, seed: int) -> None:
    """Repair on from where the last turn ended."""
    left = _repair(mapping, start, seed)
    _offer(mapping, start, left)
    start.next(mapping, failed=left > 0)


def _from_incumbent(mapping: MappingSearch, start: StartStrategy, seed: int) -> None:
    """Repair the incumbent."""
    start.state = _incumbent(mapping)
    _continue(mapping, start, seed)


def _from_count_model(
    mapping: MappingSearch, start: StartStrategy, model: CountModel, seed: int
) -> None:
    """Choose block counts, realise them, and anneal with fixed counts, at ever lower targets.

    First blocks of equal size are assigned to the counts, looking at rare links alone.
    """
    costs, least = mapping.costs, mapping.lower_bounds
    rng = np.random.default_rng(seed)
    steps = min(COUNT_STEPS * len(model.counts) * model.counts.size, MAX_COUNT_STEPS)
    choose_counts(model, costs, least, start.target, steps, rng)
    start.work += COUNT_WORK * steps
    start.state = realise(model, costs, rng)
    cost = violations(
        costs,
        mapping.order,
        model.block,
        hard_upper_bounds(model, costs, least, start.target),
        start.target,
        keeps_counts=True,
        exchange_rate=EXCHANGE_RATE,
    )
    steps = FIXED_COUNT_STEPS * costs.size // 3
    _sliced(mapping, start, cost, steps, (REPAIR_HOT, FIXED_COUNT_COLD), int(rng.integers(2**31)))
    read_counts(model, costs, start.state)
    left = 0.0
    while left == 0 and mapping.search.gap > OPTIMAL_GAP and not mapping.search.should_stop():
        upper_bounds = likely_upper_bounds(model, costs, least, start.target)
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


def _repair(mapping: MappingSearch, start: StartStrategy, seed: int) -> float:
    """Repair the strategy's state at its target; return the violation left."""
    upper_bounds = sampled_splits(mapping.costs, mapping.lower_bounds, start.target)
    cost = violations(mapping.costs, mapping.order, mapping.block, upper_bounds, start.target)
    steps = int(start.effort * FIRST_STEPS)
    return _sliced(mapping, start, cost, steps, (start.heat, REPAIR_COLD), seed)


def _sliced(
    mapping: MappingSearch,
    start: StartStrategy,
    cost: Violations,
    steps: int,
    heats: tuple[float, float],
    seed: int,
) -> float:
    """Anneal in slices, so that the clock is looked at; return the violation left."""
    hot, cold = heats
    slices = max(1, -(-steps // SLICE_STEPS))
    left = 1.0
    for k in range(slices):
        anneal_state(
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


def _offer(mapping: MappingSearch, start: StartStrategy, left: float) -> None:
    slots, sends_to = start.state.slots(), start.state.sends_to[:-1].copy()
    mapping.offer(slots, matched(mapping.costs, slots) if left else sends_to)


def _incumbent(mapping: MappingSearch) -> State:
    best = mapping.search.best
    assert isinstance(best, ReplicaPlacement)
    return state_of(mapping.costs, mapping.costs.numbers(best.slots), best.sends_to)


def descents(mapping: MappingSearch, starts: list[StartStrategy]) -> None:
    """Descend from the incumbent and anneal in turns until a limit; for all-reduces of any kind."""
    search = mapping.search
    turn = 0
    while not search.should_stop() and search.gap > OPTIMAL_GAP:
        for heat in DESCENT_HEATS:
            with mapping.step("descent"):
                _descent(mapping, heat, turn)
            if search.should_stop() or search.gap <= OPTIMAL_GAP:
                return
            turn += 1
        if search.limits.nodes is not None and turn >= search.limits.nodes:
            search.stop_for("nodes")
            return
        with mapping.step("annealing"):
            anneal(mapping, starts, rounds=ROUNDS_BETWEEN_DESCENTS)


def _descent(mapping: MappingSearch, heat: float, turn: int) -> None:
    search, costs = mapping.search, mapping.costs
    best = search.best
    assert isinstance(best, ReplicaPlacement)
    with search.phase("descents"):
        seed = (search.limits.seed * 7919 + turn) % 2**31
        slots, _ = descend(
            costs, costs.numbers(best.slots), best.sends_to, DESCENT_STEPS, seed, hot=heat
        )
        mapping.offer(slots, matched(costs, slots))
