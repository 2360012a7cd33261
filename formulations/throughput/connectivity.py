"""Units that no plan of a max-load within a limit separates, and the bound that follows.

*Budget.* Let T be the limit, p_v the least time of unit v on any device, and D the number of
devices. In a plan of max-load at most T, all devices together take D T at most, and compute takes
Σ_v p_v of that at least, so that what is left for transfers is at most

    B(T) = D T − Σ_v p_v.                                                                  (1)

A cut net e is paid by two devices at least, together by c_e: the two least weights of it on devices
of the cluster. A set S of units with Σ {c_e: e is cut by S} > B(T) is therefore held by no device,
and units are *inseparable* that no set of less or the same cost separates.

*Inseparable units* come from maximum adjacency orders: each next unit v_i is the one with the
largest sum a_i of weights c_e of nets that contain it and a unit before it. Then every set that
separates v_{i−1} from v_i cuts nets of at least a_i in all [1, 2], so that both are one unit if
a_i > B(T). That is repeated on what is merged. It may miss pairs, and never merges one too many.

*Bound.* No plan is within T if, after the merging, a bound by compute alone exceeds T
(`cheap_bounds`). Time and transfers are all that this counts, so it holds for every split, with
links and relayed data, and for GPipe's objective, which is at least the max-load. With overlap, (1)
does not hold, and nothing is merged.

References
----------
[1] H. Nagamochi, T. Ibaraki, "Computing edge-connectivity in multigraphs and capacitated graphs",
SIAM Journal on Discrete Mathematics 5, 1992.
[2] R. Klimmek, F. Wagner, "A simple hypergraph min cut algorithm", 1996.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from ...instances import Throughput
from ...instances.model.arrays import Floats, Ints, frozen
from ..task import Task
from .certificate import PROOF_MARGIN
from .cheap_bounds import throughput_cheap_bounds
from .hypergraph import Hypergraph, hypergraph

ORIGIN = "inseparable units"

#: Orders from different units without anything to merge after which no more are tried.
FRUITLESS = 4

#: Halvings of the interval in which the largest limit that can be ruled out lies.
HALVINGS = 8

#: Least part by which a bound must rise to be worth the search.
LEAST_RISE = 1e-6


def transfer_budget(task: Task[Throughput], graph: Hypergraph, limit: float) -> float:
    """Return B(T) of (1), with a margin for rounding; `inf` where it does not hold."""
    costs = task.costs
    if task.problem.overlap or not np.isfinite(limit):
        return np.inf
    used = costs.count > 0
    least = graph.compute.sum(axis=1)[used].min(axis=0).sum()
    whole = float(costs.count.sum()) * limit
    return float(whole * (1 + PROOF_MARGIN) - least * (1 - PROOF_MARGIN))


def separation_costs(task: Task[Throughput], graph: Hypergraph) -> Floats:
    """Return c_e, what the devices together pay at least for each cut net; shape (E,)."""
    costs = task.costs
    if len(costs.kind_of) < 2 or not graph.pins:
        return np.full(len(graph.pins), np.inf)
    each = np.sort(graph.weight.sum(axis=1)[costs.kind_of], axis=0)  # (D, E)
    total: Floats = each[0] + each[1]
    return total


def most_transfer(task: Task[Throughput], graph: Hypergraph, limit: float) -> Floats:
    """Return what a device of each kind can pay for transfers at most; shape (K,).

    What a set costs its own device, the others pay at least in part again.
    """
    budget, costs = transfer_budget(task, graph, limit), task.costs
    weight = graph.weight.sum(axis=1)
    most = np.full(len(costs.count), np.inf)
    for k in np.flatnonzero(costs.count):
        other = [j for j in np.flatnonzero(costs.count) if j != k or costs.count[k] > 1]
        paid = weight[k] > 0
        if other and paid.any():
            part = float((weight[other][:, paid] / weight[k, paid]).min())
            most[k] = max(0.0, budget) / (1 + part)
    return most


def inseparable(
    task: Task[Throughput],
    graph: Hypergraph,
    limit: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> Ints:
    """Return for each unit of `graph` the number of its class; shape (U,).

    Every plan of a max-load of at most `limit` has each class on one device. Takes
    O(pins · log U) time for each of some rounds.
    """
    budget = transfer_budget(task, graph, limit)
    number = np.arange(graph.size)
    nets = dict(zip(graph.pins, separation_costs(task, graph).tolist(), strict=True))
    rng = np.random.default_rng(0)
    fruitless = 0
    while nets and fruitless < FRUITLESS and not should_stop():
        size = int(number.max()) + 1
        order, joined = _adjacency_order(size, nets, int(rng.integers(size)))
        heavy = np.flatnonzero(joined > budget)
        if not len(heavy):
            fruitless += 1
            continue
        fruitless = 0
        after = np.ones(size, np.int64)
        after[0] = 0
        after[heavy] = 0
        merged = np.empty(size, np.int64)
        merged[order] = np.cumsum(after)
        number, nets = merged[number], _merge(nets, merged)
    return frozen(number, np.int64)


def _adjacency_order(
    size: int, nets: dict[tuple[int, ...], float], first: int
) -> tuple[Ints, Floats]:
    """Return a maximum adjacency order that begins with `first`, and a_i of each place in it."""
    touching: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in range(size)]
    for net in nets.items():
        for v in net[0]:
            touching[v].append(net)
    reached: set[tuple[int, ...]] = set()
    joined = [0.0] * size
    done = [False] * size
    order, values = [], []
    waiting = [(-np.inf, first), *((0.0, v) for v in range(size))]
    heapq.heapify(waiting)
    while waiting:
        _, v = heapq.heappop(waiting)
        if done[v]:
            continue
        done[v] = True
        order.append(v)
        values.append(joined[v])
        for pins, cost in touching[v]:
            if pins not in reached:
                reached.add(pins)
                for u in pins:
                    if not done[u]:
                        joined[u] += cost
                        heapq.heappush(waiting, (-joined[u], u))
    return np.array(order), np.array(values)


def _merge(nets: dict[tuple[int, ...], float], number: Ints) -> dict[tuple[int, ...], float]:
    """Return the nets between classes, those with equal pins added up."""
    merged: dict[tuple[int, ...], float] = {}
    of = number.tolist()
    for pins, cost in nets.items():
        inside = tuple(sorted({of[v] for v in pins}))
        if len(inside) > 1:
            merged[inside] = merged.get(inside, 0.0) + cost
    return merged


def merge_inseparable(
    task: Task[Throughput],
    graph: Hypergraph,
    limit: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> Hypergraph:
    """Return the hypergraph whose units are the classes of `inseparable`; `graph` if none merge."""
    while True:
        number = inseparable(task, graph, limit, should_stop)
        if int(number.max(initial=-1)) + 1 == graph.size:
            return graph
        graph = hypergraph(task, frozen(number[graph.unit_of], np.int64))


def connectivity_bound(
    task: Task[Throughput],
    graph: Hypergraph,
    low: float,
    high: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> float:
    """Return a limit that no plan is within, at least `low`, by bisection up to `high`.

    Parameters
    ----------
    graph
        Units that every plan keeps together.
    """

    def impossible(limit: float) -> bool:
        merged = merge_inseparable(task, graph, limit, should_stop)
        if merged is graph:
            return False
        return any(bound > limit for bound, _ in throughput_cheap_bounds(task, merged))

    if not graph.size or not impossible(low * (1 + LEAST_RISE)):
        return low
    if impossible(high):
        return high
    for _ in range(HALVINGS):
        if should_stop():
            break
        middle = (low + high) / 2
        low, high = (middle, high) if impossible(middle) else (low, middle)
    return low
