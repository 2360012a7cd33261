"""Lower bounds on the longest stage time: conditions that every mapping of stage times ≤ T fulfils.

At a threshold T, a pair of devices is *admitted* to boundary s (ring s) if its message leaves
time for the rest of stage s. If a necessary condition fails at T, every mapping takes more:

1. A device *fits* stage s if it has admitted neighbours that fit on both boundaries and on the
   ring, all of them different, as many as its place needs. Devices that do not are taken out until
   nothing changes; whose memory is too small for the stage, or that are too slow, at once.
2. The devices that fit ring s and stay connected (after 1 each has two ring neighbours) must
   number R or more; smaller components are taken out.
3. Hall: devices can be matched to the S·R slots that they fit.
4. Each boundary has R disjoint admitted pairs.

The *slack* of a stage is T less its compute. Where it has both terms, each may take what the lower
bound of the other leaves of the slack. Stronger conditions hold where devices form blocks: see
`SegmentTest` of `solvers.mapping.state`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from ...instances import DeviceMapping
from ...instances.common.arrays import Bools, Floats
from ...instances.common.units import TIME_UNITS
from ...instances.model.stage_costs import accelerator_seconds
from ..task import Task
from ..throughput.certificate import PROOF_MARGIN
from .costs import MappingCosts
from .kernels import has_ring, matching_size, ring_core
from .memory import stage_slowdowns

#: Relative width at which a bisection ends; below the gap up to which a plan is called optimal.
BISECTION_WIDTH = 2e-7
#: Devices up to which matchings and rings are sought for each stage alone: at 4096 devices with
#: random links that would take minutes, the cheapest neighbours seconds.
MAX_MATCHED_DEVICES = 2048


@dataclass(frozen=True, eq=False)
class LowerBounds:
    """Lower bounds of each stage's transfer and all-reduce in seconds; shape (S,) both."""

    transfer: Floats
    allreduce: Floats


class Verdict(Enum):
    """Outcome of a test of a threshold T: of the search for a mapping of stage times ≤ T.

    INFEASIBLE is a proof that there is none. FEASIBLE says that the relaxation tested has a
    solution, UNKNOWN that neither was found in time.
    """

    INFEASIBLE = auto()
    UNKNOWN = auto()
    FEASIBLE = auto()


#: Test of a threshold in seconds.
ThresholdTest = Callable[[MappingCosts, LowerBounds, float], Verdict]


def stage_lower_bounds(
    costs: MappingCosts, should_stop: Callable[[], bool] = lambda: False
) -> LowerBounds:
    """Return lower bounds of both terms of each stage, from conditions on that stage alone."""
    r = costs.replicas
    transfer, allreduce = np.zeros(costs.stages), np.zeros(costs.stages)
    known: dict[tuple[str, float, float], float] = {}
    for s in range(costs.stages):
        for kind, factors, out in (
            ("boundary", costs.boundary, transfer),
            ("ring", costs.ring, allreduce),
        ):
            key = (kind, float(factors[s, 0]), float(factors[s, 1]))
            if (key[1] == 0 and key[2] == 0) or should_stop():
                continue  # 0 is a lower bound too
            if key not in known:
                pair_costs = costs.boundary_costs(s) if kind == "boundary" else costs.ring_costs(s)
                known[key] = _least(pair_costs, r, ring=kind == "ring")
            out[s] = known[key]
    return LowerBounds(transfer, np.minimum(allreduce, costs.non_ring_lower_bound))


def _least(pair_costs: Floats, replicas: int, *, ring: bool) -> float:
    """Return the least pair cost at which R disjoint pairs, or a ring of R devices, may exist.

    A pair cost is one of the values of `pair_costs`; they are searched by bisection. On many
    devices only neighbours are counted: 2R devices need one, or R devices two (one if R = 2).
    """
    if len(pair_costs) > MAX_MATCHED_DEVICES:
        devices, neighbours = (replicas, min(2, replicas - 1)) if ring else (2 * replicas, 1)
        np.fill_diagonal(pair_costs, np.inf)
        nearest = np.partition(pair_costs, neighbours - 1, axis=1)[:, neighbours - 1]
        return float(np.sort(nearest)[devices - 1])

    def enough(admitted: Bools) -> bool:
        if ring:
            return has_ring(admitted, replicas)
        return matching_size(admitted) >= 2 * replicas

    return least_sufficient_cost(pair_costs, enough)


def least_sufficient_cost(pair_costs: Floats, enough: Callable[[Bools], bool]) -> float:
    """Return the least pair cost at which the admitted pairs are enough, by bisection.

    If pairs, shape (D, D), are not `enough`, fewer must not be either.
    """
    apart = ~np.eye(len(pair_costs), dtype=np.bool_)
    least = float(pair_costs.min(where=apart, initial=np.inf))
    if enough((pair_costs <= least) & apart):  # on grids: no need to sort all pairs
        return least
    values = np.unique(pair_costs[apart])
    last = len(values) - 1  # is enough if anything is
    at = bisect_left(values, True, hi=last, key=lambda value: enough((pair_costs <= value) & apart))
    return float(values[at])


def pair_upper_bounds(
    costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
) -> tuple[Floats, Floats] | None:
    """Return the largest admitted cost of a pair on each boundary and ring; shape (S,) both.

    None if the lower bounds of both terms exceed the slack of a stage.
    """
    slack = (threshold - costs.base) * (1 + 1e-12)
    if (slack - lower_bounds.transfer - lower_bounds.allreduce).min() < -1e-12 * threshold:
        return None
    on_boundary, on_ring = slack - lower_bounds.allreduce, slack - lower_bounds.transfer
    # where another all-reduce than a ring may do, nothing is known of the ring
    on_ring[costs.non_ring_lower_bound <= on_ring] = np.inf
    return on_boundary, on_ring


