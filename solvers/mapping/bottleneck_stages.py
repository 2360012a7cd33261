"""Integer programs for the bottleneck stages: bounds, and mappings completed from their solutions.

Where one or two stages reduce far more bytes than the others, or some boundaries admit few pairs,
these decide the longest stage time, as a rule. So the least threshold at which they have their
messages and rings is proved by programs, while thresholds rise from the bound. The solution there
places their devices, the other stages get the remaining ones, and annealing repairs the mapping.

A threshold T is tested by *branching* on the split of each stage's slack: a stage spends P seconds
on its longest message and A on its all-reduce, P + A ≤ T − base. A node of the branching gives each
stage an interval of P, and A what the lower end leaves of the slack. Its relaxation is one integer
program, by HiGHS: those of `message_program` and `ring_program` over the same devices, each kind of
messages with its own bound. If a solution has P + A > slack for some stage, the node is branched on
a value p between slack − A and P:

    every mapping has P ≤ p, or P > p and A < slack − p,

and the solution is in neither branch. T is infeasible if no leaf has a solution. P and A are costs
of pairs, which are finitely many, so the branching ends. Cuts that make rings one cycle are added
only where P + A ≤ slack: a solution that is branched away needs none.

Intervals do not depend on T, and a leaf that is refuted at T is refuted at every lower threshold.
So the leaves are kept, each with the largest threshold at which it was refuted: a threshold that
was not decided in time is resumed, a lower one looks at the open leaves alone, and a higher one
begins with all leaves.

Only boundaries and rings to which few pairs between blocks are admitted are in the program. For the
others P or A is *estimated* by the largest cost at which few pairs would be admitted. If stages of
the first completed mapping exceed the threshold, their boundaries join the program, and the
threshold is tested again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Literal

import numpy as np

from ...formulations.mapping.bound import (
    BISECTION_WIDTH,
    LowerBounds,
    Verdict,
    fitting,
    pair_upper_bounds,
)
from ...formulations.mapping.costs import MappingCosts, stage_times
from ...formulations.mapping.message_program import MessageProgram, message_program
from ...formulations.mapping.ring_program import RingProgram, cells_of, cuts, orders
from ...instances.common.arrays import Bools, Floats, Ints
from ..core.highs import run_highs
from ..core.search import Clock, S, Search
from .annealing.anneal_kernel import anneal, state_of
from .annealing.costs import descend, sampled_splits, violations
from .layouts import matched
from .methods import ANNEALING
from .parameters import FIRST_STEPS, ORDER_STEPS, PROGRAMS, REPAIR_COLD, REPAIR_COOL
from .state import MappingState


def bottleneck_programs(mapping: MappingState) -> None:
    """Raise the bound by messages and rings of the same devices, and complete their solutions.

    Thresholds rise by ever longer steps until one is not refuted, then they are bisected: to the
    optimum where no stage has both. While another process anneals, this has no time limit of its
    own as long as thresholds are refuted. Nothing happens on too many devices.
    """
    costs, search = mapping.costs, mapping.search
    trades = (costs.boundary.any(axis=1) & costs.ring.any(axis=1)).any()
    beside = ANNEALING in search.beside
    most, least_width = PROGRAMS.max_devices_one_kind, BISECTION_WIDTH
    step = PROGRAMS.step_one_kind
    if trades:
        most = PROGRAMS.max_devices_beside if beside else PROGRAMS.max_devices
        least_width, step = PROGRAMS.width, PROGRAMS.step
    if costs.size > most or (trades and (costs.unlike or not mapping.rings_only)):
        return
    begun, left, high = search.seconds, search.seconds_left, np.inf
    refuted, leaves = True, all_splits(costs.stages)
    relaxation = CombinedRelaxation(search, costs, mapping.lower_bounds, mapping.block)
    with search.phase("programs"):
        while not search.is_over():
            endless = refuted and beside
            given = left if endless else PROGRAMS.share * left
            low = mapping.bound_s
            width = min(mapping.objective_s, high) - low
            if search.seconds > begun + given or width <= least_width * low:
                return
            threshold = min(low * (1 + step), (low + min(high, mapping.objective_s)) / 2)
            seconds = min(PROGRAMS.share * left, begun + given - search.seconds)
            verdict, devices = branch_on_splits(relaxation, leaves, threshold, seconds)
            refuted = verdict is Verdict.INFEASIBLE
            if devices:
                slots = _completed_slots(mapping, devices)
                over = _offer_in_order(mapping, slots, threshold) if trades else []
                repaired = _repair_at_margins(mapping, slots, threshold)
                if over and not repaired and not relaxation.wanted:
                    relaxation.wanted.update(over)
                    continue
            if refuted:
                step *= 2
            else:
                high = threshold
            bound = refuted_threshold(leaves)
            mapping.raise_bound(bound, "messages and rings of bottlenecks (HiGHS)")


def _offer_in_order(mapping: MappingState, slots: Ints, threshold: float) -> list[int]:
    """Offer a mapping in its best orders if no stage exceeds the threshold; return those that do.

    A mapping above the threshold is left to the repair: annealing finds better ones on its own.
    """
    costs, steps = mapping.costs, ORDER_STEPS * slots.size
    seed, sends_to = mapping.search.limits.seed, matched(costs, slots)
    slots, sends_to = descend(costs, slots, sends_to, steps, seed, orders_only=True)
    over: list[int] = np.flatnonzero(stage_times(costs, slots, sends_to) > threshold).tolist()
    if not over:
        mapping.offer(slots, sends_to)
    return over


def _repair_at_margins(mapping: MappingState, slots: Ints, threshold: float) -> bool:
    """Repair a mapping at targets above the threshold in seconds; return whether one is met."""
    for margin in PROGRAMS.margins:
        target = threshold * (1 + margin)
        if mapping.search.should_stop() or target > mapping.objective_s:
            return True
        _repair(mapping, slots, target)
    return False


def _completed_slots(mapping: MappingState, rows: dict[int, Ints]) -> Ints:
    """Return slots, shape (S, R), with given rows of stages; others take free devices by block."""
    costs = mapping.costs
    slots = np.full((costs.stages, costs.replicas), -1)
    for s, row in rows.items():
        slots[s] = row
    left = np.setdiff1d(np.arange(costs.size), slots)
    left = left[np.argsort(mapping.block[left], kind="stable")]
    others = [s for s in range(costs.stages) if s not in rows]
    slots[others] = left[: len(others) * costs.replicas].reshape(len(others), costs.replicas)
    return slots


def _repair(mapping: MappingState, slots: Ints, target: float) -> None:
    """Anneal a mapping at a target in seconds, with as many devices per block; offer the result."""
    costs = mapping.costs
    state = state_of(costs, slots, matched(costs, slots))
    upper_bounds = sampled_splits(costs, mapping.lower_bounds, target)
    cost = violations(costs, mapping.order, mapping.block, upper_bounds, target, keeps_counts=True)
    seed = mapping.search.limits.seed * 7919 % 2**31
    anneal(cost, state, FIRST_STEPS, seed, REPAIR_COOL, REPAIR_COLD)
    slots = state.slots()
    mapping.offer(slots, matched(costs, slots))


@dataclass(frozen=True, eq=False)
class SplitIntervals:
    """Leaf of the branching: an interval (low, high] of each stage's P in seconds, shape (S,) both.

    No mapping with stage times of at most `refuted` seconds is in it.
    """

    low: Floats
    high: Floats
    refuted: float = 0.0


@dataclass(frozen=True, eq=False)
class CombinedSolution:
    """Solution of a leaf's program."""

    messages: Floats  # messages, rings: (S,): P and A in seconds
    rings: Floats
    is_estimated: Bools  # (2, S): whether A, and P, is an estimate
    devices: dict[int, Ints]  # devices of each stage, in ring order; empty if not all are known


