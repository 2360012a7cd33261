"""Messages first: the least threshold at which tight boundaries have their messages, then the rest.

Where some boundaries admit few pairs, as a rule they alone decide. So they are proved and found
exactly (`possible_messages`); the others follow with the same devices per block.
"""

from __future__ import annotations

from ....formulations.mapping.bound import LowerBounds
from ....formulations.mapping.costs import MappingCosts
from ....instances import Solution
from ...core.search import OPTIMAL_GAP
from ..complete import completed_slots, repair_and_offer
from ..layouts import matched
from ..search import MappingSearch
from .message_feasibility import MessageTest
from .threshold_search import threshold_search

Test = MessageTest[Solution]

ORIGIN = "messages of the tight boundaries (HiGHS)"
#: Admitted pairs between blocks, per device, up to which a boundary counts as tight: in turn.
MOST_PAIRS = 4.0, 4.0, 16.0
#: Seconds for one program, at most, in turn; and part of what is left.
PROGRAM_SECONDS, PROGRAM_PART = (3.0, 10.0, 30.0), 0.12
#: Seconds for the bound, at most, and part of what is left.
SECONDS, PART = 300.0, 0.33
#: Devices up to which tables of their pairs are worth it.
MOST_DEVICES = 1024
#: How far the incumbent has to be above a threshold for it to be completed at once.
FAR = 1e-3
#: Attempts to complete what is possible at the least threshold, each with other devices.
ATTEMPTS = 4
#: Steps of the first repair; doubled from attempt to attempt.
STEPS = 50_000


def messages_first(mapping: MappingSearch) -> None:
    """Raise the bound by messages, and complete those found to a mapping.

    Only where no stage reduces: with both terms, the tests would be relaxations of little use.
    """
    costs, search = mapping.costs, mapping.search
    if not costs.boundary.any() or costs.ring.any() or costs.size > MOST_DEVICES:
        return
    for most_pairs, seconds in zip(MOST_PAIRS, PROGRAM_SECONDS, strict=True):
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        with search.phase("messages"):
            of_program = min(seconds, PROGRAM_PART * search.seconds_left)
            test = MessageTest(search, mapping.block, most_pairs, of_program)

            def tested(
                costs: MappingCosts, lower_bounds: LowerBounds, threshold: float, test: Test = test
            ) -> object | None:
                found = test(costs, lower_bounds, threshold)
                if found and threshold * (1 + FAR) < mapping.objective_s:
                    _complete(mapping, test, 1)
                return found

            threshold_search(mapping, tested, ORIGIN, min(SECONDS, PART * search.seconds_left))
            _complete(mapping, test, ATTEMPTS)


def _complete(mapping: MappingSearch, test: Test, attempts: int) -> None:
    """Offer mappings with the messages of the test's least threshold."""
    search, costs = mapping.search, mapping.costs
    for k in range(attempts):
        if not test.members or test.threshold >= mapping.objective_s:
            return
        slots = completed_slots(mapping, test.members)
        repair_and_offer(mapping, slots, test.threshold, STEPS << k, k)
        if search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        if mapping.objective_s > test.threshold and mapping.block.any():
            completed = test.complete(costs, mapping.lower_bounds)
            if completed is not None:
                mapping.offer(completed, matched(costs, completed))
        if search.should_stop() or search.gap <= OPTIMAL_GAP or k + 1 == attempts:
            return
        test(costs, mapping.lower_bounds, test.threshold)
