"""Work-share bound on the max-load: the least load, with transfers, of a set that does a share.

Let T be the max-load of a plan, and kind k one of n_k devices, on which unit v takes p_v. Let units
have values 0 ≤ a_v ≤ p_v. The devices of the other kinds can take over value V(T) at most, by a
fractional knapsack that counts no transfers. So some device of kind k holds a set S of

    a(S) ≥ w = (Σ_v a_v − V(T)) / n_k,     and     T ≥ p(S) + transfers(S).                  (1)

The least p(S) + transfers(S) over all sets of a(S) ≥ w is a bound for every split. V(T) is taken
for a T that is known not to be exceeded, the incumbent's; sets above that T are left out.

The minimum runs along the states of a frontier. Values are whole numbers of steps, so a table of
the least excess p(S) + transfers(S) − a(S) by state and value has it: excess never falls, and what
is above T − w is left out. It is exact but for nets that are not charged where the frontier gets
too wide. A unit may have a little less than its work, so that those behind it in the order can have
what rounding took from the ones before: else light units would have no value at all.

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
from ...core.search import Search, Stoppable
from ..column_generation.frontier import relaxed_frontier
from ..dp.stage_dp import knapsack
from .bound_kernels import Table, extend

ORIGIN = "least load of a share of the work"

#: Most states between two units while values are sought, and at last where the graph has hundreds
#: of units; and of all layers, while values are sought and at last.
NARROW, WIDE = 48, 1600
FEW, MANY = 1 << 19, 1 << 21

#: Steps of the limit while values are sought, and at last, if states × steps are no more than so
#: many.
STEPS, FINE, MOST = 1500, 4000, 1 << 32

#: Part of its work that a unit's value may get of what rounding took from others.
CARRIED, FARTHEST = 0.02, 8.0

#: Part by which values are lowered in a round, and where: so many shares before the last unit of
#: the cheapest set.
LOWERED, BEFORE = 0.01, 1.5

#: Rounds in a row without gain after which values are lowered no more.
PATIENCE = 2

#: How many times the gap the first bound is below what is known if it is given up.
FAR = 1.0

#: Part of the share that rounding and lowering may take from it.
LOST = 0.1

#: Units between two looks at the clock.
SLICE = 20


@dataclass(frozen=True, eq=False)
class Asked:
    """Whose sets are sought; U units, by place in the order.

    Parameters
    ----------
    least
        Of the shares that frontiers are good for.
    work
        Shape (U,): p.
    """

    task: Task[Throughput]
    graph: Hypergraph
    order: Ints
    kind: int
    limit: float
    least: float
    work: Floats


def raise_by_least_load(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Stoppable,
    width: int | None = None,
) -> None:
    """Raise the bound by (1) with lower and lower values, and by the best of them in finer steps.

    Parameters
    ----------
    graph
        Units that must each be on one device.
    order
        Shape (U,): the units in an order of small frontier.
    clock
        Tells when to stop.
    width
        Most states between two units: nets beyond it are not charged. Default: by their number.

    Notes
    -----
    Nothing is proved where transfers overlap compute or devices are linked. Time grows with
    units × states × steps.
    """
    limit = search.objective
    asked = _asked(task, graph, order, limit)
    if asked is None:
        return
    share = asked.least / (1 - LOST)
    width = width or max(1, MANY // graph.size)
    done, part, best, idle = np.cumsum(asked.work), np.ones(graph.size), 0.0, 0
    steps = STEPS
    while steps < FINE and _values(asked, part, steps)[1] < share * (1 - LOST / 2):
        steps *= 2
    kept, frontier = part, sets_of(asked, min(width, NARROW, 1 + FEW // graph.size))
    while frontier is not None and idle < PATIENCE:
        found = least(asked, frontier, part, steps, clock)
        if found is None:
            break
        load, last = found
        if not best and load < search.bound - FAR * (limit - search.bound):
            return
        search.raise_bound(min(load, limit) * (1 - PROOF_MARGIN), ORIGIN)
        if load >= limit:
            return
        best, kept, idle = (load, part, 0) if load > best else (best, kept, idle + 1)
        near = (done > done[last] - BEFORE * share) & (done <= done[last])
        part = np.where(near, part * (1 - LOWERED), part)
    frontier = sets_of(asked, width)
    if frontier is None:
        return
    steps = min(max(FINE, 2 * steps), MOST // len(frontier[1]))
    found = least(asked, frontier, kept, steps, clock)
    if found is not None:
        search.raise_bound(min(found[0], limit) * (1 - PROOF_MARGIN), ORIGIN)


def _asked(task: Task[Throughput], graph: Hypergraph, order: Ints, limit: float) -> Asked | None:
    """Return whose sets are sought; None if they can prove nothing."""
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return None
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), task.costs.count, 0).argmax())
    if not task.costs.count[kind]:
        return None
    share, work = least_work(task, graph, kind, limit)
    if not 0 < share < limit:
        return None
    return Asked(task, graph, order, kind, limit, share * (1 - LOST), work[order])


def least_work(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float
) -> tuple[float, Floats]:
    """Return the work that some device of a kind must do in plans within a limit; that of units.

    Work that the kind cannot do within the limit counts as none.
    """
    time = graph.compute.sum(axis=1)[kind]
    work = np.where(time <= limit * (1 + PROOF_MARGIN), time, 0.0)
    return value_share(task, graph, kind, limit, work), work


def value_share(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float, value: Floats
) -> float:
    """Return what some device of a kind must hold of the units' values in plans within a limit."""
    costs, time = task.costs, graph.compute.sum(axis=1)
    others = np.where(np.arange(len(time)) == kind, 0, costs.count)
    taken = sum(
        float(others[k]) * knapsack(value, time[k], limit) for k in np.flatnonzero(others).tolist()
    )
    rest = float(value.sum()) * (1 - PROOF_MARGIN) - taken * (1 + PROOF_MARGIN)
    return rest / float(costs.count[kind])


