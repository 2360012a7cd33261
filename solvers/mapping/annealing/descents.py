"""Descents from the incumbent in turns with annealing, where other all-reduces than rings count."""

from __future__ import annotations

from ....instances import ReplicaPlacement
from ...core.search import OPTIMAL_GAP
from ..layouts import matched
from ..parameters import DESCENT_HEATS, DESCENT_STEPS, ROUNDS_BETWEEN_DESCENTS
from ..search import MappingSearch
from .stage_times import descend
from .targets import StartStrategy, anneal


def descents(mapping: MappingSearch, starts: list[StartStrategy]) -> None:
    """Descend and anneal in turns until a limit."""
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
