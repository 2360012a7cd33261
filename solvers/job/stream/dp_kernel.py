"""Inner loops of the DP of streams: from every ideal on, all stages that can come next.

The question is always the same: which plans have all TPS_i ≤ T? Partial plans are labels, of which
only undominated ones are kept. A label has the devices used of each kind, the replicas used, and
the stages. Fewer replicas behind never hurt, because they leave fewer microbatches in flight.

At the end, the table of one level of PipeDream's optimizer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.kernel import inner, kernel
from .knapsack_kernel import ROUNDING, least_cost, ratio_rule


class UnitOptions(NamedTuple):
    """The options of units: those of unit i are item[i] … item[i + 1] − 1, with room for more.

    `cost` leaves the synchronisation of weights out, which depends on the replicas; `weight` is
    what it grows with. A size is size_a for each microbatch in flight and size_b.
    """

    item: NDArray[np.int64]
    cost: NDArray[np.float64]
    size_a: NDArray[np.float64]
    size_b: NDArray[np.float64]
    weight: NDArray[np.float64]


class Labels(NamedTuple):
    """Partial plans from the pipeline's end: each is its parent and one more stage.

    `devices` has one column per kind; `made`, shape (n, 4), is the parent, −1 for none, and the
    kind, the degree number and the divisor number of the stage.

    `head` is the first label of each ideal, `following` the next one of the same ideal;
    `tally[0]` labels exist, `tally[1]` is set if a knapsack gave up, and with `tally[2]`
    labels of different numbers of stages are not compared.
    """

    head: NDArray[np.int64]
    ideal: NDArray[np.int64]
    devices: NDArray[np.int64]
    replicas: NDArray[np.int64]
    stages: NDArray[np.int64]
    made: NDArray[np.int64]
    following: NDArray[np.int64]
    tally: NDArray[np.int64]


#: Number of microbatches above any that can be in flight.
UNKNOWN = 2**62


class StreamData(NamedTuple):
    """The task as arrays, the same for every T; see also `Lattice` and `Staging`.

    `devices` (how many) and `slowdown` are by kind. `incident` lists the edges at each unit from
    `incident_start` on, `other` the unit at their other end. `fast` and `light` hold for degree
    number t and unit u the least time, and the least size with one microbatch in flight (`inf`
    without configuration). `kappa` has one row per degree, one column per divisor.
    `apart` has for each two units whether they must be in different stages; no rows for none.
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
    apart: NDArray[np.bool_]
    microbatches: int
    most_replicas: int
    gpipe: bool
    greedy: bool


class Query(NamedTuple):
    """Query for plans: a cap T on TPS, memories, and a cap on stages (0: none).

    `at` says, by number of stages, which ideals can be the last so many; no rows without pins.
    `rest` has for each ideal the speed (Σ 1 / slowdown) of the devices that the units outside it
    need at least, for `within`.
    """

    within: float
    capacity: NDArray[np.float64]
    most_stages: int
    rest: NDArray[np.float64]
    at: NDArray[np.bool_]