def all_splits(stages: int) -> list[SplitIntervals]:
    """Return the leaves before any branching: one that holds all mappings."""
    return [SplitIntervals(np.zeros(stages), np.full(stages, np.inf))]


def refuted_threshold(leaves: list[SplitIntervals]) -> float:
    """Return the largest threshold at which all leaves are refuted, in seconds."""
    return min(leaf.refuted for leaf in leaves)


def branch_on_splits(
    relaxation: CombinedRelaxation[S],
    leaves: list[SplitIntervals],
    threshold: float,
    seconds: float,
) -> tuple[Verdict, dict[int, Ints]]:
    """Test a threshold; return the verdict, and the devices of a solution, empty without one.

    The leaves of the branching at other thresholds are updated in place.
    """
    clock = Clock(seconds, within=relaxation.search)
    slack = threshold - relaxation.costs.base
    while True:
        at = next((k for k, leaf in enumerate(leaves) if leaf.refuted < threshold), -1)
        if at < 0:
            return Verdict.INFEASIBLE, {}
        leaf = leaves[at]
        found = relaxation.solve(leaf, threshold, clock)
        if found is Verdict.UNKNOWN:
            return Verdict.UNKNOWN, {}
        if found is Verdict.INFEASIBLE:
            leaves[at] = replace(leaf, refuted=threshold)
            continue
        over = found.messages + found.rings - slack
        s = int(over.argmax())
        if over[s] <= 1e-9 * threshold:
            return Verdict.FEASIBLE, found.devices
        p = (slack[s] - found.rings[s] + found.messages[s]) / 2
        if found.is_estimated[0, s]:
            p = slack[s] - found.rings[s] * (1 - 1e-9)
        elif found.is_estimated[1, s]:
            p = found.messages[s] * (1 - 1e-9)
        low, high = leaf.low.copy(), leaf.high.copy()
        low[s] = high[s] = p
        leaves[at : at + 1] = [replace(leaf, high=high), replace(leaf, low=low)]