def fitting(costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Bools | None:
    """Return whether each stage fits each device at a threshold, (S, D); None if it is infeasible.

    A threshold is infeasible if no mapping has stage times of at most so many seconds.
    """
    limits = pair_upper_bounds(costs, lower_bounds, threshold)
    if limits is None:
        return None
    fits = costs.fits.copy()
    if costs.unlike:
        beside = costs.base + lower_bounds.transfer + lower_bounds.allreduce
        least = np.zeros(costs.stages) if costs.overlap else beside
        fits &= least[:, None] + costs.own <= threshold * (1 + 1e-12)
    apart = ~np.eye(costs.size, dtype=np.bool_)
    sends = np.flatnonzero(costs.boundary.any(axis=1)).tolist()
    sent = {s: (costs.boundary_costs(s) <= limits[0][s]) & apart for s in sends}
    reduces = np.flatnonzero(costs.ring.any(axis=1) & (limits[1] < np.inf)).tolist()
    rings = {s: (costs.ring_costs(s) <= limits[1][s]) & apart for s in reduces}
    if not _take_out(fits, sent, rings, costs.replicas):
        return None
    if not fits.all():
        slots = np.repeat(fits, costs.replicas, axis=0)
        if matching_size(slots) < len(slots):
            return None
    for s, able in sent.items():
        able &= fits[s][:, None] & fits[s + 1]
        if able.sum() < costs.size**2 / 2 and matching_size(able) < costs.replicas:
            return None
    return fits


def _take_out(fits: Bools, sent: dict[int, Bools], rings: dict[int, Bools], replicas: int) -> bool:
    """Take devices out of `fits`, (S, D), by conditions 1 and 2; say if each stage has R left.

    `sent` and `rings` are the pairs admitted to each boundary and ring that counts, shape (D, D).
    """
    on_ring = min(2, replicas - 1)
    while True:
        before = fits.copy()
        for s, own in enumerate(fits):
            near: list[tuple[Bools, int]] = []  # admitted neighbours, and how many are needed
            if s - 1 in sent:
                near.append((sent[s - 1].T & fits[s - 1], 1))
            if s in sent:
                near.append((sent[s] & fits[s + 1], 1))
            if s in rings:
                near.append((rings[s] & own, on_ring))
            for pairs, needed in near:
                own &= pairs.sum(axis=1) >= needed
            if len(near) > 1:
                any_of = np.logical_or.reduce([pairs for pairs, _ in near])
                own &= any_of.sum(axis=1) >= sum(needed for _, needed in near)
        if (fits == before).all():
            for s, pairs in rings.items():
                fits[s] = ring_core(pairs, on_ring, replicas, fits[s])
        if (fits.sum(axis=1) < replicas).any():
            return False
        if (fits == before).all():
            return True


def fitting_test(costs: MappingCosts, lower_bounds: LowerBounds, threshold: float) -> Verdict:
    """Test a threshold by the four conditions above."""
    fits = fitting(costs, lower_bounds, threshold)
    return Verdict.INFEASIBLE if fits is None else Verdict.FEASIBLE


def threshold_bound(
    costs: MappingCosts,
    lower_bounds: LowerBounds,
    upper: float,
    should_stop: Callable[[], bool],
    test: ThresholdTest = fitting_test,
    lower: float = 0.0,
) -> float:
    """Return the largest threshold in seconds that a test refutes, by bisection: a lower bound.

    `upper` is the longest stage time of a known mapping, `lower` a known bound.
    """

    def refuted(threshold: float) -> bool:
        return test(costs, lower_bounds, threshold) is Verdict.INFEASIBLE

    low = max(lower, float((costs.base + lower_bounds.transfer + lower_bounds.allreduce).max()))
    if low >= upper * (1 - BISECTION_WIDTH):
        return low
    if not refuted(low * (1 + BISECTION_WIDTH)):
        return low
    if should_stop():
        return low
    if refuted(upper * (1 - BISECTION_WIDTH)):
        return upper * (1 - BISECTION_WIDTH)
    high = upper
    while high - low > BISECTION_WIDTH * high and not should_stop():
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def mapping_cheap_bounds(task: Task[DeviceMapping]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the longest stage with their origins; none for the busiest link. O(n).

    They hold for every partition. With m microbatches a stage takes at least m times the seconds of
    its nodes on its slowest device, whether messages overlap them or not. With σ_k the slowdown of
    the (k R)-th fastest device, the k-th fastest stage has one of at least σ_k. So for S stages,
    p_v the seconds of node v,

        T ≥ m σ_1 max_c Σ_{v∈c} p_v   over colours c, whose nodes share a stage, and single nodes,
        T ≥ m Σ_v p_v / Σ_k 1/σ_k.
    """
    problem, workload = task.problem, task.workload
    if problem.objective != "stage-time":
        return
    seconds = accelerator_seconds(workload)
    heaviest = max(
        float(seconds.max(initial=0.0)),
        *(float(seconds[list(nodes)].sum()) for nodes in workload.colour_classes),
        0.0,
    )
    unit = problem.microbatches / TIME_UNITS[workload.time_unit] * (1 - PROOF_MARGIN)
    slow = stage_slowdowns(task)
    yield heaviest * float(slow[0]) * unit, "heaviest unit"
    yield float(seconds.sum()) / float((1 / slow).sum()) * unit, "total work over all stages"
