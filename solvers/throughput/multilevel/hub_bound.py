"""Hub bound: a dual bound on the max-load by the high-degree units (hubs) that a device holds.

A *hub* exchanges data with many units, as do the bias of all attention layers and its gradients:
its device pays for what all others hold of these. Let π_v be prices of the units, and kind k one of
n_k devices, on which unit v takes p_v. Devices of the other kinds can hold units worth at most W in
total, by a fractional knapsack that counts no transfers. For a set S that a device of kind k holds,
let h say which hubs it contains. For any s_h ≥ 0,

    π(S) ≤ L_h + s_h T,     L_h = max { π(R) − s_h (p(R) + transfers(R)) : R in case h }.     (1)

The maximum takes one pass through the states of a frontier; nets that the frontier gives up only
make it larger. Without hubs, (1) proves no more than the work bound, as the set of all units has no
transfers. With hubs it is nearly tight: what a device with given hubs pays grows in proportion to
what it holds. Each price is on some device, so

    Σ_v π_v − W ≤ n_k max_h (L_h + s_h T),                                                 (2)

and the least T that satisfies this is a bound. A contiguous set without a hub has no unit before
the hub, or none after it: these are separate cases. Then at most one device has a hub with units on
both sides; let m of the others hold what comes before it, and the rest what comes after. For each
m, and with the hub on another kind, the right side of (2) is a sum of maxima over each group of
cases, and the least of these bounds holds for all plans.

Units next to the same hubs have one price per unit of work. These prices and all s_h are found by a
linear program over the sets seen so far, within a box around the best so far (boxstep).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import networkx as nx
import numpy as np

from ....formulations.linear import MatrixEntries, least_cost
from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.formats.plan_json import HUBS
from ...core.search import Clock, Search
from ..column_generation.column_generation import RADIUS, SERIOUS, SMALL
from ..column_generation.frontier import RELAXED_WIDTH, relaxed_frontier
from ..column_generation.orders import HUB
from ..dp import ideals_alone, knapsack_shares
from .bound_kernels import most_valuable_set
from .coarsen import touching
from .least_load import work_share

#: A unit of more nets is a hub. Nets of more pins are not charged, as each doubles the states of
#: all layers.
HUB_NETS = CHARGED_PINS = HUB

#: Most hubs, as sets are sought for each case of them.
MOST_HUBS = 3


@dataclass(frozen=True, eq=False)
class HubSets:
    """Sets that devices can hold: U units, H cases of hubs, G groups, C prices, J other kinds."""

    kind: int  # kind, devices: k and n_k
    devices: int
    limit: float  # limit of the load
    order: Ints  # (U,)
    frontier: tuple[Ints, Ints, Floats]  # layers, steps and costs, as `build` returns them
    work: Floats  # (U,): p
    may: Bools  # (H, U, 2), along the order: whether a unit may be left out, and taken
    hubs: Ints  # hubs; the first one decides the groups
    group: Ints  # (H,): group of each case
    # price_of, part: (U,): the price class of a unit, and the part of the class's price that the
    # unit is worth
    price_of: Ints
    part: Floats
    # for each other kind: number of devices, and time of each unit, shape (U,)
    others: tuple[tuple[float, Floats], ...]


@dataclass(frozen=True, eq=False)
class HubPrices:
    """Prices, and the most valuable set of each case of hubs at these."""

    asked: float  # value that the devices of kind k must hold, Σ_v π_v − W
    # worth, slopes: (H,): L_h, and s_h times the limit; L_h is −inf if there is no set
    worth: Floats
    slopes: Floats
    point: Floats  # (C + H,): prices and slopes
    # (H + J, C): part of each price class in the best set of each case, and of each other kind
    rows: Floats
    load: Floats  # (H,): loads of the sets, relative to the limit


#: Most rounds of prices, and the least gain that a further one must promise, relative to the limit.
ROUNDS, PROMISED = 60, 1e-5

#: Largest prices and slopes, per device: if the least load of a case decides, they grow without
#: limit.
STEEP = 1e6


def raise_by_hubs(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Clock,
) -> None:
    """Raise the bound by (2), and then by its sums over groups, unless `clock` stops it.

    Nothing is proved if transfers overlap compute or devices are linked, or without hubs. `graph`
    has the edges that decide contiguity; `order` is one of small frontier.
    """
    limit = search.objective
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return
    sets = sets_by_hubs(task, graph, order, limit)
    if sets is None:
        return
    evidence = partial(_evidence, graph, sets)
    work = np.bincount(sets.price_of, weights=sets.work)
    start = np.concatenate([work, np.full(len(sets.may), limit)])
    start *= sets.devices / float(work.sum())
    known: list[HubPrices] = []
    whole = np.zeros_like(sets.group)
    for part, best in _bounds(sets, whole, np.array([sets.devices]), start, known, clock):
        bound = part * limit * (1 - PROOF_MARGIN)
        search.raise_bound(bound, HUBS, evidence([best], bound))
    if not sets.group.any():
        return
    divisions, least = _divisions(sets.devices), 1.0
    for counts in divisions:
        part = 0.0
        for part, _ in _bounds(sets, sets.group, counts, start, known, clock):
            if part >= least:
                break
        least = min(least, part)
        if clock.should_stop() or least * limit <= search.bound:
            return
    bound = least * limit * (1 - PROOF_MARGIN)
    points = _covering(sets.group, divisions, known, least * (1 - PROOF_MARGIN))
    search.raise_bound(bound, HUBS, evidence(points, bound))


def _covering(
    group: Ints, divisions: list[Ints], known: list[HubPrices], part: float
) -> list[HubPrices]:
    """Return a few of the prices, at least one of which proves `part` for each division."""
    chosen: list[HubPrices] = []
    for counts in divisions:
        if not any(_excess(one, group, counts, part) < 0 for one in chosen):
            chosen.append(min(known, key=lambda one: _excess(one, group, counts, part)))
    return chosen


def _evidence(
    graph: Hypergraph, sets: HubSets, points: list[HubPrices], target: float
) -> dict[str, object]:
    """Return the evidence for `target` in the form that plans keep and `check_bound` reads."""
    total = np.bincount(sets.price_of, weights=sets.work)
    many = len(total)
    return {
        "target": target,
        "kind": sets.kind,
        "hubs": [graph.members[hub][0] for hub in sets.hubs.tolist()],
        "classes": sets.price_of[graph.unit_of].tolist(),
        "points": [
            (
                (one.point[:many] / np.where(total > 0, total, 1.0)).tolist(),
                (one.point[many:] / sets.limit).tolist(),
            )
            for one in points
        ],
    }


def _divisions(devices: int) -> list[Ints]:
    """Return the numbers of devices that have a hub, hold units before it, or units after it."""
    return [
        np.array([has, before, devices - has - before])
        for has in (1, 0)
        for before in range(devices - has + 1)
    ]


def _bounds(
    sets: HubSets,
    group: Ints,
    counts: Ints,
    start: Floats,
    known: list[HubPrices],
    clock: Clock,
) -> Iterator[tuple[float, HubPrices]]:
    """Yield increasing proved parts of the limit, for given devices by group, with their prices.

    It starts from the `known` prices, and adds those that it prices.
    """
    if not known:
        known.append(priced(sets, start))
    parts = [_proved(one, group, counts) for one in known]
    best, part, radius = known[int(np.argmax(parts))], max(parts), RADIUS
    for _ in range(ROUNDS):
        yield part, best
        if clock.should_stop() or part == 1.0:
            return
        trial, promised = _better(sets, group, counts, known, (best.point, radius, part))
        if -promised < PROMISED or np.abs(trial).max() > STEEP * sets.devices:
            return
        known.append(priced(sets, trial))
        found = _excess(known[-1], group, counts, part)
        if found < SERIOUS * promised:
            radius *= 1.5 if found < 0.5 * promised else 1.0
            best, part = known[-1], _proved(known[-1], group, counts)
        elif found > -promised:
            radius /= 2


def _excess(found: HubPrices, group: Ints, counts: Ints, part: float) -> float:
    """Return, per device, the excess over `asked` of the value that fits in a part of the limit."""
    most = found.worth + part * found.slopes
    held = sum(int(counts[g]) * float(most[group == g].max()) for g in np.flatnonzero(counts))
    return (held - found.asked) / float(counts.sum())


def _proved(found: HubPrices, group: Ints, counts: Ints) -> float:
    """Return the greatest part of the limit within which devices hold less than `asked`, or 0."""
    low, high = 0.0, 1.0
    if _excess(found, group, counts, high) < 0:
        return high
    while high - low > PROOF_MARGIN:
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(found, group, counts, middle) < 0 else (low, middle)
    return low


def _better(
    sets: HubSets,
    group: Ints,
    counts: Ints,
    known: list[HubPrices],
    box: tuple[Floats, float, float],
) -> tuple[Floats, float]:
    """Return the prices and slopes in a box that promise the least excess, and that excess.

    `box` is a centre, a radius, and the part of the limit that counts.

    The variables are prices, slopes, and the most that each group, and each other kind, holds.
    """
    centre, radius, part = box
    cases, groups, kinds = len(group), len(counts), len(sets.others)
    many = len(centre) - cases
    size = len(centre) + groups + kinds
    each = np.zeros((len(known), cases + kinds, size))
    for row, found in zip(each, known, strict=True):
        row[:, :many] = -found.rows
        row[:cases, many : len(centre)] = -np.diag(part - found.load)
        row[np.arange(cases), len(centre) + group] = 1.0
        row[cases:, len(centre) + groups :] = np.eye(kinds)
        row[np.flatnonzero(np.isinf(found.worth))] = 0.0
    matrix = np.vstack([np.arange(size) < many, each.reshape(-1, size)])
    sides = np.zeros(len(matrix))
    sides[0] = sets.devices
    reach = radius * (np.abs(centre) + SMALL * np.abs(centre).mean())
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    lower[: len(centre)], upper[: len(centre)] = centre - reach, centre + reach
    lower[many : len(centre)] = np.maximum(lower[many : len(centre)], 0.0)
    lower[len(centre) + groups :] = 0.0
    cost = np.zeros(size)
    cost[len(centre) :] = [*counts, *(count for count, _ in sets.others)]
    at, of = np.nonzero(matrix)
    row_upper = np.where(sides > 0, sides, np.inf)
    best = least_cost(cost, lower, MatrixEntries(at, of, matrix[at, of]), sides, row_upper, upper)
    assert best is not None  # the centre is feasible
    trial: Floats = np.maximum(best.x[: len(centre)], lower[: len(centre)])  # undo tolerances
    return trial, best.value / sets.devices - 1.0


def sets_by_hubs(
    task: Task[Throughput], graph: Hypergraph, order: Ints, limit: float
) -> HubSets | None:
    """Return the sets of each case of hubs, in plans within a limit; None without hubs."""
    costs, weight = task.costs, graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), costs.count, 0).argmax())
    shape = graph.incidence
    hubs = np.flatnonzero(np.diff(shape.unit_ptr) > HUB_NETS)
    if not len(hubs) or not costs.count[kind] or not weight[kind].any():
        return None
    hubs = hubs[np.argsort(-touching(graph, weight[kind])[hubs], kind="stable")[:MOST_HUBS]]
    share, work = work_share(task, graph, kind, limit)
    nets = np.flatnonzero((weight[kind] > 0) & (np.diff(shape.net_ptr) <= CHARGED_PINS))
    charged = np.minimum(weight[kind, nets], 2 * limit)  # no larger weight matters
    frontier = relaxed_frontier(graph, nets, charged, order, np.inf, RELAXED_WIDTH)
    if frontier is None or share <= 0:
        return None
    price_of = _price_classes(graph, hubs)
    total = np.bincount(price_of, weights=work)[price_of]
    time = graph.compute.sum(axis=1)
    hubs, may, group = _cases(graph, hubs, convex=ideals_alone(task))
    may[:, :, 1] &= time[kind] <= limit * (1 + PROOF_MARGIN)
    others = [j for j in np.flatnonzero(costs.count).tolist() if j != kind]
    return HubSets(
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


def _price_classes(graph: Hypergraph, hubs: Ints) -> Ints:
    """Return the price class of each unit, by its neighbouring hubs; a hub has its own class."""
    beside = np.zeros((graph.size, len(hubs)), np.int64)
    place = {hub: i for i, hub in enumerate(hubs.tolist())}
    for pins in graph.pins:
        for hub in place.keys() & pins:
            beside[list(pins), place[hub]] = 1
    beside[hubs] = 2 * np.eye(len(hubs), dtype=np.int64)
    return np.unique(beside, axis=0, return_inverse=True)[1].ravel()


def _cases(graph: Hypergraph, hubs: Ints, *, convex: bool) -> tuple[Ints, Bools, Ints]:
    """Return hubs, which units may be left out and taken in each case, (H, U, 2), and groups, (H,).

    Groups are the choices for the hub with the most units on both sides, which comes first. In this
    order: it is in the set; units before it may be; units after it may be. If there is no such hub,
    there is one group.
    """
    order = graph.digraph()
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


def priced(sets: HubSets, point: Floats) -> HubPrices:
    """Return the most valuable set of each case at a point, shape (C + H,).

    A point has prices, then slopes s_h times the limit.
    """
    prices, slopes = np.split(point, [-len(sets.may)])
    value = prices[sets.price_of] * sets.part
    states, size = int(sets.frontier[0][-1]), len(value)
    scratch, members = (np.empty(states), np.empty(states, np.int64)), np.zeros(size)
    worth, load = np.full(len(slopes), -np.inf), np.zeros(len(slopes))
    held = np.zeros((len(slopes) + len(sets.others), size))
    for h, slope in enumerate((slopes / sets.limit).tolist()):
        gain = (value - slope * sets.work)[sets.order]
        worth[h], paid = most_valuable_set(
            sets.frontier, gain, sets.may[h], slope, scratch, members
        )
        if worth[h] > -np.inf:
            held[h, sets.order] = members
            load[h] = (float(held[h] @ sets.work) + paid) / sets.limit
    asked = float(value.sum()) - PROOF_MARGIN * float(np.abs(value).sum())
    for j, (many, time) in enumerate(sets.others, len(slopes)):
        held[j] = knapsack_shares(value, time, sets.limit)
        asked -= many * float(held[j] @ value)
    rows = [np.bincount(sets.price_of, weights=one * sets.part) for one in held]
    return HubPrices(asked, worth, slopes, point, np.array(rows), load)
