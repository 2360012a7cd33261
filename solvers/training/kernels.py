"""Inner loops of the training DP: from every ideal on, all stages that can come next.

The question is always the same: which plans have all TPS_i ≤ T?
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .knapsack import ROUNDING, least_cost, ratio_rule
from .labels import dominated, push

#: More microbatches than can be in flight.
UNKNOWN = 2**62


class Board(NamedTuple):
    """What does not change while T does; see `Lattice` and `Staging` for the arrays of theirs.

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


class Ask(NamedTuple):
    """What is asked: a cap T on TPS, memories, a cap on stages (0: none), Σ TPS wanted or not.

    `rest` has for each ideal the speed (Σ 1 / slowdown) of the devices that the units outside it
    need at least, for `within`.
    """

    within: float
    capacity: NDArray[np.float64]
    most_stages: int
    sums: bool
    most_total: float
    rest: NDArray[np.float64]


@njit(cache=True)
def price_stage(board, units, count, inside, k, t, item, cost, size_a, size_b, weight):  # type: ignore[no-untyped-def]
    """Fill the options of a stage's units on kind k at degree number t; return the transfer time.

    `cost` leaves the synchronisation of weights out, which depends on the replicas.
    """
    transfer = 0.0
    options = 0
    size = len(board.incident_start) - 1
    for i in range(count):
        u = units[i]
        for at in range(board.incident_start[u], board.incident_start[u + 1]):
            if not inside[board.other[at]]:
                transfer += board.edge_time[board.incident[at]]
        item[i] = options
        for c in range(board.first[t * size + u], board.first[t * size + u + 1]):
            cost[options] = board.time[c] * board.slowdown[k]
            for at in range(board.sync_start[c], board.sync_start[c + 1]):
                e = board.sync_edge[at]
                if not inside[board.edges[e, 0] + board.edges[e, 1] - u]:
                    cost[options] += board.sync_time[at]
            size_a[options] = board.per_microbatch[c]
            size_b[options] = board.fixed[c]
            weight[options] = board.weight[c]
            options += 1
    item[count] = options
    return transfer


@njit(cache=True)
def configure(  # type: ignore[no-untyped-def]
    board, item, cost, size_a, size_b, weight, kappa, y, capacity, limit, decide, choice, gave_up
):  # fmt: skip
    """Return the least Σ cost (times d: without transfer) of one option per unit."""
    options = item[-1]
    full = cost[:options] + kappa * weight[:options]
    size = size_a[:options] * y + size_b[:options]
    if board.greedy:
        return ratio_rule(item, full, size, capacity, limit, choice)
    return least_cost(item, full, size, capacity, limit, decide, choice, gave_up)


