"""Repair at targets between bound and incumbent, from several beginnings in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....formulations.mapping.costs import stage_times
from ....instances import ReplicaPlacement
from ...core.search import OPTIMAL_GAP
from ..hunt import BLOCK_WIDTH, Hunt
from ..layouts import matched, paired
from .anneal import State, best_routes, new_state, repair
from .fill import (
    Filling,
    choose,
    filled,
    hard_caps,
    learn,
    likely_caps,
    new_filling,
    take_over,
)
from .within import settle

#: Steps of the first repairs; half as many more whenever all targets were given up.
FIRST_STEPS, GROWTH = 100_000, 1.5
#: Steps of settling for each device, and of contents for each block times its contents. Other
#: contents help more than more steps.
SETTLE_STEPS, CONTENTS_STEPS = 1000, 60
#: Steps of repair that are worth one of contents, and solving for counts and devices.
CONTENTS_WORK, PROGRAM_WORK = 0.3, 4_000_000
#: Steps between two looks at the clock.
SLICE_STEPS = 200_000
#: A target lies no further above the one before than this part of the bound.
STRIDE = 0.08
#: Temperatures at which a repair begins: the first keeps a good beginning, the second forgets it;
#: and at which it ends.
COOL, HOT, COLD = 0.2, 1.0, 0.1
#: How often blocks exchange what they hold, while that is settled.
ROLES = 0.3
#: Temperatures of settling.
SETTLE_HOT, SETTLE_COLD = 0.7, 0.2


@dataclass
class Arm:
    """One of the beginnings from which targets are tried in turn.

    Parameters
    ----------
    play
        Tries the target: of the search, this arm, and a seed.
    state, heat
        The mapping under repair, and the temperature at which a repair begins.
    given_up
        The largest target that was tried in vain.
    share
        How much of the work it may have, against others.
    work
        Steps done since a turn last improved the incumbent.
    """

    play: Callable[[Hunt, Arm, int], None]
    state: State
    heat: float
    given_up: float
    target: float = 0.0
    effort: float = 1.0
    share: float = 1.0
    work: float = 0.0

    def next(self, hunt: Hunt, failed: bool) -> None:
        """Choose the next target between the bound and the incumbent."""
        low, high = hunt.bound_s, hunt.objective_s
        if failed:
            self.given_up = max(self.given_up, self.target)
        self.given_up = max(self.given_up, low)
        if self.given_up >= high - 0.1 * (high - low):  # all were given up: try harder
            self.given_up = low
            self.effort *= GROWTH
        third = (high - self.given_up) / 3
        self.target = self.given_up + (min(third, STRIDE * low) if low > 0 else third)


def first_arms(hunt: Hunt) -> list[Arm]:
    """Return the beginnings that the incumbent and the blocks allow."""
    costs, low = hunt.costs, hunt.bound_s
    incumbent = _incumbent(hunt, best_routes(costs))
    arms = [Arm(_again, incumbent, HOT, low), Arm(_polish, incumbent, COOL, low)]
    if hunt.runs is not None:
        low *= 1 + BLOCK_WIDTH
        filling = new_filling(costs, hunt.block)

        def fill(hunt: Hunt, arm: Arm, seed: int) -> None:
            _fill(hunt, arm, filling, seed)

        arms = [Arm(play, incumbent, COOL, low) for play in (_columns, _counts)] + arms
        both = bool((costs.boundary.any(axis=1) & costs.ring.any(axis=1)).any())
        arms.insert(0, Arm(fill, incumbent, COOL, low, share=4.0 if both else 1.0))
    for arm in arms:
        arm.state = incumbent.copy()
        arm.next(hunt, failed=False)
    return arms


def anneal(hunt: Hunt, arms: list[Arm], rounds: int | None = None) -> None:
    """Repair at targets between bound and incumbent until a limit; beginnings take turns.

    One that improves the incumbent goes on; the others have equal shares.

    Parameters
    ----------
    rounds
        Turns to take; default: no limit.
    """
    search = hunt.search
    turn = 0
    with search.phase("annealing"):
        while not search.should_stop() and (rounds is None or turn < rounds):
            if search.gap <= OPTIMAL_GAP:
                return
            if search.limits.nodes is not None and turn >= search.limits.nodes:
                search.stop_for("nodes")
                return
            arm = min(arms, key=lambda a: a.work / a.share)
            turn += 1
            hunt.turns += 1
            before = hunt.objective_s
            arm.play(hunt, arm, search.limits.seed * 7919 + hunt.turns * 31)
            if hunt.objective_s < before:
                arm.work = 0.0


def _again(hunt: Hunt, arm: Arm, seed: int) -> None:
    """Go on from where the last turn ended."""
    left = _repair(hunt, arm, seed)
    _offer(hunt, arm, left)
    arm.next(hunt, failed=left > 0)


def _polish(hunt: Hunt, arm: Arm, seed: int) -> None:
    """Begin with the incumbent."""
    arm.state = _incumbent(hunt, arm.state.order)
    _again(hunt, arm, seed)


def _columns(hunt: Hunt, arm: Arm, seed: int) -> None:
    """Begin with stages that blocks keep together, and others, in columns."""
    assert hunt.runs is not None
    runs = hunt.runs(hunt.costs, hunt.least, arm.target)
    if runs is not None:
        runs = hunt.runs.glued(hunt.costs, hunt.block, runs)
        slots = hunt.runs.columns(hunt.costs, hunt.block, runs)
        if slots is not None:
            arm.state = new_state(hunt.costs, slots, paired(hunt.costs, slots), arm.state.order)
    _again(hunt, arm, seed)


def _counts(hunt: Hunt, arm: Arm, seed: int) -> None:
    """Begin with a solution for counts and devices; raise the bound if there is none."""
    costs = hunt.costs
    arm.work += PROGRAM_WORK
    if hunt.test.count(costs, hunt.least, arm.target, first=False) is None:
        hunt.raise_bound(arm.target, "counts of devices per block (HiGHS)")
        arm.next(hunt, failed=True)
        return
    slots = hunt.test.slots(costs)
    if slots is not None:
        pairs = [matched(costs, slots), paired(costs, slots)]
        fits = stage_times(costs, slots, pairs[0]).max() <= arm.target
        arm.state = new_state(costs, slots, pairs[0 if fits else 1], arm.state.order)
    _again(hunt, arm, seed)


def _fill(hunt: Hunt, arm: Arm, filling: Filling, seed: int) -> None:
    """Begin with contents of blocks that are likely to fit; go down as far as they go.

    Which of equal blocks holds what is settled first, for the rare links alone.
    """
    costs, least = hunt.costs, hunt.least
    rng = np.random.default_rng(seed)
    steps = CONTENTS_STEPS * len(filling.held) * filling.held.size
    choose(filling, costs, least, arm.target, steps, rng)
    arm.work += CONTENTS_WORK * steps
    arm.state = filled(filling, costs, arm.state.order, rng)
    caps = hard_caps(filling, costs, least, arm.target)
    part = partial(settle, costs, caps, arm.state, filling.block, arm.target, roles=ROLES)
    steps = SETTLE_STEPS * costs.size // 3
    _sliced(hunt, arm, steps, (HOT, SETTLE_COLD), int(rng.integers(2**31)), part)
    take_over(filling, costs, arm.state)
    left = 0.0
    while left == 0 and hunt.search.gap > OPTIMAL_GAP and not hunt.search.should_stop():
        caps = likely_caps(filling, costs, least, arm.target)
        part = partial(settle, costs, caps, arm.state, filling.block, arm.target)
        heats = SETTLE_HOT, SETTLE_COLD
        left = _sliced(hunt, arm, SETTLE_STEPS * costs.size, heats, int(rng.integers(2**31)), part)
        _offer(hunt, arm, left)
        if left:
            learn(filling, costs, arm.state, caps)
        arm.next(hunt, failed=left > 0)


def _repair(hunt: Hunt, arm: Arm, seed: int) -> float:
    """Repair the arm's state at its target; return the violation left."""
    part = partial(repair, hunt.costs, hunt.least, arm.state, hunt.block, arm.target)
    return _sliced(hunt, arm, int(arm.effort * FIRST_STEPS), (arm.heat, COLD), seed, part)


def _sliced(
    hunt: Hunt,
    arm: Arm,
    steps: int,
    heats: tuple[float, float],
    seed: int,
    part: Callable[[int, int, float, float], float],
) -> float:
    """Anneal in slices, so that the clock is looked at; return the violation left."""
    hot, cold = heats
    slices = max(1, -(-steps // SLICE_STEPS))
    left = 1.0
    for k in range(slices):
        left = part(
            steps // slices,
            (seed + k) % 2**31,
            hot * (cold / hot) ** (k / slices),
            hot * (cold / hot) ** ((k + 1) / slices),
        )
        arm.work += steps / slices
        if left == 0 or hunt.search.should_stop():
            break
    return left


def _offer(hunt: Hunt, arm: Arm, left: float) -> None:
    slots, sends_to = arm.state.slots(hunt.costs), arm.state.sends_to[:-1].copy()
    hunt.offer(slots, matched(hunt.costs, slots) if left else sends_to)


def _incumbent(hunt: Hunt, order: np.ndarray) -> State:
    best = hunt.search.best
    assert isinstance(best, ReplicaPlacement)
    return new_state(hunt.costs, hunt.costs.numbers(best.slots), best.sends_to, order)
