"""Annealing at targets between bound and incumbent, from several beginnings in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..formulations.mapping import stage_times
from ..instances import Mapped
from .mapping_anneal import State, best_routes, new_state, repair
from .mapping_fill import Filling, caps, choose, filled, learn, new_filling
from .mapping_hunt import BLOCK_WIDTH, Hunt
from .mapping_layouts import matched, paired
from .mapping_within import settle
from .search import OPTIMAL_GAP

#: Steps of the first repair of a target; doubled when all targets were given up.
FIRST_STEPS = 100_000
#: Steps that are worth solving for counts and devices.
PROGRAM_STEPS = 1_000_000
#: Steps between two looks at the clock.
SLICE_STEPS = 200_000
#: Temperatures at which a repair begins: the first two keep a good beginning, the third forgets
#: it; and at which it ends.
COOL, COLD, HOT, COLDEST = 0.2, 0.35, 1.0, 0.1


@dataclass
class Arm:
    """One of the beginnings from which targets are tried in turn.

    Parameters
    ----------
    begins
        With what each repair begins anew: ``contents``, ``counts``, ``columns``; empty: where the
        last one ended.
    state, heat
        The mapping under repair, and the temperature at which a repair begins.
    given_up
        The largest target that was tried in vain.
    """

    begins: str
    state: State
    heat: float
    given_up: float
    target: float = 0.0
    steps: int = FIRST_STEPS
    work: int = 0
    filling: Filling | None = None

    def __post_init__(self) -> None:
        self.target = self.given_up * (1 + 1e-9)

    def next(self, failed: bool, low: float, high: float) -> None:
        """Choose the next target between the bound and the incumbent."""
        if failed:
            self.given_up = max(self.given_up, self.target)
        if self.given_up >= high * (1 - 1e-4):  # all targets were given up: try harder
            self.given_up, self.steps = low, self.steps * 2
        self.target = self.given_up + (high - self.given_up) / 3


def anneal(hunt: Hunt, rounds: int | None = None) -> None:
    """Repair at targets between bound and incumbent until a limit.

    Beginnings take turns: the incumbent, cold and hot, and the counts per block.

    Parameters
    ----------
    rounds
        Repairs to try; default: no limit.
    """
    search, costs = hunt.search, hunt.costs
    best = search.best
    if not isinstance(best, Mapped) or search.should_stop():
        return
    with search.phase("annealing"):
        where = np.full(int(costs.devices.max()) + 1, -1)
        where[costs.devices] = np.arange(costs.size)
        order = best_routes(costs)
        incumbent = new_state(costs, where[best.slots], best.sends_to, order)
        low = hunt.bound_s
        arms = [Arm("", incumbent, HOT, low), Arm("", incumbent.copy(), COLD, low)]
        if hunt.runs is not None:
            low *= 1 + BLOCK_WIDTH
            arms = [Arm(k, incumbent.copy(), COOL, low) for k in ("counts", "columns")] + arms
            filling = new_filling(costs, hunt.block)
            arms.insert(0, Arm("contents", incumbent.copy(), HOT, low, filling=filling))
        turn = 0
        while not search.should_stop() and (rounds is None or turn < rounds):
            if search.gap <= OPTIMAL_GAP:
                return
            if search.limits.nodes is not None and turn >= search.limits.nodes:
                search.stop_for("nodes")
                return
            arm = min(arms, key=lambda a: a.work)
            arm.given_up = max(arm.given_up, hunt.bound_s)
            turn += 1
            arm.work += arm.steps
            if arm.filling is not None:
                _fill(hunt, arm, arm.filling, turn)
                continue
            if arm.begins == "columns":
                _begin_with_columns(hunt, arm)
            if arm.begins == "counts":
                arm.work += PROGRAM_STEPS
                if not _begin_with_counts(hunt, arm):
                    continue
            left = _repair(hunt, arm, turn)
            slots, sends_to = arm.state.slots(costs), arm.state.sends_to[:-1].copy()
            hunt.offer(slots, matched(costs, slots) if left else sends_to)
            arm.next(bool(left), hunt.bound_s, hunt.objective_s)


def _begin_with_counts(hunt: Hunt, arm: Arm) -> bool:
    """Solve counts and devices at the arm's target; False if the target is impossible."""
    costs = hunt.costs
    if hunt.test.count(costs, hunt.least, arm.target, first=False) is None:
        hunt.raise_bound(arm.target, "counts of devices per block")
        arm.next(True, hunt.bound_s, hunt.objective_s)
        return False
    slots = hunt.test.slots(costs)
    if slots is not None:
        pairs = [matched(costs, slots), paired(costs, slots)]
        fits = stage_times(costs, slots, pairs[0]).max() <= arm.target
        arm.state = new_state(costs, slots, pairs[0 if fits else 1], arm.state.order)
    return True


def _begin_with_columns(hunt: Hunt, arm: Arm) -> None:
    """Put stages that blocks keep together at the arm's target, and others, in columns."""
    assert hunt.runs is not None
    runs = hunt.runs(hunt.costs, hunt.least, arm.target)
    if runs is not None:
        runs = hunt.runs.glued(hunt.costs, hunt.block, runs)
        slots = hunt.runs.columns(hunt.costs, hunt.block, runs)
        if slots is not None:
            arm.state = new_state(hunt.costs, slots, paired(hunt.costs, slots), arm.state.order)


def _fill(hunt: Hunt, arm: Arm, filling: Filling, turn: int) -> None:
    """Choose contents for the arm's target, fill and settle them; go down as far as they go."""
    search, costs, least = hunt.search, hunt.costs, hunt.least
    rng = np.random.default_rng((search.limits.seed, turn))
    choose(filling, costs, least, arm.target, 10 * arm.steps, rng)
    arm.state = filled(filling, costs, arm.state.order, rng)
    while not search.should_stop():
        messages, rings = caps(filling, costs, least, arm.target)
        left = settle(
            costs, messages, rings, arm.state, filling.block, arm.target, 10 * arm.steps,
            int(rng.integers(2**31)), 0.7, 0.2,
        )
        slots, sends_to = arm.state.slots(costs), arm.state.sends_to[:-1].copy()
        hunt.offer(slots, matched(costs, slots) if left else sends_to)
        if left:
            learn(filling, costs, arm.state, messages, rings)
            arm.next(True, hunt.bound_s, hunt.objective_s)
            return
        arm.next(False, hunt.bound_s, hunt.objective_s)


def _repair(hunt: Hunt, arm: Arm, turn: int) -> float:
    """Anneal in slices, so that the clock is looked at; return the violation left."""
    left = 1.0
    slices = max(1, -(-arm.steps // SLICE_STEPS))
    for k in range(slices):
        seed = (hunt.search.limits.seed * 7919 + turn * 31 + k) % 2**31
        left = repair(
            hunt.costs,
            hunt.least,
            arm.state,
            hunt.block,
            arm.target,
            min(arm.steps, SLICE_STEPS),
            seed,
            arm.heat * (COLDEST / arm.heat) ** (k / slices),
            arm.heat * (COLDEST / arm.heat) ** ((k + 1) / slices),
        )
        if left == 0 or hunt.search.should_stop():
            break
    return left
