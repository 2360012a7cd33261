"""Rings first: the least threshold at which the tight stages have rings, then the other stages.

Where one or two stages reduce far more than the others, as a rule their rings alone decide. So they
are proved and found exactly (`mapping_ring_test`), and the others are put on the devices left over
and repaired by annealing.
"""

from __future__ import annotations

import numpy as np

from ..formulations.mapping_bound import WIDTH, threshold_bound
from ..instances import Solution
from ..instances.arrays import Ints
from .mapping_anneal import best_routes, new_state, repair
from .mapping_hunt import Hunt
from .mapping_layouts import matched
from .mapping_ring_test import RingTest
from .search import OPTIMAL_GAP

ORIGIN = "rings of the tight stages"
#: Admitted pairs between blocks, per device, up to which a stage counts as tight: first, then.
MOST_PAIRS = 2.0, 8.0
#: Devices up to which tables of their pairs are worth it.
MOST_DEVICES = 2048
#: Seconds for the bound, at most, and part of what is left.
SECONDS, PART = 15.0, 0.3
#: First step above the bound, and its growth, until rings are possible.
STEP, GROWTH = 1e-5, 3.0
#: Attempts to complete the rings of the least threshold, each with other rings.
ATTEMPTS = 8
#: Steps of the first repair; doubled from attempt to attempt.
STEPS = 20_000
#: Temperatures at which a repair begins and ends: rings without violation shall stay.
WARM, COLDEST = 0.2, 0.1


def rings_first(hunt: Hunt) -> None:
    """Raise the bound by rings, and complete the rings found to a mapping."""
    costs = hunt.costs
    tight = costs.ring.any(axis=1) & ~(costs.detour < np.inf)
    if costs.replicas < 3 or not tight.any() or costs.size > MOST_DEVICES:
        return
    for most_pairs in MOST_PAIRS:
        if hunt.search.should_stop() or hunt.search.gap <= OPTIMAL_GAP:
            return
        with hunt.search.phase("rings"):
            test = RingTest(hunt.search, hunt.block, most_pairs)
            _raise_bound(hunt, test)
            if not costs.boundary.any():
                _complete(hunt, test)


def _raise_bound(hunt: Hunt, test: RingTest[Solution]) -> None:
    """Raise the bound to just below the least threshold with rings: upwards, then by bisection."""
    search, costs, least = hunt.search, hunt.costs, hunt.least
    until = search.seconds + min(SECONDS, PART * search.seconds_left)

    def enough() -> bool:
        return search.seconds > until or search.should_stop()

    low, step = hunt.bound_s, STEP
    while not enough():
        high = low * (1 + step)
        if high >= hunt.objective_s * (1 - WIDTH):
            high = hunt.objective_s
            break
        if test(costs, least, high) is not None:
            break
        hunt.raise_bound(high, ORIGIN)
        low, step = high, step * GROWTH
    else:
        return
    bound = threshold_bound(costs, least, high, enough, test, low)
    hunt.raise_bound(bound, ORIGIN)


def _complete(hunt: Hunt, test: RingTest[Solution]) -> None:
    """Offer mappings that hold the rings of the test's least threshold."""
    search, costs = hunt.search, hunt.costs
    order = None
    for k in range(ATTEMPTS):
        if not test.orders or search.should_stop() or search.gap <= OPTIMAL_GAP:
            return
        if test.threshold >= hunt.objective_s:
            return
        slots = _with_rings(hunt.block, test.orders, costs.stages, costs.replicas)
        order = best_routes(costs) if order is None else order
        state = new_state(costs, slots, matched(costs, slots), order)
        seed = (search.limits.seed * 7919 + k) % 2**31
        repair(
            costs, hunt.least, state, hunt.block, test.threshold, STEPS << k, seed, WARM, COLDEST
        )
        slots = state.slots(costs)
        hunt.offer(slots, matched(costs, slots))
        test(costs, hunt.least, test.threshold, other=True)


def _with_rings(block: Ints, rings: dict[int, Ints], stages: int, replicas: int) -> Ints:
    """Return slots, (S, R), with these rings; other stages take what is left, block by block."""
    slots = np.full((stages, replicas), -1)
    for s, ring in rings.items():
        slots[s] = ring
    left = np.setdiff1d(np.arange(len(block)), slots)
    left = left[np.argsort(block[left], kind="stable")]
    others = [s for s in range(stages) if s not in rings]
    slots[others] = left[: len(others) * replicas].reshape(len(others), replicas)
    return slots
