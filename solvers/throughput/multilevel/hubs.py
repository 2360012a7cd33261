"""A bound by prices: what a device can hold, by which hubs it has.

A *hub* exchanges data with many units, as the bias of all attention layers and its gradients do:
whichever device has it pays for what all others hold of these. Let π_v be prices of the units,
and kind k one of n_k devices, on which unit v takes p_v. Devices of the other kinds can hold units
worth at most W in all, by a fractional knapsack that counts no transfers. Of a set S that a device
of kind k holds, let h say which hubs it has. For any s_h ≥ 0,

    π(S) ≤ L_h + s_h T,     L_h = max { π(R) − s_h (p(R) + transfers(R)) : R in case h }.     (1)

The maximum is one pass through the states of a frontier; nets that this gives up only make it
larger. Without hubs, (1) proves no more than the work does, as the set of all units has no
transfers. With them it is near what sets can do: what a device with given hubs pays grows in
proportion to what it holds. All prices are on some device, so

    Σ_v π_v − W ≤ n_k max_h (L_h + s_h T),                                                 (2)

and the least T that keeps this is a bound. A contiguous set without a hub has no unit that comes
before the hub, or none that comes after it: these are cases of their own. Then no more than one
device has a hub with units on both sides; let m of the others hold what comes before it, and the
rest what comes after. For each m, and with the hub on another kind, the right side of (2) is a sum
of maxima over each group of cases, and the least bound of them all holds.

Units that are next to the same hubs have one price per work. Those and all s_h are found by a
linear program over the sets seen so far, within a box around the best so far (boxstep).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ....formulations.linear_program import Entries, least_cost
from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances import Solution, Throughput
from ....instances.common.arrays import Floats, Ints
from ....instances.formats.certificate import HUBS
from ...core.search import Search, Stoppable
from .hub_sets import Priced, Sets, priced, sets_by_hubs

#: Most rounds of prices, and by which part of the limit they must promise to be better for another.
ROUNDS, PROMISED = 60, 1e-5

#: How large prices and slopes may get for each device: where the least load of a case decides, they
#: grow without end.
STEEP = 1e6

#: Halvings of the interval in which a bound lies.
HALVINGS = 40

#: First radius of the box, relative to prices and a part of their mean; the part of what is
#: promised that a step must attain.
RADIUS, SMALL, SERIOUS = 0.1, 0.2, 0.1


def raise_by_hubs(
    task: Task[Throughput],
    graph: Hypergraph,
    order: Ints,
    search: Search[Solution],
    clock: Stoppable,
) -> None:
    """Raise the bound by (2), and then by its sums, unless `clock` stops it.

    Nothing is proved where transfers overlap compute or devices are linked, nor without hubs.

    Parameters
    ----------
    graph
        Units that must each be on one device, with the edges that decide contiguity.
    order
        Shape (U,): the units in an order of small frontier.
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
    known: list[Priced] = []
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


def _covering(group: Ints, divisions: list[Ints], known: list[Priced], part: float) -> list[Priced]:
    """Return a few of the prices, such that some prove a part of the limit for each division."""
    chosen: list[Priced] = []
    for counts in divisions:
        if not any(_excess(one, group, counts, part) < 0 for one in chosen):
            chosen.append(min(known, key=lambda one: _excess(one, group, counts, part)))
    return chosen


def _evidence(
    graph: Hypergraph, sets: Sets, points: list[Priced], target: float
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
    """Return how many devices may have a hub, hold units before it, and hold units after it."""
    return [
        np.array([has, before, devices - has - before])
        for has in (1, 0)
        for before in range(devices - has + 1)
    ]


def _bounds(
    sets: Sets, group: Ints, counts: Ints, start: Floats, known: list[Priced], clock: Stoppable
) -> Iterator[tuple[float, Priced]]:
    """Yield parts of the limit below which so many devices in each group cannot be, and by what.

    They increase, while prices get better.

    Parameters
    ----------
    group
        Shape (H,): of each case.
    start
        Prices and slopes to begin with, if none are known.
    known
        What was priced before; gets what is.
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


def _excess(found: Priced, group: Ints, counts: Ints, part: float) -> float:
    """Return how much more than asked devices can hold within a part of the limit, for each."""
    most = found.worth + part * found.slopes
    held = sum(int(counts[g]) * float(most[group == g].max()) for g in np.flatnonzero(counts))
    return (held - found.asked) / float(counts.sum())


def _proved(found: Priced, group: Ints, counts: Ints) -> float:
    """Return the greatest part of the limit within which devices hold less than asked; or 0."""
    low, high = 0.0, 1.0
    if _excess(found, group, counts, high) < 0:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(found, group, counts, middle) < 0 else (low, middle)
    return low


def _better(
    sets: Sets, group: Ints, counts: Ints, known: list[Priced], box: tuple[Floats, float, float]
) -> tuple[Floats, float]:
    """Return the prices and slopes in a box that promise the least excess, and that excess.

    The variables are prices, slopes, the most that each group holds, and each other kind.

    Parameters
    ----------
    box
        Its centre, its radius, and the part of the limit that counts.
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
    best = least_cost(cost, lower, Entries(at, of, matrix[at, of]), sides, row_upper, upper)
    assert best is not None  # the centre keeps all rows
    trial: Floats = np.maximum(best.x[: len(centre)], lower[: len(centre)])  # but for tolerances
    return trial, best.value / sets.devices - 1.0