@dataclass(frozen=True, eq=False)
class CombinedRelaxation(Generic[S]):
    """Integer program of the messages and rings of the bottleneck stages on the same devices."""

    search: Search[S]
    costs: MappingCosts
    lower_bounds: LowerBounds
    block: Ints  # (D,): block of each device, by `find_blocks`
    # boundaries that are in the program even with twice as many admitted pairs as others may have
    wanted: set[int] = field(default_factory=set)

    @cached_property
    def _apart(self) -> Bools:
        """Mask of pairs of devices in different blocks, shape (D, D); all pairs if none are."""
        blocks = self.block
        apart: Bools = (blocks[:, None] != blocks[None, :]) | (not blocks.any())
        return apart

    def solve(
        self, leaf: SplitIntervals, threshold: float, clock: Clock
    ) -> CombinedSolution | Literal[Verdict.INFEASIBLE, Verdict.UNKNOWN]:
        """Solve the program of a leaf at a threshold."""
        costs, slack = self.costs, threshold - self.costs.base
        lower_bounds = LowerBounds(
            np.maximum(self.lower_bounds.transfer, leaf.low),
            np.maximum(self.lower_bounds.allreduce, slack - leaf.high),
        )
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        fits = None if bounds is None else fitting(costs, lower_bounds, threshold)
        if bounds is None or fits is None:
            return Verdict.INFEASIBLE
        boundaries, message_times = self._bottlenecks("boundary", bounds[0], fits)
        admitted, ring_times = self._bottlenecks("ring", bounds[1], fits)
        is_estimated = np.array([ring_times > 0, message_times > 0])
        if not boundaries and not admitted:
            return CombinedSolution(message_times, ring_times, is_estimated, {})
        rings = RingProgram(costs, self.block)
        for s, able in admitted.items():
            cell = cells_of(able, self.block, costs.replicas)
            if cell is None:
                return Verdict.INFEASIBLE
            rings.add(s, able, cell, self._capacity(boundaries, s))
            inside = (cell[:, None] == cell[None, :]) & able
            ring_times[s] = costs.ring_costs(s).max(where=inside, initial=0.0)
        messages = message_program(boundaries, fits, self.block, costs.replicas, rings)
        pair_costs = _pair_costs(costs, rings, messages, slack)
        while not clock.should_stop():
            outcome = run_highs(
                rings.rows.build(pair_costs),
                self.search,
                on_incumbent=lambda _: True,
                seconds=clock.seconds_left,
                # no heuristics: most of these programs have no solution
                options={"mip_heuristic_effort": 0.0, "mip_allow_restart": False},
            )
            x = outcome.x
            if outcome.status == "infeasible":
                return Verdict.INFEASIBLE
            if x is None:
                return Verdict.UNKNOWN
            found = CombinedSolution(
                message_times + _message_times(costs, boundaries, messages, x),
                np.maximum(ring_times, _ring_times(costs, rings, x)),
                is_estimated,
                {},
            )
            if (found.messages + found.rings - slack).max() > 1e-9 * threshold:
                return found
            violated = [cut for ring in rings.rings for cut in cuts(ring, x)]
            if not violated:
                return replace(found, devices=_devices(rings, messages, x))
            for cut in violated:
                rings.rows.row("one_piece", cut.columns, cut.factors, cut.least, np.inf)
        return Verdict.UNKNOWN

    def _capacity(self, boundaries: dict[int, Bools], s: int) -> Ints:
        """Return upper bounds on the devices of stage s in each block, shape (B,).

        Stages in a row whose messages all stay in their blocks have equally many in each.
        """
        inner = {t for t, able in boundaries.items() if not (able & self._apart).any()}
        first = last = s
        while first - 1 in inner:
            first -= 1
        while last in inner:
            last += 1
        return np.asarray(np.bincount(self.block) // (last - first + 1))

    def _bottlenecks(
        self, kind: Literal["boundary", "ring"], bounds: Floats, fits: Bools
    ) -> tuple[dict[int, Bools], Floats]:
        """Return the admitted pairs of each bottleneck, and the estimated seconds of other stages.

        Shapes (D, D) and (S,); 0 seconds for bottlenecks, and where the kind does not matter.
        """
        costs = self.costs
        found: dict[int, Bools] = {}
        estimates = np.zeros(costs.stages)
        of_boundary = kind == "boundary"
        factors = costs.boundary if of_boundary else costs.ring
        most = int(2 * PROGRAMS.pairs * costs.size)
        if not of_boundary and costs.replicas < 3:
            return found, estimates
        for s in np.flatnonzero(factors.any(axis=1) & np.isfinite(bounds)).tolist():
            pair_costs = costs.boundary_costs(s) if of_boundary else costs.ring_costs(s)
            able = (pair_costs <= bounds[s]) & fits[s][:, None]
            able &= fits[s + 1 if of_boundary else s][None, :]
            np.fill_diagonal(able, False)
            crossing = pair_costs[able & self._apart]
            if len(crossing) <= (2 * most if of_boundary and s in self.wanted else most):
                found[s] = able
            else:
                estimates[s] = np.partition(crossing, most)[most]
        return found, estimates


def _pair_costs(
    costs: MappingCosts, rings: RingProgram, messages: MessageProgram, slack: Floats
) -> Floats:
    """Return the objective: the costs of pairs of stages with both P and A, relative to the slack.

    Any solution will do, but one of cheap pairs has P + A within the slack more often, and if not,
    branching on it refutes more.
    """
    objective = np.zeros(len(rings.rows.upper))
    both = costs.boundary.any(axis=1) & costs.ring.any(axis=1) & (slack > 0)
    for s, (a, c) in messages.pairs.items():
        if both[s]:
            objective[messages.sent[s]] = costs.boundary_costs(s)[a, c] / slack[s]
    for ring in rings.rings:
        if both[ring.stage]:
            pair_costs = costs.ring_costs(ring.stage)[ring.a, ring.c]
            objective[ring.link] = pair_costs / slack[ring.stage]
    return objective


def _devices(rings: RingProgram, messages: MessageProgram, x: Floats) -> dict[int, Ints]:
    """Return the devices of each stage, in ring order; empty if the fill of a block is not met."""
    members = messages.members(x)
    if members is None:
        return {}
    found = orders(rings.rings, x, members) if rings.rings else {}
    return {} if found is None else {**members, **found}


def _ring_times(costs: MappingCosts, rings: RingProgram, x: Floats) -> Floats:
    """Return the longest ring message between cells of each stage in seconds, shape (S,)."""
    found = np.zeros(costs.stages)
    for ring in rings.rings:
        linked = x[ring.link] > 0.5
        pair_costs = costs.ring_costs(ring.stage)[ring.a[linked], ring.c[linked]]
        found[ring.stage] = pair_costs.max(initial=0.0)
    return found


def _message_times(
    costs: MappingCosts, boundaries: dict[int, Bools], messages: MessageProgram, x: Floats
) -> Floats:
    """Return the longest message of each stage in seconds, shape (S,): used or within a cell."""
    found = np.zeros(costs.stages)
    for s, able in boundaries.items():
        pair_costs, (a, c) = costs.boundary_costs(s), messages.pairs[s]
        sent = x[messages.sent[s]] > 0.5
        inside = able.copy()
        inside[a, c] = False
        found[s] = max(
            pair_costs[a[sent], c[sent]].max(initial=0.0),
            pair_costs.max(where=inside, initial=0.0),
        )
    return found
