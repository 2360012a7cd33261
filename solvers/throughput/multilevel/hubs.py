"""A bound by prices: what a device can hold, by which hubs it has.

A *hub* exchanges data with many units, as the bias of all attention layers and its gradients do:
whichever device has it pays for what all others hold of these. Let π_v be prices of the units,
and kind k one of n_k devices, on which unit v takes p_v. Devices of the other kinds can hold units
worth at most W in all, by a fractional knapsack that counts no transfers; so some device of kind k
holds a set S of

    π(S) ≥ w = (Σ_v π_v − W) / n_k,     and     T ≥ p(S) + transfers(S).                   (1)

Let h be the hubs that S has. For any s_h > 0, then,

    w ≤ π(S) ≤ L_h + s_h T,     L_h = max { π(R) − s_h (p(R) + transfers(R)) : R has just h } (2)

and T ≥ min_h (w − L_h) / s_h. The maximum is one pass through the states of a frontier; nets that
the frontier gives up only make it larger. Without hubs (2) proves no more than the work does, as
the set of all units has no transfers. With them it is near what sets can do, since what a device
with given hubs pays grows in proportion to what it holds.

Units that are next to the same hubs have one price per work. Those and all s_h are found by a
linear program over the sets seen so far, within a box around the best so far (boxstep).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ....formulations.linear_program import Entries, least_cost
from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.search import Search, Stoppable
from ..column_generation.frontier import incidence, relaxed_frontier
from ..dp.stage_dp import knapsack_shares
from .coarsen import touching
from .hubs_kernel import dearest
from .least_load import least_work

ORIGIN = "prices by the hubs of a device"

#: A unit of more nets is a hub; of these at most so many: sets are sought for each subset of them.
NETS, HUBS = 16, 4

#: Nets of more pins are not charged, as each doubles the states of all layers.
PINS = 16

#: Most states between two units.
WIDTH = 256

#: Most rounds of prices, and by which part of w they must promise to be better for another one.
ROUNDS, PROMISED = 60, 1e-5

#: Least slope that is divided by.
TINY = 1e-12

#: First radius of the box, relative to prices and a part of their mean; the part of what is
#: promised that a step must attain.
RADIUS, SMALL, SERIOUS = 0.1, 0.2, 0.1


@dataclass(frozen=True, eq=False)
class _Sets:
    """What devices can hold; U units, H subsets of hubs, C prices.

    Parameters
    ----------
    devices
        n_k.
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
    price_of, part
        Shape (U,): the price that counts for a unit, and the part of it that the unit is worth.
    others
        Of the other kinds: number of devices, and time of each unit, shape (U,).
    """

    devices: float
    limit: float
    order: Ints
    frontier: tuple[Ints, Ints, Floats]
    work: Floats
    may: Bools
    price_of: Ints
    part: Floats
    others: tuple[tuple[float, Floats], ...]


@dataclass(frozen=True, eq=False)
class _Found:
    """What is found at some prices.

    Parameters
    ----------
    excess
        By how much a set within the limit can be worth more than w, at most.
    bound
        What the prices prove.
    rows
        Shape (H + J, C): how much of what each price counts for is in the best set of each subset
        of hubs, and in that of each of J other kinds.
    spare
        Shape (H,): the part of the limit that the sets leave.
    """

    excess: float
    bound: float
    rows: Floats
    spare: Floats


def raise_by_hubs(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Stoppable,
) -> None:
    """Raise the bound by (2), while prices get better and `clock` does not stop it.

    Nothing is proved where transfers overlap compute or devices are linked, nor without hubs.

    Parameters
    ----------
    graph
        Units that must each be on one device.
    order
        Shape (U,): the units in an order of small frontier.
    """
    limit = search.objective
    if task.problem.overlap or task.cluster.links or not np.isfinite(limit):
        return
    sets = _sets(task, graph, order, limit)
    if sets is None:
        return
    work = np.bincount(sets.price_of, weights=sets.work)
    trial = np.concatenate([work, np.full(len(sets.may), limit)])
    trial *= sets.devices / float(work.sum())
    centre, radius, excess, promised = trial, RADIUS, np.inf, 0.0
    known: list[_Found] = []
    for _ in range(ROUNDS):
        found = _priced(sets, trial[: len(work)], trial[len(work) :])
        search.raise_bound(min(found.bound, limit) * (1 - PROOF_MARGIN), ORIGIN)
        known.append(found)
        gained, hoped = excess - found.excess, excess - promised
        if len(known) == 1 or gained >= SERIOUS * hoped:
            radius *= 1.5 if gained >= 0.5 * hoped else 1.0
            centre, excess = trial, found.excess
        elif -gained > hoped:
            radius /= 2
        trial, promised = _better(sets, known, centre, radius)
        if excess - promised < PROMISED or clock.should_stop():
            return


def _sets(task: Task[Throughput], graph: Hypergraph, order: Ints, limit: float) -> _Sets | None:
    """Return what devices can hold; None if nothing can be proved."""
    costs, weight = task.costs, graph.weight.sum(axis=1)
    kind = int(np.where(weight.any(axis=1), costs.count, 0).argmax())
    shape = incidence(graph)
    hubs = np.flatnonzero(np.diff(shape.unit_ptr) > NETS)
    if not len(hubs) or not costs.count[kind] or not weight[kind].any():
        return None
    hubs = hubs[np.argsort(-touching(graph, weight[kind])[hubs], kind="stable")[:HUBS]]
    share, work = least_work(task, graph, kind, limit)
    nets = np.flatnonzero((weight[kind] > 0) & (np.diff(shape.net_ptr) <= PINS))
    most = float(costs.count[kind]) * (limit - share) * (1 + PROOF_MARGIN)
    frontier = relaxed_frontier(graph, nets, weight[kind, nets], order, most, WIDTH)
    if frontier is None or share <= 0:
        return None
    beside = np.zeros((graph.size, len(hubs)), np.int64)
    at = {hub: i for i, hub in enumerate(hubs.tolist())}
    for pins in graph.pins:
        for hub in at.keys() & pins:
            beside[list(pins), at[hub]] = 1
    beside[hubs] = 2 * np.eye(len(hubs), dtype=np.int64)
    _, price_of = np.unique(beside, axis=0, return_inverse=True)
    total = np.bincount(price_of.ravel(), weights=work)[price_of.ravel()]
    patterns = np.array(list(itertools.product((False, True), repeat=len(hubs))))
    time = graph.compute.sum(axis=1)
    may = np.ones((len(patterns), graph.size, 2), np.bool_)
    may[:, :, 1] = np.isfinite(time[kind])
    may[:, hubs, 0] &= ~patterns
    may[:, hubs, 1] &= patterns
    others = [j for j in np.flatnonzero(costs.count).tolist() if j != kind]
    return _Sets(
        devices=float(costs.count[kind]),
        limit=limit,
        order=order,
        frontier=frontier,
        work=work,
        may=may[:, order],
        price_of=price_of.ravel(),
        part=work / np.where(total > 0, total, 1.0),
        others=tuple((float(costs.count[j]), time[j]) for j in others),
    )


def _priced(sets: _Sets, prices: Floats, slopes: Floats) -> _Found:
    """Return what prices prove.

    Parameters
    ----------
    prices
        Shape (C,), with the sum n_k.
    slopes
        Shape (H,): s_h, times the limit.
    """
    value = prices[sets.price_of] * sets.part
    held = [knapsack_shares(value, time, sets.limit) for _, time in sets.others]
    away = sum(many * float(one @ value) for (many, _), one in zip(sets.others, held, strict=True))
    slack = PROOF_MARGIN * float(np.abs(value).sum())
    share = (float(value.sum()) - away - slack) / sets.devices
    excess, bound, spare = -np.inf, np.inf, np.ones(len(slopes))
    best, taken = _best(sets, value, slopes)
    for h, (worth, transfers) in enumerate(best):
        if worth == -np.inf:
            continue
        spare[h] = 1.0 - (float(taken[h] @ sets.work) + transfers) / sets.limit
        excess = max(excess, worth + float(slopes[h]) - share)
        bound = min(bound, (share - worth) * sets.limit / max(float(slopes[h]), TINY))
    rows = [np.bincount(sets.price_of, weights=one * sets.part) for one in (*taken, *held)]
    return _Found(excess, bound, np.array(rows), spare)


def _best(sets: _Sets, value: Floats, slopes: Floats) -> tuple[list[tuple[float, float]], Floats]:
    """Return worth and transfers of the best set for each subset of hubs, and what it holds."""
    layers, step, cost = sets.frontier
    states, size = int(layers[-1]), len(value)
    scratch = np.empty(states), np.empty(states, np.int64), np.zeros(size)
    found, held = [], np.zeros((len(slopes), size))
    for h, slope in enumerate((slopes / sets.limit).tolist()):
        gain = (value - slope * sets.work)[sets.order]
        found.append(dearest(layers, step, cost, gain, sets.may[h], slope, *scratch))
        if found[-1][0] > -np.inf:
            held[h, sets.order] = scratch[2]
    return found, held


def _better(
    sets: _Sets, known: list[_Found], centre: Floats, radius: float
) -> tuple[Floats, float]:
    """Return the prices and slopes near `centre` that promise the least excess, and that excess.

    The variables are prices, slopes, the most that a set is worth, and that of each other kind.
    """
    slopes, kinds = len(sets.may), len(sets.others)
    many = len(centre) - slopes
    size = many + slopes + 1 + kinds
    each = np.zeros((len(known), slopes + kinds, size))
    for row, found in zip(each, known, strict=True):
        row[:, :many] = -found.rows
        row[:slopes, many : many + slopes] = -np.diag(found.spare)
        row[:slopes, many + slopes] = 1.0
        row[slopes:, many + slopes + 1 :] = np.eye(kinds)
    total = (np.arange(size) < many).astype(np.float64)
    matrix = np.vstack([total, each.reshape(-1, size)])
    sides = np.concatenate([[sets.devices], np.zeros(len(matrix) - 1)])
    reach = radius * (np.abs(centre) + SMALL * np.abs(centre).mean())
    lower, upper = np.zeros(size), np.full(size, np.inf)
    lower[: len(centre)], upper[: len(centre)] = centre - reach, centre + reach
    lower[many:] = np.maximum(lower[many:], 0.0)
    cost = np.zeros(size)
    cost[len(centre) :] = [1.0, *(count / sets.devices for count, _ in sets.others)]
    at, of = np.nonzero(matrix)
    row_upper = np.where(sides > 0, sides, np.inf)
    best = least_cost(cost, lower, Entries(at, of, matrix[at, of]), sides, row_upper, upper)
    assert best is not None  # the centre keeps all rows
    return best.x[: len(centre)], best.value - 1.0
