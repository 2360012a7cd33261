"""Messages first: the least threshold at which tight boundaries have their messages, then the rest.

Where some boundaries admit few pairs, as a rule they alone decide. So they are proved and found
exactly (`message_feasibility`); the others follow with the same devices per block.
"""

from __future__ import annotations

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances import Solution
from ...core.search import OPTIMAL_GAP
from ..complete import completed_slots, repair_and_offer
from ..layouts import matched
from ..parameters import (
    MESSAGE_ATTEMPTS,
    MESSAGE_COMPLETE_MARGIN,
    MESSAGE_MAX_DEVICES,
    MESSAGE_PAIRS,
    MESSAGE_PROGRAM_SECONDS,
    MESSAGE_PROGRAM_SHARE,
    MESSAGE_REPAIR_STEPS,
    MESSAGE_SECONDS,
    MESSAGE_SHARE,
)
from ..search import MappingSearch
from .message_feasibility import MessageTest
from .threshold_search import threshold_search

Test = MessageTest[Solution]

ORIGIN = "messages of the tight boundaries (HiGHS)"


def messages_first(mapping: MappingSearch) -> None:
    """Raise the bound by messages, and complete those found to a mapping.

    Only where no stage reduces: with both terms, the tests would be relaxations of little use.
    """
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
                costs: MappingCosts, lower_bounds: LowerBounds, threshold: float, test: Test = test
            ) -> object | None:
                found = test(costs, lower_bounds, threshold)
                if found and threshold * (1 + MESSAGE_COMPLETE_MARGIN) < mapping.objective_s:
                    _complete(mapping, test, 1)
                return found

            threshold_search(
                mapping, tested, ORIGIN, min(MESSAGE_SECONDS, MESSAGE_SHARE * search.seconds_left)
            )
            _complete(mapping, test, MESSAGE_ATTEMPTS)


def _complete(mapping: MappingSearch, test: Test, attempts: int) -> None:
    """Offer mappings with the messages of the test's least threshold."""
    search, costs = mapping.search, mapping.costs
    for k in range(attempts):
        if not test.members or test.threshold >= mapping.objective_s:
            return
        slots = completed_slots(mapping, test.members)
        repair_and_offer(mapping, slots, test.threshold, MESSAGE_REPAIR_STEPS << k, k)
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        if mapping.objective_s > test.threshold and mapping.block.any():
            completed = test.complete(costs, mapping.lower_bounds)
            if completed is not None:
                mapping.offer(completed, matched(costs, completed))
        if search.should_stop() or search.gap <= OPTIMAL_GAP or k + 1 == attempts:
            return
        test(costs, mapping.lower_bounds, test.threshold)
