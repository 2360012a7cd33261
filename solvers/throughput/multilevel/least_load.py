"""A bound that counts transfers: the least load of a device that does its share of the work.

Let T be the max-load of a plan, and kind k one of n_k devices, on which unit v takes p_v. The
devices of the other kinds can take over work V(T) at most, by a fractional knapsack that counts no
transfers. So some device of kind k holds a set S of

    p(S) ≥ w = (Σ_v p_v − V(T)) / n_k,     and     T ≥ p(S) + transfers(S).                  (1)

The least p(S) + transfers(S) over all sets of p(S) ≥ w is a bound for every split. V(T) is taken
for a T that is known not to be exceeded, the incumbent's; sets above that T are left out, and with
them all whose transfers are above T − w.

The devices of a contiguous split hold convex sets: with two units all those between them. Some nets
have two pins a and b that no convex set of at most T holds together (`far_nets`). All devices that
hold a pin of such a net pay it, as if it had another pin elsewhere. Or, what proves more where such
nets are everywhere: two devices pay it, those of a and of b, so its weight is added to p_a and p_b
and to nothing else. Then w itself is a bound, for which no sets are looked at.

The minimum runs along the states of a frontier, by labels (an interval of work, transfers): *some
sets that lead here have work in the interval, none of them fewer transfers*. Labels of a state and
of alike transfers whose intervals are near each other become one that holds for both, and so do
those of more transfers whose work is all in intervals of fewer. That only relaxes, and so does
leaving nets uncharged where the frontier gets too wide. Intervals keep what single values of work
would lose: along thousands of light units, the error of rounding loads does not add up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.search import Search, Stoppable
from ..column_generation.frontier import incidence
from ..column_generation.frontier_kernels import build
from ..column_generation.frontier_slots import Nets
from ..dp.dp import ideals_alone
from ..dp.stage_dp import knapsack
from .far_nets import with_far_nets
from .least_load_kernel import Labels, extend

ORIGIN = "least load of a share of the work"

#: Most states between two units.
WIDTH = 48

#: Classes of transfers: at first, in each round after as many times more, and at most.
CLASSES, FINER, FINEST = 128, 4, 2048

#: Intervals of a class, and how near they must be to become one, as part of the limit.
INTERVALS, NEAR = 4, 0.01

#: Units between two looks at the clock.
SLICE = 20

#: Rounds that do not close this part of the gap are the last.
ENOUGH = 0.1


class Share(NamedTuple):
    """Sets of a share of the work, along a frontier; S states, U units.

    Parameters
    ----------
    layers, step, cost
        As of `build`.
    work
        Shape (U,): in the order of the frontier.
    share, limit, most
        Their least work, most load and most transfers.
    """

    layers: Ints
    step: Ints
    cost: Floats
    work: Floats
    share: float
    limit: float
    most: float


def raise_by_least_load(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Stoppable,
) -> None:
    """Raise the bound by (1), finer each time, while that helps and `clock` does not stop it.

    Parameters
    ----------
    graph
        Units that must each be on one device.
    order
        Shape (U,): the units in an order of small frontier.

    Notes
    -----
    Nothing is proved where transfers overlap compute or devices are linked. Time grows with
    units × states × classes.
    """
    limit = search.objective
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), task.costs.count, 0).argmax())
    if not task.costs.count[kind]:
        return
    work, paid = work_of(graph, kind), weight[kind]
    dearer, outside = work, np.zeros(len(paid), np.bool_)
    if ideals_alone(task):
        dearer, outside = with_far_nets(graph, work, paid, limit)
        share = least_share(task, graph, kind, limit, dearer)
        search.raise_bound(min(share, limit) * (1 - PROOF_MARGIN), ORIGIN)
    problems = [share_of(task, graph, order, kind, limit, work, paid, outside)]
    if outside.any():
        rest = np.where(outside, 0.0, paid)
        problems.append(share_of(task, graph, order, kind, limit, dearer, rest, outside))
    few = [problem for problem in problems if problem is not None]
    classes = CLASSES
    while few and classes <= FINEST and search.bound < limit and not clock.should_stop():
        gap = limit - search.bound
        found = []
        for problem in few:
            least = least_of(problem, classes, clock)
            if least is None:
                return
            found.append(least)
            search.raise_bound(min(least, limit) * (1 - PROOF_MARGIN), ORIGIN)
        few = [few[int(np.argmax(found))]]
        if classes > CLASSES and gap - (limit - search.bound) < ENOUGH * gap:
            return
        classes *= FINER


def work_of(graph: Hypergraph, kind: int) -> Floats:
    """Return the work of each unit on a kind, none where that cannot do it; shape (U,)."""
    time: Floats = graph.compute[kind].sum(axis=0)
    return np.where(np.isfinite(time), time, 0.0)


def least_share(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float, work: Floats
) -> float:
    """Return the work that some device of a kind must do in plans within a limit."""
    costs, time = task.costs, graph.compute.sum(axis=1)
    others = np.where(np.arange(len(time)) == kind, 0, costs.count)
    taken = sum(
        float(others[k]) * knapsack(work, time[k], limit) for k in np.flatnonzero(others).tolist()
    )
    rest = float(work.sum()) * (1 - PROOF_MARGIN) - taken * (1 + PROOF_MARGIN)
    return rest / float(costs.count[kind])


def share_of(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    kind: int,
    limit: float,
    work: Floats,
    weight: Floats,
    outside: Bools,
) -> Share | None:
    """Return the sets of a share of the work, by a frontier; None if nothing is to be had by them.

    Parameters
    ----------
    work
        Shape (U,).
    weight
        Shape (E,).
    outside
        Shape (E,): nets that each device pays that holds a pin.
    """
    share = least_share(task, graph, kind, limit, work)
    if not 0 < share < limit:
        return None
    most = (limit - share) * (1 + PROOF_MARGIN)
    nets = np.flatnonzero(weight > 0)
    shape, zero = incidence(graph, nets), np.zeros(len(nets))
    layers, step, cost, _, _ = build(
        order, shape.unit_ptr, shape.unit_nets,
        Nets(np.diff(shape.net_ptr), zero.astype(np.int64), outside[nets], weight[nets], zero),
        both=False, most=most, width=WIDTH, room=WIDTH * (graph.size + 2), relax=True,
    )  # fmt: skip
    if len(layers) == 0:
        return None
    return Share(layers, step, cost, work[order], share, limit, most)


def least_of(problem: Share, classes: int, clock: Stoppable) -> float | None:
    """Return a bound on the loads of sets of at least a share; None if stopped, `inf` for none."""
    layers, step, cost, work, share, limit, most = problem
    width = int(np.diff(layers).max())
    table = Labels(
        np.zeros((2, width, classes), np.int64), np.empty((2, width, classes, INTERVALS, 3))
    )
    seen = Labels(np.zeros((1, 1, 1), np.int64), np.empty((1, 1, 1, 2 * INTERVALS, 3)))
    table.many[0, 0, 0] = 1
    table.interval[0, 0, 0, 0] = 0.0
    bounds = limit * (1 + PROOF_MARGIN), most, NEAR * limit
    for first in range(0, len(work), SLICE):
        if clock.should_stop():
            return None
        last = min(first + SLICE, len(work))
        extend(first, last, layers, step, cost, work, bounds, table, seen)
    now = len(work) % 2
    held = np.arange(INTERVALS) < table.many[now, 0, :, None]
    low, high, transfers = np.moveaxis(table.interval[now, 0], -1, 0)
    enough = held & (np.where(held, high, 0.0) >= share * (1 - PROOF_MARGIN))
    loads = np.maximum(low[enough], share) + transfers[enough]
    return float(loads.min(initial=np.inf))
