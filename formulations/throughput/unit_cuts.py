"""A bound on the max-load by the transfers that a heavy unit brings with it.

Some device of a kind k holds unit v, and with it a set S of units, so that

    T ≥ min over k of min { Σ_{u∈S} p_{k,u} + Σ_{nets e: ∅ ≠ e∩S ≠ e} w_{k,e} : v ∈ S } .

The inner minimum is a minimum cut: a unit in S is cut from the sink, where p leads; of a net that
is cut, the weight lies between *some of it is in S* and *all of it is*. Where one unit takes as
long as all others together on the other devices, as in a detector whose proposals are coloured,
what it exchanges is most of the gap that is left.

It counts transfers as load, so that it does not hold where they overlap compute.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints
from ..task import Task
from .certificate import PROOF_MARGIN
from .hypergraph import Hypergraph

ORIGIN = "a heavy unit and its transfers"

#: Units that are tried.
HEAVIEST = 8

#: The sum of all capacities of a cut in whole numbers, which SciPy wants below 2^31; they are
#: rounded down, which can make a bound too low alone.
WHOLE = float(1 << 30)


def unit_cut_bounds(task: Task[Throughput], graph: Hypergraph, known: float) -> Iterator[float]:
    """Yield bounds on the max-load, increasing.

    Parameters
    ----------
    graph
        Units that must each be on one device.
    known
        What is proved already: units that cannot show more are not tried.

    Notes
    -----
    `HEAVIEST` maximum flows through a graph of the units and nets for each kind of device.
    """
    if task.problem.overlap:
        return
    kinds = np.flatnonzero(task.costs.count)
    compute, weight = graph.compute.sum(axis=1)[kinds], graph.weight.sum(axis=1)[kinds]
    alone = compute.copy()  # load of a unit by itself: its cut is no more
    net, pin = _incidence(graph, np.arange(len(graph.pins)))
    for k in range(len(kinds)):
        np.add.at(alone[k], pin, weight[k, net])
    least = alone.min(axis=0)
    for unit in np.argsort(-compute.min(axis=0), kind="stable")[:HEAVIEST].tolist():
        if not known < least[unit] < np.inf:
            continue
        cut = min(_least_load(graph, compute[k], weight[k], unit) for k in range(len(kinds)))
        if cut * (1 - PROOF_MARGIN) > known:
            known = cut * (1 - PROOF_MARGIN)
            yield known


def _incidence(graph: Hypergraph, nets: Ints) -> tuple[Ints, Ints]:
    """Return the pins of nets as pairs: the place of the net, and the unit."""
    of_net = np.repeat(np.arange(len(nets)), [len(graph.pins[e]) for e in nets])
    return of_net, np.array([u for e in nets for u in graph.pins[e]], np.int64)


def _least_load(graph: Hypergraph, compute: Floats, weight: Floats, unit: int) -> float:
    """Return no more than the load of any set of a kind that a unit is in; `inf` for none."""
    if np.isinf(compute[unit]):
        return np.inf
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    units, nets = graph.size, np.flatnonzero(weight > 0)
    total = float(np.where(np.isinf(compute), 0.0, compute).sum() + weight.sum())
    if total == 0.0:
        return 0.0
    sink, some, every = units, units + 1, units + 1 + len(nets)  # the unit is the source
    of_net, pin = _incidence(graph, nets)
    begin = np.concatenate([np.arange(units), some + np.arange(len(nets)), pin, every + of_net])
    end = np.concatenate([np.full(units, sink), every + np.arange(len(nets)), some + of_net, pin])
    capacity = np.minimum(np.concatenate([compute, weight[nets]]), total) * (WHOLE / total)
    whole = np.concatenate([np.floor(capacity), np.full(2 * len(pin), WHOLE)]).astype(np.int32)
    size = every + len(nets)
    arcs = coo_array((whole, (begin, end)), shape=(size, size)).tocsr()
    return float(maximum_flow(arcs, unit, sink).flow_value) * total / WHOLE
