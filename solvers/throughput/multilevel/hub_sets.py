"""What a device can hold, by which hubs it has: see `hubs`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx as nx
import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from ..column_generation.frontier import incidence, relaxed_frontier
from ..dp.dp import ideals_alone
from ..dp.stage_dp import knapsack_shares
from .coarsen import touching
from .hubs_kernel import dearest
from .least_load import least_work

#: A unit of more nets is a hub; of these at most so many: sets are sought for each case.
NETS, HUBS = 16, 3

#: Nets of more pins are not charged, as each doubles the states of all layers.
PINS = 16

#: Most states between two units.
WIDTH = 256


@dataclass(frozen=True, eq=False)
class Sets:
    """What devices can hold; U units, H cases, G groups of cases, C prices, J other kinds.

    Parameters
    ----------
    kind, devices
        k and n_k.
    limit
        Of the load.
    order
        Shape (U,).
    frontier
        Layers, steps and costs, as of `build`.
    work
        Shape (U,): p.
    may
        Shape (H, U, 2), by place in the order: whether a unit may be left out, and taken.
    hubs
        Hubs, the one that decides the groups first.
    group
        Shape (H,): of each case.
    price_of, part
        Shape (U,): the price that counts for a unit, and the part of it that the unit is worth.
    others
        Of the other kinds: number of devices, and time of each unit, shape (U,).
    """

    kind: int
    devices: int
    limit: float
    order: Ints
    frontier: tuple[Ints, Ints, Floats]
    work: Floats
    may: Bools
    hubs: Ints
    group: Ints
    price_of: Ints
    part: Floats
    others: tuple[tuple[float, Floats], ...]


@dataclass(frozen=True, eq=False)
class Priced:
    """The best sets at some prices.

    Parameters
    ----------
    asked
        What the devices of kind k must hold of the prices, Σ_v π_v − W.
    worth, slopes
        Shape (H,): L_h and s_h, times the limit; L_h is −inf where there is no set.
    point
        Shape (C + H,): prices and slopes.
    rows
        Shape (H + J, C): how much of what each price counts for is in the best set of each case,
        and in that of each other kind.
    load
        Shape (H,): of the sets, as part of the limit.
    """

    asked: float
    worth: Floats
    slopes: Floats
    point: Floats
    rows: Floats
    load: Floats


def sets_by_hubs(
    task: Task[Throughput], graph: Hypergraph, order: Ints, limit: float
) -> Sets | None:
    """Return what devices can hold in plans within a limit; None if nothing can be proved."""
    costs, weight = task.costs, graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), costs.count, 0).argmax())
    shape = incidence(graph)
    hubs = np.flatnonzero(np.diff(shape.unit_ptr) > NETS)
    if not len(hubs) or not costs.count[kind] or not weight[kind].any():
        return None
    hubs = hubs[np.argsort(-touching(graph, weight[kind])[hubs], kind="stable")[:HUBS]]
    share, work = least_work(task, graph, kind, limit)
    nets = np.flatnonzero((weight[kind] > 0) & (np.diff(shape.net_ptr) <= PINS))
    charged = np.minimum(weight[kind, nets], 2 * limit)  # more is as bad
    frontier = relaxed_frontier(graph, nets, charged, order, np.inf, WIDTH)
    if frontier is None or share <= 0:
        return None
    price_of = _beside(graph, hubs)
    total = np.bincount(price_of, weights=work)[price_of]
    time = graph.compute.sum(axis=1)
    hubs, may, group = _cases(graph, hubs, convex=ideals_alone(task))
    may[:, :, 1] &= time[kind] <= limit * (1 + PROOF_MARGIN)
    others = [j for j in np.flatnonzero(costs.count).tolist() if j != kind]
    return Sets(
        kind=kind,
        devices=int(costs.count[kind]),
        limit=limit,
        order=order,
        frontier=frontier,
        work=work,
        may=may[:, order],
        hubs=hubs,
        group=group,
        price_of=price_of,
        part=work / np.where(total > 0, total, 1.0),
        others=tuple((float(costs.count[j]), time[j]) for j in others),
    )


def _beside(graph: Hypergraph, hubs: Ints) -> Ints:
    """Return a number for each unit; those next to the same hubs share one, hubs have their own."""
    beside = np.zeros((graph.size, len(hubs)), np.int64)
    place = {hub: i for i, hub in enumerate(hubs.tolist())}
    for pins in graph.pins:
        for hub in place.keys() & pins:
            beside[list(pins), place[hub]] = 1
    beside[hubs] = 2 * np.eye(len(hubs), dtype=np.int64)
    return np.unique(beside, axis=0, return_inverse=True)[1].ravel()


def _cases(graph: Hypergraph, hubs: Ints, *, convex: bool) -> tuple[Ints, Bools, Ints]:
    """Return hubs, which units may be left out and taken in each case, (H, U, 2), and groups, (H,).

    Groups are the choices for the hub of most units on both sides, which comes first, in this
    order: it is in the set, units before it may be, units after it may be; or one group if there is
    no such hub.
    """
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(graph.size))
    order.add_edges_from(graph.edges.tolist())
    outside = {}
    for hub in hubs.tolist():
        sides = [nx.descendants(order, hub), nx.ancestors(order, hub)] if convex else []
        outside[hub] = sides if min(map(len, sides), default=0) else [set[int]()]
    hubs = np.array(sorted(outside, key=lambda hub: -min(map(len, outside[hub]))))
    cases = list(itertools.product(*(range(1 + len(outside[hub])) for hub in hubs.tolist())))
    may = np.ones((len(cases), graph.size, 2), np.bool_)
    for h, case in enumerate(cases):
        for hub, choice in zip(hubs.tolist(), case, strict=True):
            if choice == 0:
                may[h, hub, 0] = False
            else:
                may[h, [hub, *outside[hub][choice - 1]], 1] = False
    divided = len(outside[int(hubs[0])]) > 1
    return hubs, may, np.array(cases)[:, 0] * divided


def priced(sets: Sets, point: Floats) -> Priced:
    """Return the best sets.

    Parameters
    ----------
    point
        Shape (C + H,): prices, and s_h, times the limit.
    """
    prices, slopes = np.split(point, [-len(sets.may)])
    value = prices[sets.price_of] * sets.part
    layers, step, cost = sets.frontier
    states, size = int(layers[-1]), len(value)
    best, came, members = np.empty(states), np.empty(states, np.int64), np.zeros(size)
    worth, load = np.full(len(slopes), -np.inf), np.zeros(len(slopes))
    held = np.zeros((len(slopes) + len(sets.others), size))
    for h, slope in enumerate((slopes / sets.limit).tolist()):
        gain = (value - slope * sets.work)[sets.order]
        worth[h], paid = dearest(layers, step, cost, gain, sets.may[h], slope, best, came, members)
        if worth[h] > -np.inf:
            held[h, sets.order] = members
            load[h] = (float(held[h] @ sets.work) + paid) / sets.limit
    asked = float(value.sum()) - PROOF_MARGIN * float(np.abs(value).sum())
    for j, (many, time) in enumerate(sets.others, len(slopes)):
        held[j] = knapsack_shares(value, time, sets.limit)
        asked -= many * float(held[j] @ value)
    rows = [np.bincount(sets.price_of, weights=one * sets.part) for one in held]
    return Priced(asked, worth, slopes, point, np.array(rows), load)
