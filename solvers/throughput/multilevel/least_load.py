"""Work-share bound on the max-load: the least load, with transfers, of a set that does a share.

Let T be the max-load of a plan, and kind k one of n_k devices, on which unit v takes p_v. Let units
have values 0 ≤ a_v ≤ p_v. The devices of the other kinds can take over a value of at most V(T), by
a fractional knapsack that counts no transfers. So some device of kind k holds a set S with

    a(S) ≥ w = (Σ_v a_v − V(T)) / n_k,     and     T ≥ p(S) + transfers(S).                  (1)

The least p(S) + transfers(S) over all sets with a(S) ≥ w is a bound for every split. V(T) is taken
for a T that is not exceeded, the incumbent's; sets above that T are excluded.

The minimum is computed along the states of a frontier. Values are integer numbers of steps, in a
table of the least excess p(S) + transfers(S) − a(S) by state and value: excess never decreases, and
what exceeds T − w is excluded. It is exact except for nets that are not charged if the frontier
gets too wide. Values sum up to a little less than the work, so that later units in the order can
get what rounding took from earlier ones; otherwise light units would have no value.

A set at an end of a chain pays for transfers on one side only, about half of T − w, and its load
bounds that of all devices. If values near the work raise the bound, those of the first and the last
share are lowered by that part, and (1) is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Floats, Ints
from ...core.search import Clock, Search
from ..column_generation.frontier import relaxed_frontier
from ..dp import knapsack
from .bound_kernels import CoverTable, extend_cover

ORIGIN = "least load of a share of the work"

#: Most states of all layers, and steps of value per limit; time grows with their product.
STATES, STEPS = 1 << 20, 4000

#: Part of all values that is reserved for what rounding takes.
CARRIED = 0.02

#: Units between two polls of the clock.
SLICE = 20


@dataclass(frozen=True, eq=False)
class CoverProblem:
    """Least load of a set that does a share of the work: U units, by position in the order."""

    graph: Hypergraph
    order: Ints
    kind: int  # the kind of device, k
    limit: float  # load that no plan of interest exceeds, T
    work: Floats  # work, value: (U,): p and a of each unit on the kind, a in steps
    value: Ints
    share: float  # w of (1)
    steps: int = STEPS  # steps of value that make up the limit


def raise_by_least_load(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Clock,
) -> None:
    """Raise the bound by (1), for the most frequent kind of device.

    Nothing is proved if transfers overlap compute or devices are linked. Nets are not charged where
    they would need more than `STATES` / U states between two units of the order.
    """
    limit = search.objective
    if task.problem.overlap or task.cluster.links or not 0 < limit < np.inf:
        return
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), task.costs.count, 0).argmax())
    if not task.costs.count[kind]:
        return
    least, work = work_share(task, graph, kind, limit)
    work, held = work[order], np.zeros(graph.size)
    for worth in (work, lower_at_ends(work, least, (1 - least / limit) / 2)):
        known, value = search.bound, in_steps(worth, limit / STEPS)
        held[order] = value * (limit / STEPS)
        share = value_share(task, graph, kind, limit, held)
        if not 0 < share < limit:
            return
        cover = CoverProblem(graph, order, kind, limit, work, value, share)
        load = least_cover_load(cover, max(1, STATES // graph.size), clock)
        if load is None:
            return
        search.raise_bound(min(load, limit) * (1 - PROOF_MARGIN), ORIGIN)
        if not known < search.bound < limit:
            return


def work_share(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float
) -> tuple[float, Floats]:
    """Return the work that some device of a kind must do in plans within a limit, and each unit's.

    A unit that takes longer than the limit on the kind counts as no work.
    """
    time = graph.compute.sum(axis=1)[kind]
    work = np.where(time <= limit * (1 + PROOF_MARGIN), time, 0.0)
    return value_share(task, graph, kind, limit, work), work


def value_share(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float, value: Floats
) -> float:
    """Return the value that some device of a kind must hold in plans within a limit: w of (1)."""
    costs, time = task.costs, graph.compute.sum(axis=1)
    others = np.where(np.arange(len(time)) == kind, 0, costs.count)
    taken = sum(
        float(others[k]) * knapsack(value, time[k], limit) for k in np.flatnonzero(others).tolist()
    )
    rest = float(value.sum()) * (1 - PROOF_MARGIN) - taken * (1 + PROOF_MARGIN)
    return rest / float(costs.count[kind])


def least_cover_load(cover: CoverProblem, width: int, clock: Clock) -> float | None:
    """Return a lower bound on the load of sets that hold the share; `inf` for none.

    None if stopped. Nets beyond `width` states between two units are not charged.
    """
    limit, size, worth = cover.limit, cover.graph.size, cover.limit / cover.steps
    weight = np.minimum(cover.graph.weight.sum(axis=1)[cover.kind], 2 * limit)
    nets = np.flatnonzero(weight > 0)
    most = (limit - cover.share) * (1 + PROOF_MARGIN)
    frontier = relaxed_frontier(cover.graph, nets, weight[nets], cover.order, most, width)
    if frontier is None:
        return np.inf
    width = int(np.diff(frontier[0]).max())
    table = CoverTable(np.empty((2, width, cover.steps + 1)), np.empty((2, width, 2), np.int64))
    table.span[0, 0] = table.excess[0, 0, 0] = 0
    fewest = int(np.ceil(cover.share / worth * (1 - PROOF_MARGIN)))
    bounds = fewest, most, worth
    units = cover.value, cover.work - cover.value * worth
    layered, found = (*frontier, _rest(*frontier)), np.array([np.inf])
    for first in range(0, size, SLICE):
        if clock.should_stop():
            return None
        places = first, min(first + SLICE, size)
        extend_cover(places, layered, units, bounds, table, found)
    return float(found[0])


def _rest(layers: Ints, step: Ints, cost: Floats) -> Floats:
    """Return the transfers from each state to the end if no more units are taken, shape (S,)."""
    rest = np.zeros(int(layers[-1]) + 1)
    rest[-1] = np.inf  # where step −1 leads
    for begin, end in zip(layers[-3::-1].tolist(), layers[-2:0:-1].tolist(), strict=True):
        rest[begin:end] = cost[begin:end, 0] + rest[step[begin:end, 0]]
    return rest[:-1]


def lower_at_ends(work: Floats, share: float, part: float) -> Floats:
    """Return work with that of the first and the last share of an order lowered by a part."""
    done = np.cumsum(work)
    ends = (done < share) | (done > done[-1] - share)
    return np.asarray(np.where(ends, work * (1 - part), work))


def in_steps(work: Floats, worth: float) -> Ints:
    """Return values in whole steps, none above the work; rounding is carried to later units."""
    found, carried = np.zeros(len(work), np.int64), 0.0
    most = np.floor(work / worth * (1 - PROOF_MARGIN)).astype(np.int64).tolist()
    for i, one in enumerate((work / (1 + CARRIED) / worth).tolist()):
        carried += one
        found[i] = min(int(carried), most[i])
        carried -= found[i]
    return found
