"""Kernels of the annealing: what the edges of a mapping cost, and the moves that change them.

Edges have numbers: e < S·R is the ring message of position e, S·R + e what it sends to the next
stage. Moves: exchange of two slots' devices, exchange of two receivers, reversal of a part of a
ring.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def pair_cost(latency, inverse, factors, a, b):  # type: ignore[no-untyped-def]
    """What a message from a to b costs."""
    return factors[0] * latency[a, b] + factors[1] * inverse[a, b]


@njit(cache=True)
def edge_cost(e, latency, inverse, boundary, ring, slot, sends_to, stages, replicas):  # type: ignore[no-untyped-def]
    """What edge e costs; 0 where there is none."""
    used = stages * replicas
    if e < used:
        s, i = e // replicas, e % replicas
        if replicas < 2 or (replicas == 2 and i == 1):  # the two links of such a ring are one
            return 0.0
        after = s * replicas + (i + 1) % replicas
        return pair_cost(latency, inverse, ring[s], slot[e], slot[after])
    s, i = (e - used) // replicas, (e - used) % replicas
    if s + 1 >= stages:
        return 0.0
    after = (s + 1) * replicas + sends_to[s, i]
    return pair_cost(latency, inverse, boundary[s], slot[e - used], slot[after])


@njit(cache=True)
def admitted(order, d, factors, latency, inverse, upper_bound):  # type: ignore[no-untyped-def]
    """How many devices, in the order of routes from d, cost at most `upper_bound`."""
    low, high = 0, order.shape[1]
    while low < high:
        middle = (low + high) // 2
        if pair_cost(latency, inverse, factors, d, order[d, middle]) <= upper_bound:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def edges_of_slot(k, came_from, stages, replicas, touched, n):  # type: ignore[no-untyped-def]
    """Write the edges at slot k to touched[n:], each once; return the new n."""
    used = stages * replicas
    if k >= used:
        return n
    s, i = k // replicas, k % replicas
    if replicas > 1:
        n = _add(touched, n, k)
        n = _add(touched, n, s * replicas + (i - 1) % replicas)
    if s + 1 < stages:
        n = _add(touched, n, used + k)
    if s > 0:
        n = _add(touched, n, used + (s - 1) * replicas + came_from[s, i])
    return n


@njit(cache=True)
def _add(touched, n, e):  # type: ignore[no-untyped-def]
    for j in range(n):
        if touched[j] == e:
            return n
    touched[n] = e
    return n + 1


@njit(cache=True)
def exchange_receivers(sends_to, came_from, s, i, j):  # type: ignore[no-untyped-def]
    """Let replicas i and j of stage s send to each other's receivers."""
    sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
    came_from[s + 1, sends_to[s, i]] = i
    came_from[s + 1, sends_to[s, j]] = j


@njit(cache=True)
def reverse(slot, place, sends_to, came_from, s, first, length, replicas, stages):  # type: ignore[no-untyped-def]
    """Reverse `length` positions of the ring of stage s from `first` on, receivers with them."""
    for j in range(length // 2):
        x, y = (first + j) % replicas, (first + length - 1 - j) % replicas
        k, q = s * replicas + x, s * replicas + y
        slot[k], slot[q] = slot[q], slot[k]
        place[slot[k]], place[slot[q]] = k, q
        if s + 1 < stages:
            exchange_receivers(sends_to, came_from, s, x, y)
        if s > 0:
            exchange_receivers(sends_to, came_from, s - 1, came_from[s, x], came_from[s, y])


@njit(cache=True)
def places(slot, sends_to):  # type: ignore[no-untyped-def]
    """Where each device stands, and from which replica each receives."""
    stages, replicas = sends_to.shape
    place = np.empty(len(slot), np.int64)
    for k in range(len(slot)):
        place[slot[k]] = k
    came_from = np.zeros((stages, replicas), np.int64)
    for s in range(stages - 1):
        for i in range(replicas):
            came_from[s + 1, sends_to[s, i]] = i
    return place, came_from


@njit(cache=True)
def violated_edge(  # type: ignore[no-untyped-def]
    latency, inverse, boundary, ring, slot, sends_to, s, start, message_bound, ring_bound
):
    """The first edge of stage s above its upper bound, from number `start` on.

    Returns its ends as slots, and whether it is on the ring; −1 and −1 if there is none.
    """
    stages, replicas = sends_to.shape
    used = stages * replicas
    for j in range(2 * replicas):
        i = (start + j) % (2 * replicas)
        on_ring = i < replicas
        near = s * replicas + i % replicas
        e = near if on_ring else used + near
        cost = edge_cost(e, latency, inverse, boundary, ring, slot, sends_to, stages, replicas)
        if cost > (ring_bound if on_ring else message_bound):
            if on_ring:
                return near, s * replicas + (i + 1) % replicas, True
            return near, (s + 1) * replicas + sends_to[s, i - replicas], False
    return -1, -1, False


@njit(cache=True)
def violation_left(violation):  # type: ignore[no-untyped-def]
    """Sum over stages of the violation of the best split."""
    left = 0.0
    for s in range(len(violation)):
        left += violation[s, best_split(violation, s)]
    return left


@njit(cache=True)
def best_split(violation, s):  # type: ignore[no-untyped-def]
    """The split of stage s with the least violation (`argmin` takes numba longer to compile)."""
    best = 0
    for k in range(1, violation.shape[1]):
        if violation[s, k] < violation[s, best]:
            best = k
    return best


@njit(cache=True)
def copy_row(target, source, s):  # type: ignore[no-untyped-def]
    """Copy row s."""
    for k in range(source.shape[1]):
        target[s, k] = source[s, k]