@njit(cache=True)
def in_flight(board, d, behind):  # type: ignore[no-untyped-def]
    """Return y of a stage of d replicas with `behind` replicas in the stages after it."""
    if board.gpipe:
        return -(-board.microbatches // d)
    return -(-(behind + d) // d)


@njit(cache=True)
def left_over(board, used, k, more):  # type: ignore[no-untyped-def]
    """Return the speed of the devices left if `more` of kind k are taken too; −1 if too many."""
    speed = 0.0
    for i in range(len(used)):
        left = board.devices[i] - used[i] - (more if i == k else 0)
        if left < 0:
            return -1.0
        speed += left / board.slowdown[i]
    return speed


@njit(cache=True, nogil=True)
def grow(low, high, board, ask, labels, halt):  # type: ignore[no-untyped-def]
    """Extend the labels of ideals low … high − 1 by every stage; return the labels.

    It ends at once when another thread sets `halt`, shape (1,).

    All supersets of an ideal are listed by adding units in increasing order: each is met once.
    """
    size = len(board.incident_start) - 1
    kinds = len(board.devices)
    degrees = len(board.degrees)
    divisors = len(board.divisors)
    slowest = board.slowdown.max()
    least_devices = np.zeros(kinds, np.int64)
    devices = np.zeros(kinds, np.int64)
    within = ask.within * (1 + ROUNDING)
    rounding = ROUNDING * board.edge_time.sum()
    plain = not ask.sums and ask.most_stages == 0
    inside = np.zeros(size, np.bool_)
    units = np.zeros(size, np.int64)
    at_ideal = np.zeros(size + 1, np.int64)
    at_step = np.zeros(size + 1, np.int64)
    fast = np.zeros((size + 1, degrees))
    light = np.zeros((size + 1, degrees))
    moved = np.zeros(size + 1)  # transfer time, rounded: it only sorts out what is too slow
    item = np.zeros(size + 1, np.int64)
    most = len(board.time)
    cost, size_a, size_b, weight = np.zeros(most), np.zeros(most), np.zeros(most), np.zeros(most)
    choice = np.zeros(size, np.int64)
    known = np.zeros(divisors, np.bool_)
    quick = np.zeros((divisors, 3))
    fits_to = np.zeros(divisors, np.int64)
    fails_from = np.zeros(divisors, np.int64)
    mine = np.zeros(64, np.int64)
    largest = board.divisors[divisors - 1]
    full = len(labels.head) - 1
    for ideal in range(low, high):
        own = 0
        least_devices[:] = board.devices + 1
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
        at_step[0] = board.start[ideal]
        while depth >= 0:
            if halt[0]:
                return labels
            step = at_step[depth]
            after = units[depth - 1] if depth > 0 else -1
            while step < board.start[at_ideal[depth] + 1] and board.unit[step] <= after:
                step += 1
            if step == board.start[at_ideal[depth] + 1]:
                depth -= 1
                if depth >= 0:
                    inside[units[depth]] = False
                continue
            at_step[depth] = step + 1
            unit, reached = board.unit[step], board.to[step]
            alive = False
            for t in range(degrees):
                fast[depth + 1, t] = fast[depth, t] + board.fast[t, unit]
                light[depth + 1, t] = light[depth, t] + board.light[t, unit]
                for k in range(kinds):
                    reach = min(largest, (board.devices[k] - least_devices[k]) // board.degrees[t])
                    alive |= fast[depth + 1, t] * board.slowdown[k] <= within * reach and light[
                        depth + 1, t
                    ] <= ask.capacity[k] * (1 + ROUNDING)
            if not alive:
                continue
            moved[depth + 1] = moved[depth]
            for at in range(board.incident_start[unit], board.incident_start[unit + 1]):
                if inside[board.other[at]]:
                    moved[depth + 1] -= board.edge_time[board.incident[at]]
                else:
                    moved[depth + 1] += board.edge_time[board.incident[at]]
            units[depth] = unit
            inside[unit] = True
            depth += 1
            at_ideal[depth] = reached
            at_step[depth] = board.start[reached]
            if left_over(board, least_devices, 0, 0) - 1 / slowest < ask.rest[reached] * (
                1 - ROUNDING
            ):
                continue  # not even one device is left for this stage
            left = 1 if reached < full else 0
            for k in range(kinds):
                for t in range(degrees):
                    degree = board.degrees[t]
                    if light[depth, t] > ask.capacity[k] * (1 + ROUNDING):
                        continue
                    quickest = fast[depth, t] * board.slowdown[k]
                    if quickest == np.inf:
                        continue
                    q = 0
                    least = quickest + moved[depth] - rounding
                    transfer = -1.0
                    for _ in range(2):  # with the transfers known roughly, then exactly
                        while q < divisors and board.divisors[q] * within < least:
                            q += 1
                        if q == divisors:
                            break
                        d = board.divisors[q]
                        if left_over(board, least_devices, k, d * degree) < ask.rest[reached]:
                            q = divisors
                            break
                        devices[:] = least_devices
                        devices[k] += d * degree
                        if plain and dominated(labels, reached, devices, least_replicas + d):
                            q = divisors
                            break
                        if transfer < 0:
                            transfer = price_stage(
                                board, units, depth, inside, k, t, item, cost, size_a, size_b,
                                weight,
                            )  # fmt: skip
                            least = quickest + transfer
                    if q == divisors:
                        continue
                    known[:] = False
                    for a in range(own):
                        label = mine[a]
                        if (
                            ask.most_stages > 0
                            and labels.stages[label] + 1 + left > ask.most_stages
                        ):
                            continue
                        for p in range(q, divisors):
                            d = board.divisors[p]
                            devices[:] = labels.devices[label]
                            if left_over(board, devices, k, d * degree) < ask.rest[reached]:
                                break
                            devices[k] += d * degree
                            replicas = labels.replicas[label] + d
                            if replicas + left > board.most_replicas:
                                break
                            if not known[p]:
                                known[p] = True
                                _look(
                                    board, p, t, units, depth, item, cost, size_a, size_b, weight,
                                    quick,
                                )  # fmt: skip
                                fits_to[p] = 0
                                fails_from[p] = UNKNOWN
                            limit = within * d - transfer
                            if quick[p, 0] > limit:
                                continue
                            y = in_flight(board, d, labels.replicas[label])
                            found = quick[p, 0]
                            if quick[p, 1] * y + quick[p, 2] > ask.capacity[k]:
                                if y >= fails_from[p]:
                                    continue
                                if item[depth] == depth:
                                    continue  # there is nothing to choose
                                if y > fits_to[p] or ask.sums:
                                    found = configure(
                                        board, item[: depth + 1], cost, size_a, size_b, weight,
                                        board.kappa[t, p], y, ask.capacity[k], limit,
                                        not ask.sums, choice, labels.tally[1:],
                                    )  # fmt: skip
                                    if found == np.inf:
                                        fails_from[p] = y
                                        continue
                                    fits_to[p] = y
                            total = labels.total[label]
                            if ask.sums:
                                total += (found + transfer) / d
                                if total > ask.most_total:
                                    continue
                            stages = labels.stages[label] + (1 if ask.most_stages > 0 else 0)
                            labels = push(
                                labels, reached, devices, replicas, stages, total, label, k, t, p
                            )
                            if not ask.sums:
                                break  # more replicas would only cost more
    return labels


@njit(cache=True)
def _look(board, p, t, units, count, item, cost, size_a, size_b, weight, quick):  # type: ignore[no-untyped-def]
    """Note cost and sizes of the fastest options for divisor number p; `inf` if p is forbidden."""
    kappa = board.kappa[t, p]
    quick[p] = 0.0
    for i in range(count):
        if not board.allowed[units[i], p]:
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


@njit(cache=True)
def ideal_sums(start, unit, to, value):  # type: ignore[no-untyped-def]
    """Return Σ value over the units of each ideal."""
    sums = np.zeros(len(start) - 1)
    for ideal in range(len(start) - 1):
        for step in range(start[ideal], start[ideal + 1]):
            sums[to[step]] = sums[ideal] + value[unit[step]]
    return sums
