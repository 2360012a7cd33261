"""Descents from the incumbent, in turn with annealing, where not rings alone count."""

from __future__ import annotations

from ....instances import ReplicaPlacement
from ...core.search import OPTIMAL_GAP
from ..hunt import Hunt
from ..layouts import matched
from .cheapest import descend
from .targets import Arm, anneal

#: Steps of one descent, and temperatures to begin with, in turn.
STEPS, HEATS = 100_000, (0.0, 0.1, 0.3, 1.0)
#: Turns of annealing between two descents.
ROUNDS = 2


def descents(hunt: Hunt, arms: list[Arm]) -> None:
    """Descend and anneal in turns until a limit."""
    search = hunt.search
    turn = 0
    while not search.should_stop() and search.gap > OPTIMAL_GAP:
        for heat in HEATS:
            with hunt.step("descent"):
                _descent(hunt, heat, turn)
            if search.should_stop() or search.gap <= OPTIMAL_GAP:
                return
            turn += 1
        if search.limits.nodes is not None and turn >= search.limits.nodes:
            search.stop_for("nodes")
            return
        with hunt.step("annealing"):
            anneal(hunt, arms, rounds=ROUNDS)


def _descent(hunt: Hunt, heat: float, turn: int) -> None:
    search, costs = hunt.search, hunt.costs
    best = search.best
    assert isinstance(best, ReplicaPlacement)
    with search.phase("descents"):
        seed = (search.limits.seed * 7919 + turn) % 2**31
        slots, _ = descend(costs, costs.numbers(best.slots), best.sends_to, STEPS, seed, hot=heat)
        hunt.offer(slots, matched(costs, slots))