@kernel
def in_flight(data, d, behind):
    """Return y of a stage of d replicas with `behind` replicas in the stages after it."""
    if data.gpipe:
        return -(-data.microbatches // d)
    return -(-(behind + d) // d)


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


@kernel
def extend_plans(low, high, data, query, labels, halt):
    """Extend the labels of ideals low … high − 1 by every stage; return the labels.

    It ends at once when another thread sets `halt`, shape (1,).

    All supersets of an ideal are listed by adding units in increasing order: each is met once. It
    is one function, as steps that are functions of their own are not inlined and take far longer.
    """
    size = len(data.incident_start) - 1
    kinds = len(data.devices)
    degrees = len(data.degrees)
    divisors = len(data.divisors)
    slowest = data.slowdown.max()
    exact = len(query.at) > 0
    least_devices = np.zeros(kinds, np.int64)
    devices = np.zeros(kinds, np.int64)
    within = query.within * (1 + ROUNDING)
    rounding = ROUNDING * data.edge_time.sum()
    plain = query.most_stages == 0
    inside = np.zeros(size, np.bool_)
    units = np.zeros(size, np.int64)
    at_ideal = np.zeros(size + 1, np.int64)
    at_step = np.zeros(size + 1, np.int64)
    fast = np.zeros((size + 1, degrees))
    light = np.zeros((size + 1, degrees))
    moved = np.zeros(size + 1)  # transfer time, rounded: it only sorts out what is too slow
    most = len(data.time)
    item = np.zeros(size + 1, np.int64)
    options = UnitOptions(item, np.zeros(most), np.zeros(most), np.zeros(most), np.zeros(most))
    choice = np.zeros(size, np.int64)
    known = np.zeros(divisors, np.bool_)
    quick = np.zeros((divisors, 3))
    fits_to = np.zeros(divisors, np.int64)
    fails_from = np.zeros(divisors, np.int64)
    mine = np.zeros(64, np.int64)
    largest = data.divisors[divisors - 1]
    full = len(labels.head) - 1
    for ideal in range(low, high):
        own = 0
        least_devices[:] = data.devices + 1
        least_replicas = UNKNOWN
        label = labels.head[ideal]
        while label >= 0:
            if own == len(mine):
                mine = np.append(mine, np.zeros(own, np.int64))
            mine[own] = label
            own += 1
            least_devices[:] = np.minimum(least_devices, labels.devices[label])
            least_replicas = min(least_replicas, labels.replicas[label])
            label = labels.following[label]
        if own == 0:
            continue
        depth = 0
        at_ideal[0] = ideal
        at_step[0] = data.start[ideal]
        while depth >= 0:
            if halt[0]:
                return labels
            step = at_step[depth]
            after = units[depth - 1] if depth > 0 else -1
            while step < data.start[at_ideal[depth] + 1] and data.unit[step] <= after:
                step += 1
            if step == data.start[at_ideal[depth] + 1]:
                depth -= 1
                if depth >= 0:
                    inside[units[depth]] = False
                continue
            at_step[depth] = step + 1
            unit, reached = data.unit[step], data.to[step]
            alive = False
            for t in range(degrees):
                fast[depth + 1, t] = fast[depth, t] + data.fast[t, unit]
                light[depth + 1, t] = light[depth, t] + data.light[t, unit]
                for k in range(kinds):
                    reach = min(largest, (data.devices[k] - least_devices[k]) // data.degrees[t])
                    alive |= fast[depth + 1, t] * data.slowdown[k] <= within * reach and light[
                        depth + 1, t
                    ] <= query.capacity[k] * (1 + ROUNDING)
            for i in range(depth if len(data.apart) > 0 else 0):
                alive &= not data.apart[unit, units[i]]
            if not alive:
                continue
            moved[depth + 1] = moved[depth]
            for at in range(data.incident_start[unit], data.incident_start[unit + 1]):
                if inside[data.other[at]]:
                    moved[depth + 1] -= data.edge_time[data.incident[at]]
                else:
                    moved[depth + 1] += data.edge_time[data.incident[at]]
            units[depth] = unit
            inside[unit] = True
            depth += 1
            at_ideal[depth] = reached
            at_step[depth] = data.start[reached]
            if left_over(data, least_devices, 0, 0) - 1 / slowest < query.rest[reached] * (
                1 - ROUNDING
            ):
                continue  # not even one device is left for this stage
            left = 1 if reached < full else 0
            for k in range(kinds):
                for t in range(degrees):
                    degree = data.degrees[t]
                    if light[depth, t] > query.capacity[k] * (1 + ROUNDING):
                        continue
                    quickest = fast[depth, t] * data.slowdown[k]
                    if quickest == np.inf:
                        continue
                    q = 0
                    least = quickest + moved[depth] - rounding
                    transfer = -1.0
                    for _ in range(2):  # with the transfers known roughly, then exactly
                        while q < divisors and data.divisors[q] * within < least:
                            q += 1
                        if q == divisors:
                            break
                        d = data.divisors[q]
                        if left_over(data, least_devices, k, d * degree) < query.rest[reached]:
                            q = divisors
                            break
                        devices[:] = least_devices
                        devices[k] += d * degree
                        if plain and dominated(labels, reached, devices, least_replicas + d):
                            q = divisors
                            break
                        if transfer < 0:
                            transfer = price_stage(data, units[:depth], inside, k, t, options)
                            least = quickest + transfer
                    if q == divisors:
                        continue
                    known[:] = False
                    for a in range(own):
                        label = mine[a]
                        count = labels.stages[label] + 1
                        if 0 < query.most_stages < count + left:
                            continue
                        if exact and not query.at[count, reached]:
                            continue
                        for p in range(q, divisors):
                            d = data.divisors[p]
                            devices[:] = labels.devices[label]
                            if left_over(data, devices, k, d * degree) < query.rest[reached]:
                                break
                            devices[k] += d * degree
                            replicas = labels.replicas[label] + d
                            if replicas + left > data.most_replicas:
                                break
                            if not known[p]:
                                known[p] = True
                                fastest_options(data, p, t, units[:depth], options, quick)
                                fits_to[p] = 0
                                fails_from[p] = UNKNOWN
                            limit = within * d - transfer
                            if quick[p, 0] == np.inf or quick[p, 0] > limit:  # `limit` may be inf
                                continue
                            y = in_flight(data, d, labels.replicas[label])
                            if quick[p, 1] * y + quick[p, 2] > query.capacity[k]:
                                if y >= fails_from[p]:
                                    continue
                                if item[depth] == depth:
                                    continue  # there is nothing to choose
                                if y > fits_to[p]:
                                    both = query.capacity[k], limit
                                    found = configure(
                                        data, options, depth, (data.kappa[t, p], y), both,
                                        True, (choice, labels.tally[1:]),
                                    )  # fmt: skip
                                    if found == np.inf:
                                        fails_from[p] = y
                                        continue
                                    fits_to[p] = y
                            stages = count if query.most_stages > 0 else labels.stages[label]
                            made = label, k, t, p
                            labels = push(labels, reached, devices, replicas, stages, made)
                            break  # more replicas would only cost more
    return labels


@inner
def no_more(some, other):
    """Whether `some` devices are no more than the `other` ones, of every kind."""
    for k in range(len(some)):
        if some[k] > other[k]:
            return False
    return True


@inner
def dominated(labels, ideal, devices, replicas):
    """Whether an ideal has a label with at most so many devices and replicas."""
    label = labels.head[ideal]
    while label >= 0:
        if labels.replicas[label] <= replicas and no_more(labels.devices[label], devices):
            return True
        label = labels.following[label]
    return False


@inner
def push(labels, ideal, devices, replicas, stages, made):
    """Add a label unless another one is at least as good; drop those it is better than."""
    before, other = -1, labels.head[ideal]
    while other >= 0:
        if labels.tally[2] and labels.stages[other] != stages:
            before = other
        elif (
            labels.replicas[other] <= replicas
            and labels.stages[other] <= stages
            and no_more(labels.devices[other], devices)
        ):
            return labels
        elif (
            labels.replicas[other] >= replicas
            and labels.stages[other] >= stages
            and no_more(devices, labels.devices[other])
        ):
            if before < 0:
                labels.head[ideal] = labels.following[other]
            else:
                labels.following[before] = labels.following[other]
        else:
            before = other
        other = labels.following[other]
    new = labels.tally[0]
    if new == len(labels.ideal):
        labels = _longer(labels)
    labels.ideal[new] = ideal
    labels.devices[new] = devices
    labels.replicas[new] = replicas
    labels.stages[new] = stages
    for i in range(4):
        labels.made[new, i] = made[i]
    labels.following[new] = labels.head[ideal]
    labels.head[ideal] = new
    labels.tally[0] += 1
    return labels


@inner
def _longer(labels):
    """Return the labels in arrays of twice the length."""
    more = np.zeros(len(labels.ideal), np.int64)
    return Labels(
        labels.head,
        np.append(labels.ideal, more),
        np.concatenate((labels.devices, np.zeros_like(labels.devices))),
        np.append(labels.replicas, more),
        np.append(labels.stages, more),
        np.concatenate((labels.made, np.zeros_like(labels.made))),
        np.append(labels.following, more),
        labels.tally,
    )


def no_labels(ideals: int, kinds: int, *, by_stages: bool) -> Labels:
    """Return the labels to begin with: nothing planned, nothing used.

    With `by_stages`, labels of different numbers of stages are not compared.
    """

    def room() -> NDArray[np.int64]:
        return np.zeros(1024, np.int64)

    labels = Labels(
        head=np.full(ideals, -1),
        ideal=room(),
        devices=np.zeros((1024, kinds), np.int64),
        replicas=room(),
        stages=room(),
        made=np.zeros((1024, 4), np.int64),
        following=room(),
        tally=np.array([1, 0, int(by_stages)]),
    )
    labels.head[0] = 0
    labels.made[0, 0] = -1
    labels.following[0] = -1
    return labels


@kernel
def price_stage(data, units, inside, k, t, filled):
    """Fill the options of a stage's units on kind k at degree number t; return the transfer time.

    `units` has all and only those `inside`, shape (U,).
    """
    item, cost, size_a, size_b, weight = filled
    transfer = 0.0
    options = 0
    size = len(data.incident_start) - 1
    count = len(units)
    for i in range(count):
        u = units[i]
        for at in range(data.incident_start[u], data.incident_start[u + 1]):
            if not inside[data.other[at]]:
                transfer += data.edge_time[data.incident[at]]
        item[i] = options
        for c in range(data.first[t * size + u], data.first[t * size + u + 1]):
            cost[options] = data.time[c] * data.slowdown[k]
            for at in range(data.sync_start[c], data.sync_start[c + 1]):
                e = data.sync_edge[at]
                if not inside[data.edges[e, 0] + data.edges[e, 1] - u]:
                    cost[options] += data.sync_time[at]
            size_a[options] = data.per_microbatch[c]
            size_b[options] = data.fixed[c]
            weight[options] = data.weight[c]
            options += 1
    item[count] = options
    return transfer


@kernel
def configure(data, given, count, factors, within, decide, out):
    """Return the least Σ cost (times d: without transfer) of one option for each of some units.

    `given` are their `UnitOptions`, `count` is how many they are; `factors` are κ and the
    microbatches in flight; the others are as of `least_cost`.
    """
    kappa, y = factors
    _, cost, size_a, size_b, weight = given
    item = given.item[: count + 1]
    options = item[-1]
    full = cost[:options] + kappa * weight[:options]
    size = size_a[:options] * y + size_b[:options]
    if data.greedy:
        return ratio_rule(item, full, size, within, out[0])
    return least_cost(item, full, size, within, decide, out)


@inner
def fastest_options(data, p, t, units, options, quick):
    """Note cost and sizes of the fastest options for divisor number p; `inf` if p is forbidden."""
    item, cost, size_a, size_b, weight = options
    kappa = data.kappa[t, p]
    quick[p] = 0.0
    for i in range(len(units)):
        if not data.allowed[units[i], p]:
            quick[p, 0] = np.inf
            return
        best = item[i]
        value = cost[best] + kappa * weight[best]
        for o in range(item[i] + 1, item[i + 1]):
            another = cost[o] + kappa * weight[o]
            if another < value:
                best, value = o, another
        quick[p, 0] += value
        quick[p, 1] += size_a[best]
        quick[p, 2] += size_b[best]


@kernel
def divide_level(time, weight, inside, workers, sync):
    """Return A, and for each entry the state k and the m' of its last stage."""
    states = len(time)
    best = np.full((states, states, workers + 1), np.inf)
    cut = np.zeros((states, states, workers + 1), np.int32)
    last = np.zeros((states, states, workers + 1), np.int32)
    for i in range(states):
        for j in range(i + 1, states):
            if not inside[i, j]:
                continue
            for m in range(1, workers + 1):
                best[i, j, m] = (time[i, j] + sync * (m - 1) * weight[i, j] / m) / m
                cut[i, j, m] = i
                last[i, j, m] = m
            for k in range(i + 1, j):
                if not (inside[i, k] and inside[k, j]):
                    continue
                for used in range(1, workers):
                    stage = (time[k, j] + sync * (used - 1) * weight[k, j] / used) / used
                    for m in range(used + 1, workers + 1):
                        value = max(best[i, k, m - used], stage)
                        if value < best[i, j, m]:
                            best[i, j, m] = value
                            cut[i, j, m] = k
                            last[i, j, m] = used
    return best, cut, last
