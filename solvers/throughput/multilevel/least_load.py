"""Work-share bound on the max-load: the least load, with transfers, of a set that does a share.

Let T be the max-load of a plan, and kind k one of n_k devices, on which unit v takes p_v. Let units
have values 0 ≤ a_v ≤ p_v. The devices of the other kinds can take over value V(T) at most, by a
fractional knapsack that counts no transfers. So some device of kind k holds a set S of

    a(S) ≥ w = (Σ_v a_v − V(T)) / n_k,     and     T ≥ p(S) + transfers(S).                  (1)

The least p(S) + transfers(S) over all sets of a(S) ≥ w is a bound for every split. V(T) is taken
for a T that is known not to be exceeded, the incumbent's; sets above that T are left out.

The minimum runs along the states of a frontier. Values are whole numbers of steps, so it is read
from a table of the least excess p(S) + transfers(S) − a(S) by state and value: excess never falls,
and what is above T − w is left out. It is exact but for nets that are not charged where the
frontier gets too wide. Values sum up to a little less than the work, so that units later in the
order can have what rounding took from the ones before: else light units would have no value.

The values are near the work, but lower where sets are cheap, such as at the ends of a chain, which
pay for transfers on one side: else the cheapest place would be the bound for all devices. Each
round lowers those where the set of the last one was.
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

#: Most states between two units in the search for values, and of all layers there and in the last,
#: finer run.
NARROW, FEW, MANY = 48, 1 << 19, 1 << 21

#: Steps of value per limit, in the search for values and in the last run, whose states × steps are
#: no more than so many.
STEPS, FINE, MOST = 1500, 4000, 1 << 32

#: Part of all values that is held back for what rounding takes, and most steps carried on.
CARRIED, FARTHEST = 0.02, 8.0

#: Part by which values are lowered in a round, and over how many shares of the work before the last
#: unit of the cheapest set.
LOWERED, BEFORE = 0.01, 1.5

#: Rounds in a row without gain after which values are lowered no more.
PATIENCE = 2

#: Multiple of the gap by which the first bound may be below the known one without giving up.
GIVE_UP = 1.0

#: Part of the share that rounding and lowering may take from it.
LOST = 0.1

#: Units between two looks at the clock.
SLICE = 20


@dataclass(frozen=True, eq=False)
class CoverProblem:
    """Least load of a set that does a share of the work; U units, by place in the order."""

    task: Task[Throughput]
    graph: Hypergraph
    order: Ints
    kind: int  # the kind of device, k
    limit: float  # load that no plan of interest exceeds, T
    least: float  # smallest share w of (1) for which frontiers are built
    work: Floats  # (U,): time of each unit on the kind, p


def raise_by_least_load(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Clock,
) -> None:
    """Raise the bound by (1) with ever lower values, and by the best of them in finer steps.

    Nothing is proved where transfers overlap compute or devices are linked. Nets beyond so many
    states between two units of the order are not charged. Time grows with units × states × steps.
    """
    limit = search.objective
    cover = _cover_problem(task, graph, order, limit)
    if cover is None:
        return
    share = cover.least / (1 - LOST)
    width = max(1, MANY // graph.size)
    done, part, best, idle = np.cumsum(cover.work), np.ones(graph.size), 0.0, 0
    steps = STEPS
    while steps < FINE and _values(cover, part, steps)[1] < share * (1 - LOST / 2):
        steps *= 2
    kept, frontier = part, cover_frontier(cover, min(width, NARROW, 1 + FEW // graph.size))
    while frontier is not None and idle < PATIENCE:
        found = least_cover_load(cover, frontier, part, steps, clock)
        if found is None:
            break
        load, last = found
        if not best and load < search.bound - GIVE_UP * (limit - search.bound):
            return
        search.raise_bound(min(load, limit) * (1 - PROOF_MARGIN), ORIGIN)
        if load >= limit:
            return
        best, kept, idle = (load, part, 0) if load > best else (best, kept, idle + 1)
        near = (done > done[last] - BEFORE * share) & (done <= done[last])
        part = np.where(near, part * (1 - LOWERED), part)
    frontier = cover_frontier(cover, width)
    if frontier is None:
        return
    steps = min(max(FINE, 2 * steps), MOST // len(frontier[1]))
    found = least_cover_load(cover, frontier, kept, steps, clock)
    if found is not None:
        search.raise_bound(min(found[0], limit) * (1 - PROOF_MARGIN), ORIGIN)


def _cover_problem(
    task: Task[Throughput], graph: Hypergraph, order: Ints, limit: float
) -> CoverProblem | None:
    """Return the problem of the most frequent kind; None if it can prove nothing."""
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return None
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), task.costs.count, 0).argmax())
    if not task.costs.count[kind]:
        return None
    share, work = work_share(task, graph, kind, limit)
    if not 0 < share < limit:
        return None
    return CoverProblem(task, graph, order, kind, limit, share * (1 - LOST), work[order])


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


def cover_frontier(cover: CoverProblem, width: int) -> tuple[Ints, Ints, Floats] | None:
    """Return the relaxed frontier of sets within the limit; None if none is left."""
    weight = np.minimum(cover.graph.weight.sum(axis=1)[cover.kind], 2 * cover.limit)
    nets = np.flatnonzero(weight > 0)
    most = (cover.limit - cover.least) * (1 + PROOF_MARGIN)
    return relaxed_frontier(cover.graph, nets, weight[nets], cover.order, most, width)


def least_cover_load(
    cover: CoverProblem,
    frontier: tuple[Ints, Ints, Floats],
    part: Floats,
    steps: int,
    clock: Clock,
) -> tuple[float, int] | None:
    """Return a lower bound on the load of sets of a share, and the last unit of the cheapest.

    The bound is `inf` if there is no set; None if stopped, or if the share is too small. `part` is
    the value of each unit as a part of its work, at most; `steps` of value make up the limit.
    """
    limit, size, worth = cover.limit, cover.graph.size, cover.limit / steps
    value, share = _values(cover, part, steps)
    if share < cover.least:
        return None
    width = int(np.diff(frontier[0]).max())
    table = CoverTable(np.empty((2, width, steps + 1)), np.empty((2, width, 2), np.int64))
    table.span[0, 0] = table.excess[0, 0, 0] = 0
    fewest = int(np.ceil(share / worth * (1 - PROOF_MARGIN)))
    bounds = fewest, (limit - share) * (1 + PROOF_MARGIN), worth
    units = value, cover.work - value * worth
    layered, found = (*frontier, _rest(*frontier)), np.array([np.inf, 0.0])
    for first in range(0, size, SLICE):
        if clock.should_stop():
            return None
        places = first, min(first + SLICE, size)
        extend_cover(places, layered, units, bounds, table, found)
    return float(found[0]), int(found[1])


def _values(cover: CoverProblem, part: Floats, steps: int) -> tuple[Ints, float]:
    """Return the values of units in whole steps, and the share w of them, (1)."""
    worth = cover.limit / steps
    value = in_steps(cover.work * part, cover.work, worth)
    held = np.zeros(len(value))
    held[cover.order] = value * worth
    return value, value_share(cover.task, cover.graph, cover.kind, cover.limit, held)


def _rest(layers: Ints, step: Ints, cost: Floats) -> Floats:
    """Return the transfers from each state to the end if no more units are taken; shape (S,)."""
    rest = np.zeros(int(layers[-1]) + 1)
    rest[-1] = np.inf  # where step −1 leads
    for begin, end in zip(layers[-3::-1].tolist(), layers[-2:0:-1].tolist(), strict=True):
        rest[begin:end] = cost[begin:end, 0] + rest[step[begin:end, 0]]
    return rest[:-1]


def in_steps(value: Floats, work: Floats, worth: float) -> Ints:
    """Return values in whole steps, none above the work; rounding is carried on to later units."""
    found, carried = np.zeros(len(value), np.int64), 0.0
    most = np.floor(work / worth * (1 - PROOF_MARGIN)).astype(np.int64).tolist()
    for i, one in enumerate((value / (1 + CARRIED) / worth).tolist()):
        carried += one
        found[i] = min(int(carried), most[i])
        carried = min(carried - found[i], FARTHEST)
    return found