def sets_of(asked: Asked, width: int) -> tuple[Ints, Ints, Floats] | None:
    """Return layers, steps and costs, as of `build`; None if no set is left."""
    weight = np.minimum(asked.graph.weight.sum(axis=1)[asked.kind], 2 * asked.limit)
    nets = np.flatnonzero(weight > 0)
    most = (asked.limit - asked.least) * (1 + PROOF_MARGIN)
    return relaxed_frontier(asked.graph, nets, weight[nets], asked.order, most, width)


def least(
    asked: Asked,
    frontier: tuple[Ints, Ints, Floats],
    part: Floats,
    steps: int,
    clock: Stoppable,
) -> tuple[float, int] | None:
    """Return a bound on the loads of sets of at least a share, and the last unit of the cheapest.

    The bound is `inf` if there is no set; None if stopped, or if the share is too small.

    Parameters
    ----------
    part
        Shape (U,): of its work that a unit is worth, at most.
    steps
        How many make up the limit.
    """
    limit, size, worth = asked.limit, asked.graph.size, asked.limit / steps
    value, share = _values(asked, part, steps)
    if share < asked.least:
        return None
    layers, step, cost = frontier
    width = int(np.diff(layers).max())
    table = Table(np.empty((2, width, steps + 1)), np.empty((2, width, 2), np.int64))
    table.span[0, 0] = table.excess[0, 0, 0] = 0
    fewest = int(np.ceil(share / worth * (1 - PROOF_MARGIN)))
    bounds = fewest, (limit - share) * (1 + PROOF_MARGIN), worth
    more, rest, found = asked.work - value * worth, _rest(*frontier), np.array([np.inf, 0.0])
    for first in range(0, size, SLICE):
        if clock.should_stop():
            return None
        places = first, min(first + SLICE, size)
        extend(places, layers, step, cost, rest, value, more, bounds, table, found)
    return float(found[0]), int(found[1])


def _values(asked: Asked, part: Floats, steps: int) -> tuple[Ints, float]:
    """Return the values of units, and what some device must hold of them."""
    worth = asked.limit / steps
    value = in_steps(asked.work * part, asked.work, worth)
    held = np.zeros(len(value))
    held[asked.order] = value * worth
    return value, value_share(asked.task, asked.graph, asked.kind, asked.limit, held)


def _rest(layers: Ints, step: Ints, cost: Floats) -> Floats:
    """Return the transfers still to come from each state if all units left are out; shape (S,)."""
    rest = np.zeros(int(layers[-1]) + 1)
    rest[-1] = np.inf  # where step −1 leads
    for begin, end in zip(layers[-3::-1].tolist(), layers[-2:0:-1].tolist(), strict=True):
        rest[begin:end] = cost[begin:end, 0] + rest[step[begin:end, 0]]
    return rest[:-1]


def in_steps(value: Floats, work: Floats, worth: float) -> Ints:
    """Return values in whole steps, none above the work; what rounding takes is carried on."""
    found, carried = np.zeros(len(value), np.int64), 0.0
    most = np.floor(work / worth * (1 - PROOF_MARGIN)).astype(np.int64).tolist()
    for i, one in enumerate((value / (1 + CARRIED) / worth).tolist()):
        carried += one
        found[i] = min(int(carried), most[i])
        carried = min(carried - found[i], FARTHEST)
    return found
