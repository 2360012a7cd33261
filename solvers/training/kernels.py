"""Inner loops of the training DP: from every ideal on, all stages that can come next.

The question is always the same: which plans have all TPS_i ≤ T?
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.model.arrays import Bools, Floats, Ints
from ...instances.model.kernel import inner, kernel
from .knapsack import ROUNDING
from .labels import dominated, push
from .options_kernel import Options, configure, in_flight, look, price_stage

#: More microbatches than can be in flight.
UNKNOWN = 2**62


class TrainingData(NamedTuple):
    """The task as arrays, the same for every T; see also `Lattice` and `Staging`.

    `devices` (how many) and `slowdown` are by kind. `incident` lists the edges at each unit from
    `incident_start` on, `other` the unit at their other end. `fast` and `light` hold for degree
    number t and unit u the least time, and the least size with one microbatch in flight (`inf`
    without configuration). `kappa` has one row per degree, one column per divisor.
    """

    start: NDArray[np.int64]
    unit: NDArray[np.int32]
    to: NDArray[np.int32]
    devices: NDArray[np.int64]
    slowdown: NDArray[np.float64]
    degrees: NDArray[np.int64]
    first: NDArray[np.int64]
    time: NDArray[np.float64]
    weight: NDArray[np.float64]
    per_microbatch: NDArray[np.float64]
    fixed: NDArray[np.float64]
    sync_start: NDArray[np.int64]
    sync_edge: NDArray[np.int64]
    sync_time: NDArray[np.float64]
    edges: NDArray[np.int64]
    edge_time: NDArray[np.float64]
    incident_start: NDArray[np.int64]
    incident: NDArray[np.int64]
    other: NDArray[np.int64]
    fast: NDArray[np.float64]
    light: NDArray[np.float64]
    kappa: NDArray[np.float64]
    divisors: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    microbatches: int
    most_replicas: int
    gpipe: bool
    greedy: bool


class Query(NamedTuple):
    """Which plans are wanted: a cap T on TPS, memories, a cap on stages (0: none), and whether
    Σ TPS shall be least.

    `rest` has for each ideal the speed (Σ 1 / slowdown) of the devices that the units outside it
    need at least, for `within`.
    """

    within: float
    capacity: NDArray[np.float64]
    most_stages: int
    sums: bool
    most_total: float
    rest: NDArray[np.float64]


@inner
def left_over(data, used, k, more):
    """Return the speed of the devices left if `more` of kind k are taken too; −1 if too many."""
    speed = 0.0
    for i in range(len(used)):
        left = data.devices[i] - used[i] - (more if i == k else 0)
        if left < 0:
            return -1.0
        speed += left / data.slowdown[i]
    return speed


class Stage(NamedTuple):
    """The stage that is being grown: D = U + 1 depths, T degrees, K kinds, P divisors."""

    units: Ints  # (U,)
    inside: Bools  # (U,)
    fast: Floats  # (D, T) least time of its units
    light: Floats  # (D, T) least size
    moved: Floats  # (D,) transfer time, rounded: it only sorts out what is too slow
    options: Options
    choice: Ints  # (U,)
    known: Bools  # (P,) whether the three below hold for a divisor
    quick: Floats  # (P, 3) cost and sizes of the fastest options
    fits_to: Ints  # (P,) most microbatches in flight that are known to fit
    fails_from: Ints  # (P,) fewest that are known not to
    devices: Ints  # (K,) room to work in
    least_devices: Ints  # (K,) that any label of the ideal uses
    least_replicas: Ints  # (1,) the same
    rounding: float  # what `moved` may be off by


@inner
def _new_stage(data):
    """Return room for a stage."""
    size, kinds = len(data.incident_start) - 1, len(data.devices)
    degrees, divisors, most = len(data.degrees), len(data.divisors), len(data.time)
    return Stage(
        np.zeros(size, np.int64),
        np.zeros(size, np.bool_),
        np.zeros((size + 1, degrees)),
        np.zeros((size + 1, degrees)),
        np.zeros(size + 1),
        Options(
            np.zeros(size + 1, np.int64),
            np.zeros(most),
            np.zeros(most),
            np.zeros(most),
            np.zeros(most),
        ),
        np.zeros(size, np.int64),
        np.zeros(divisors, np.bool_),
        np.zeros((divisors, 3)),
        np.zeros(divisors, np.int64),
        np.zeros(divisors, np.int64),
        np.zeros(kinds, np.int64),
        np.zeros(kinds, np.int64),
        np.zeros(1, np.int64),
        ROUNDING * data.edge_time.sum(),
    )


@kernel
def extend_plans(low, high, data, query, labels, halt):
    """Extend the labels of ideals low … high − 1 by every stage; return the labels.

    It ends at once when another thread sets `halt`, shape (1,).

    All supersets of an ideal are listed by adding units in increasing order: each is met once.
    """
    size = len(data.incident_start) - 1
    slowest = data.slowdown.max()
    stage = _new_stage(data)
    at_ideal = np.zeros(size + 1, np.int64)
    at_step = np.zeros(size + 1, np.int64)
    mine = np.zeros(64, np.int64)
    for ideal in range(low, high):
        own = _count_labels(data, labels, stage, ideal)
        if own == 0:
            continue
        if own > len(mine):
            mine = np.zeros(2 * own, np.int64)
        label = labels.head[ideal]
        for a in range(own):
            mine[a] = label
            label = labels.following[label]
        depth = 0
        at_ideal[0] = ideal
        at_step[0] = data.start[ideal]
        while depth >= 0:
            if halt[0]:
                return labels
            step = at_step[depth]
            after = stage.units[depth - 1] if depth > 0 else -1
            while step < data.start[at_ideal[depth] + 1] and data.unit[step] <= after:
                step += 1
            if step == data.start[at_ideal[depth] + 1]:
                depth -= 1
                if depth >= 0:
                    stage.inside[stage.units[depth]] = False
                continue
            at_step[depth] = step + 1
            if not _add_unit(data, query, stage, depth, data.unit[step]):
                continue
            reached = data.to[step]
            depth += 1
            at_ideal[depth] = reached
            at_step[depth] = data.start[reached]
            if left_over(data, stage.least_devices, 0, 0) - 1 / slowest < query.rest[reached] * (
                1 - ROUNDING
            ):
                continue  # not even one device is left for this stage
            for k in range(len(data.devices)):
                for t in range(len(data.degrees)):
                    q, transfer = _first_divisor(data, query, stage, labels, reached, depth, k, t)
                    if q < len(data.divisors):
                        labels = _close(
                            data, query, stage, labels, mine[:own], reached, depth, (k, t, q),
                            transfer,
                        )  # fmt: skip
    return labels


@inner
def _count_labels(data, labels, stage, ideal):
    """Count the labels of an ideal, and note the least devices and replicas that any uses."""
    count = 0
    for k in range(len(data.devices)):
        stage.least_devices[k] = data.devices[k] + 1
    stage.least_replicas[0] = UNKNOWN
    label = labels.head[ideal]
    while label >= 0:
        count += 1
        for k in range(len(data.devices)):
            stage.least_devices[k] = min(stage.least_devices[k], labels.devices[label, k])
        stage.least_replicas[0] = min(stage.least_replicas[0], labels.replicas[label])
        label = labels.following[label]
    return count


@inner
def _add_unit(data, query, stage, depth, unit):
    """Add a unit to the stage of `depth` units, if it may then still be fast and light enough."""
    largest = data.divisors[len(data.divisors) - 1]
    within = query.within * (1 + ROUNDING)
    alive = False
    for t in range(len(data.degrees)):
        stage.fast[depth + 1, t] = stage.fast[depth, t] + data.fast[t, unit]
        stage.light[depth + 1, t] = stage.light[depth, t] + data.light[t, unit]
        for k in range(len(data.devices)):
            reach = min(largest, (data.devices[k] - stage.least_devices[k]) // data.degrees[t])
            quick = stage.fast[depth + 1, t] * data.slowdown[k] <= within * reach
            alive |= quick and stage.light[depth + 1, t] <= query.capacity[k] * (1 + ROUNDING)
    if not alive:
        return False
    stage.moved[depth + 1] = stage.moved[depth]
    for at in range(data.incident_start[unit], data.incident_start[unit + 1]):
        if stage.inside[data.other[at]]:
            stage.moved[depth + 1] -= data.edge_time[data.incident[at]]
        else:
            stage.moved[depth + 1] += data.edge_time[data.incident[at]]
    stage.units[depth] = unit
    stage.inside[unit] = True
    return True


@inner
def _first_divisor(data, query, stage, labels, reached, depth, k, t):
    """Return the least divisor number that may do on kind k at degree number t, and the transfers.

    The options of the units are then filled in. As many as there are divisors if none will do.
    """
    divisors, none = len(data.divisors), len(data.divisors)
    within = query.within * (1 + ROUNDING)
    quickest = stage.fast[depth, t] * data.slowdown[k]
    if stage.light[depth, t] > query.capacity[k] * (1 + ROUNDING) or quickest == np.inf:
        return none, 0.0
    q, transfer = 0, -1.0
    least = quickest + stage.moved[depth] - stage.rounding
    for _ in range(2):  # with the transfers known roughly, then exactly
        while q < divisors and data.divisors[q] * within < least:
            q += 1
        if q == divisors:
            break
        d = data.divisors[q]
        more = d * data.degrees[t]
        if left_over(data, stage.least_devices, k, more) < query.rest[reached]:
            return none, 0.0
        for i in range(len(stage.devices)):
            stage.devices[i] = stage.least_devices[i] + (more if i == k else 0)
        if not query.sums and query.most_stages == 0:
            replicas = stage.least_replicas[0] + d
            if dominated(labels, reached, stage.devices, replicas):
                return none, 0.0
        if transfer < 0:
            transfer = price_stage(data, stage.units, depth, stage.inside, k, t, stage.options)
            least = quickest + transfer
    return q, transfer


@inner
def _close(data, query, stage, labels, mine, reached, depth, numbers, transfer):
    """Extend the labels `mine` by the stage, on kind k at degree number t; return the labels.

    `numbers` are k, t, and the least divisor number; `transfer` is the stage's transfer time.
    """
    k, t, q = numbers
    left = 1 if reached < len(labels.head) - 1 else 0
    for p in range(len(data.divisors)):
        stage.known[p] = False
    for label in mine:
        if query.most_stages > 0 and labels.stages[label] + 1 + left > query.most_stages:
            continue
        for p in range(q, len(data.divisors)):
            d = data.divisors[p]
            for i in range(len(stage.devices)):
                stage.devices[i] = labels.devices[label, i]
            if left_over(data, stage.devices, k, d * data.degrees[t]) < query.rest[reached]:
                break
            stage.devices[k] += d * data.degrees[t]
            replicas = labels.replicas[label] + d
            if replicas + left > data.most_replicas:
                break
            y = in_flight(data, d, labels.replicas[label])
            limit = query.within * (1 + ROUNDING) * d - transfer
            found = _least(data, query, stage, labels, depth, (k, t, p), y, limit)
            if found == np.inf:
                continue
            total = labels.total[label]
            if query.sums:
                total += (found + transfer) / d
                if total > query.most_total:
                    continue
            stages = labels.stages[label] + (1 if query.most_stages > 0 else 0)
            labels = push(labels, reached, stage.devices, replicas, stages, total, label, (k, t, p))
            if not query.sums:
                break  # more replicas would only cost more
    return labels


@inner
def _least(data, query, stage, labels, depth, numbers, y, limit):
    """Return what the stage costs at least with y microbatches in flight; `inf` above the limit.

    Without `query.sums` any cost within the limit will do. `numbers` are those of kind, degree and
    divisor.
    """
    k, t, p = numbers
    if not stage.known[p]:
        stage.known[p] = True
        look(data, p, t, stage.units, depth, stage.options, stage.quick)
        stage.fits_to[p] = 0
        stage.fails_from[p] = UNKNOWN
    found = stage.quick[p, 0]
    if found > limit:
        return np.inf
    if stage.quick[p, 1] * y + stage.quick[p, 2] <= query.capacity[k]:
        return found
    # too large, and perhaps there is nothing to choose
    if y >= stage.fails_from[p] or stage.options.item[depth] == depth:
        return np.inf
    if y > stage.fits_to[p] or query.sums:
        found = configure(
            data, stage.options, depth, data.kappa[t, p], y, query.capacity[k], limit,
            not query.sums, stage.choice, labels.tally[1:],
        )  # fmt: skip
        if found == np.inf:
            stage.fails_from[p] = y
        else:
            stage.fits_to[p] = y
    return found
