"""A bound that counts transfers: the least load of a device that does its share of the work.

Let T be the max-load of a plan, and kind k one of n_k devices, on which unit v takes p_v. The
devices of the other kinds can take over work V(T) at most, by a fractional knapsack that counts no
transfers. So some device of kind k holds a set S of

    p(S) ≥ w = (Σ_v p_v − V(T)) / n_k,     and     T ≥ p(S) + transfers(S).                  (1)

The least p(S) + transfers(S) over all sets of p(S) ≥ w is a bound for every split. V(T) is taken
for a T that is known not to be exceeded, the incumbent's; sets above that T are left out, and with
them all whose transfers are above T − w.

The minimum runs along the states of a frontier, by labels (an interval of work, transfers): *some
sets that lead here have work in the interval, none of them fewer transfers*. Labels of a state and
of alike transfers whose intervals are near each other become one that holds for both, and so do
those of more transfers whose work is all in intervals of fewer. That only relaxes, and so does
leaving nets uncharged where the frontier gets too wide. Intervals keep what single values of work
would lose: along thousands of light units, the error of rounding loads does not add up.
"""

from __future__ import annotations

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Floats, Ints
from ...core.search import Search, Stoppable
from ..column_generation.frontier import relaxed_frontier
from ..dp.stage_dp import knapsack
from .least_load_kernel import Labels, extend

ORIGIN = "least load of a share of the work"

#: Most states between two units, where the graph has thousands and where it has hundreds.
NARROW, WIDE = 48, 1600

#: Classes of transfers: at first, in each round after as many times more, and at most; and of all
#: states of a layer.
CLASSES, FINER, FINEST, MOST_LABELS = 128, 4, 2048, 1 << 20

#: Intervals of a class, and how near they must be to become one, as part of the limit.
INTERVALS, NEAR = 4, 0.01

#: Units between two looks at the clock.
SLICE = 20

#: Rounds that do not close this part of the gap are the last.
ENOUGH = 0.1


def raise_by_least_load(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Stoppable,
    width: int = NARROW,
) -> None:
    """Raise the bound by (1), finer each time, while that helps and `clock` does not stop it.

    Parameters
    ----------
    graph
        Units that must each be on one device.
    order
        Shape (U,): the units in an order of small frontier.
    width
        Most states between two units: nets beyond it are not charged.

    Notes
    -----
    Nothing is proved where transfers overlap compute or devices are linked. Time grows with
    units × states × classes.
    """
    limit = search.objective
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return
    count = task.costs.count
    weight = graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), count, 0).argmax())
    if not count[kind]:
        return
    share, work = least_work(task, graph, kind, limit)
    if not 0 < share < limit:
        return
    most = (limit - share) * (1 + PROOF_MARGIN)
    nets = np.flatnonzero(weight[kind] > 0)
    made = relaxed_frontier(graph, nets, weight[kind, nets], order, most, width)
    if made is None:
        return
    layers, step, cost = made
    classes, states = CLASSES, int(np.diff(layers).max())
    finest = min(FINEST, max(CLASSES, MOST_LABELS // states))
    while classes <= finest and search.bound < limit and not clock.should_stop():
        gap = limit - search.bound
        found = _least(layers, step, cost, work[order], (limit, most, share), classes, clock)
        if found is None:
            return
        search.raise_bound(min(found, limit) * (1 - PROOF_MARGIN), ORIGIN)
        if classes > CLASSES and gap - (limit - search.bound) < ENOUGH * gap:
            return
        classes *= FINER


def least_work(
    task: Task[Throughput], graph: Hypergraph, kind: int, limit: float
) -> tuple[float, Floats]:
    """Return the work that some device of a kind must do in plans within a limit; that of units.

    Work that the kind cannot do counts as none.
    """
    costs, time = task.costs, graph.compute.sum(axis=1)
    work = np.where(np.isfinite(time[kind]), time[kind], 0.0)
    others = np.where(np.arange(len(time)) == kind, 0, costs.count)
    taken = sum(
        float(others[k]) * knapsack(work, time[k], limit) for k in np.flatnonzero(others).tolist()
    )
    rest = float(work.sum()) * (1 - PROOF_MARGIN) - taken * (1 + PROOF_MARGIN)
    return rest / float(costs.count[kind]), work


def _least(
    layers: Ints,
    step: Ints,
    cost: Floats,
    work: Floats,
    limits: tuple[float, float, float],
    classes: int,
    clock: Stoppable,
) -> float | None:
    """Return a bound on the loads of sets of at least a share; None if stopped, `inf` for none."""
    limit, most, share = limits
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
