"""Rings first: the least threshold at which the tight stages have rings, then the other stages.

Where one or two stages reduce far more than the others, as a rule their rings alone decide. So they
are proved and found exactly (`ring_feasibility`), and the others are put on the devices left
over and repaired by annealing.
"""

from __future__ import annotations

from ....instances import Solution
from ...core.search import OPTIMAL_GAP
from ..complete import completed_slots, repair_and_offer
from ..parameters import (
    RING_ATTEMPTS,
    RING_MAX_DEVICES,
    RING_PAIRS,
    RING_REPAIR_STEPS,
    RING_SECONDS,
    RING_SHARE,
)
from ..search import MappingSearch
from .ring_feasibility import RingTest
from .threshold_search import threshold_search

ORIGIN = "rings of the tight stages (HiGHS)"


def rings_first(mapping: MappingSearch) -> None:
    """Raise the bound by rings, and complete the rings found to a mapping.

    Only where no stage sends messages: with both terms, the tests would be relaxations of little
    use.
    """
    costs = mapping.costs
    if not costs.ring.any() or costs.boundary.any() or costs.size > RING_MAX_DEVICES:
        return
    for most_pairs in RING_PAIRS:
        if mapping.search.should_stop() or mapping.search.gap <= OPTIMAL_GAP:
            return
        with mapping.search.phase("rings"):
            test = RingTest(mapping.search, mapping.block, most_pairs)
            threshold_search(
                mapping, test, ORIGIN, min(RING_SECONDS, RING_SHARE * mapping.search.seconds_left)
            )
            _complete(mapping, test)


def _complete(mapping: MappingSearch, test: RingTest[Solution]) -> None:
    """Offer mappings that hold the rings of the test's least threshold."""
    search = mapping.search
    for k in range(RING_ATTEMPTS):
        if not test.orders or test.threshold >= mapping.objective_s:
            return
        repair_and_offer(
            mapping,
            completed_slots(mapping, test.orders),
            test.threshold,
            RING_REPAIR_STEPS << k,
            k,
        )
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        test(mapping.costs, mapping.lower_bounds, test.threshold, other=True)
