"""Annealing on the loads of all links.

It lowers Σ_l f(load_l / best): the eighth power up to 1, ruled by the busiest links, and little
more above, so that walls between good mappings stay low. A step takes one of a few
random messages, the one with the fullest link on its way, and exchanges the device at one of its
ends with another, exchanges two receivers, or turns a part of a ring.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def _penalty(load):  # type: ignore[no-untyped-def]
    return load**8 if load < 1.0 else 2.0 - 1.0 / load


@njit(cache=True)
def _send(a, b, size, previous, via, ends, weight, load):  # type: ignore[no-untyped-def]
    """Add a message to the loads; return the change of the penalties."""
    change = 0.0
    if size == 0.0 or a == b:
        return change
    low, v = min(a, b), max(a, b)
    while v != low:
        u = previous[low, v]
        k = via[low, v]
        # the walk runs from the higher device to the lower one
        begin = v if b == low else u
        link = 2 * k if ends[k, 0] == begin else 2 * k + 1
        old = load[link]
        new = max(0.0, old + size * weight[k])
        load[link] = new
        change += _penalty(new) - _penalty(old)
        v = u
    return change


@njit(cache=True)
def _fullest(a, b, previous, via, ends, load):  # type: ignore[no-untyped-def]
    """Return the largest load on a route."""
    low, v = min(a, b), max(a, b)
    most = 0.0
    while v != low:
        u = previous[low, v]
        k = via[low, v]
        begin = v if b == low else u
        most = max(most, load[2 * k if ends[k, 0] == begin else 2 * k + 1])
        v = u
    return most


@njit(cache=True)
def _around(  # type: ignore[no-untyped-def]
    p, sign, slot, sends_to, came_from, forward, backward, ring, skip, previous, via, ends,
    weight, load,
):  # fmt: skip
    """Add (or take off) all messages of slot p, but those to the slots `skip` counts already."""
    stages, replicas = sends_to.shape
    change = 0.0
    if p >= stages * replicas:
        return change
    s, i = p // replicas, p % replicas
    if replicas > 1:
        q = s * replicas + (i + 1) % replicas
        if q != skip:
            change += _send(slot[p], slot[q], sign * ring[s], previous, via, ends, weight, load)
        q = s * replicas + (i - 1) % replicas
        if q != skip:
            change += _send(slot[q], slot[p], sign * ring[s], previous, via, ends, weight, load)
    if s + 1 < stages:
        q = (s + 1) * replicas + sends_to[s, i]
        if q != skip:
            change += _send(slot[p], slot[q], sign * forward[s], previous, via, ends, weight, load)
            change += _send(slot[q], slot[p], sign * backward[s], previous, via, ends, weight, load)
    if s > 0:
        t = s - 1
        q = t * replicas + came_from[s, i]
        if q != skip:
            change += _send(slot[q], slot[p], sign * forward[t], previous, via, ends, weight, load)
            change += _send(slot[p], slot[q], sign * backward[t], previous, via, ends, weight, load)
    return change


@njit(cache=True)
def _exchange(  # type: ignore[no-untyped-def]
    a, b, slot, sends_to, came_from, forward, backward, ring, previous, via, ends, weight,
    load,
):  # fmt: skip
    """Exchange the devices of slots a and b; return the change."""
    change = _around(a, -1.0, slot, sends_to, came_from, forward, backward, ring, -1,
                     previous, via, ends, weight, load)  # fmt: skip
    change += _around(b, -1.0, slot, sends_to, came_from, forward, backward, ring, a,
                      previous, via, ends, weight, load)  # fmt: skip
    slot[a], slot[b] = slot[b], slot[a]
    change += _around(a, 1.0, slot, sends_to, came_from, forward, backward, ring, -1,
                      previous, via, ends, weight, load)  # fmt: skip
    change += _around(b, 1.0, slot, sends_to, came_from, forward, backward, ring, a,
                      previous, via, ends, weight, load)  # fmt: skip
    return change


@njit(cache=True)
def _receivers(  # type: ignore[no-untyped-def]
    t, i, j, sign, slot, sends_to, forward, backward, previous, via, ends, weight, load,
):  # fmt: skip
    """Add (or take off) what replicas i and j of stage t exchange with their receivers."""
    replicas = sends_to.shape[1]
    change = 0.0
    for k in (i, j):
        a, b = slot[t * replicas + k], slot[(t + 1) * replicas + sends_to[t, k]]
        change += _send(a, b, sign * forward[t], previous, via, ends, weight, load)
        change += _send(b, a, sign * backward[t], previous, via, ends, weight, load)
    return change


@njit(cache=True)
def _rings(s, sign, slot, ring, replicas, previous, via, ends, weight, load):  # type: ignore[no-untyped-def]
    """Add (or take off) the whole ring of stage s."""
    change = 0.0
    for i in range(replicas):
        a, b = slot[s * replicas + i], slot[s * replicas + (i + 1) % replicas]
        change += _send(a, b, sign * ring[s], previous, via, ends, weight, load)
    return change


@njit(cache=True)
def _turn(s, first, length, slot, sends_to, came_from):  # type: ignore[no-untyped-def]
    """Reverse a part of the ring of stage s; messages to other stages stay with their devices."""
    stages, replicas = sends_to.shape
    for j in range(length // 2):
        x, y = (first + j) % replicas, (first + length - 1 - j) % replicas
        p, q = s * replicas + x, s * replicas + y
        slot[p], slot[q] = slot[q], slot[p]
        if s + 1 < stages:
            sends_to[s, x], sends_to[s, y] = sends_to[s, y], sends_to[s, x]
            came_from[s + 1, sends_to[s, x]], came_from[s + 1, sends_to[s, y]] = x, y
        if s > 0:
            i, j2 = came_from[s, x], came_from[s, y]
            came_from[s, x], came_from[s, y] = j2, i
            sends_to[s - 1, i], sends_to[s - 1, j2] = y, x


@njit(cache=True)
def descend(  # type: ignore[no-untyped-def]
    forward, backward, ring, previous, via, ends, seconds_per_byte, slot, sends_to, scale,
    steps, heat, seed,
):  # fmt: skip
    """Anneal for `steps` steps at one temperature, in place."""
    np.random.seed(seed)
    stages, replicas = sends_to.shape
    used = stages * replicas
    size = len(slot)
    weight = seconds_per_byte / scale
    load = np.zeros(2 * len(ends))
    came_from = np.zeros((stages, replicas), np.int64)
    for s in range(stages - 1):
        for i in range(replicas):
            came_from[s + 1, sends_to[s, i]] = i
    for s in range(stages):
        if replicas > 1:
            _rings(s, 1.0, slot, ring, replicas, previous, via, ends, weight, load)
        if s + 1 < stages:
            for i in range(replicas):
                a, b = slot[s * replicas + i], slot[(s + 1) * replicas + sends_to[s, i]]
                _send(a, b, forward[s], previous, via, ends, weight, load)
                _send(b, a, backward[s], previous, via, ends, weight, load)
    for _ in range(steps):
        # of a few messages, the one with the fullest link on its way
        p, most = 0, -1.0
        for _k in range(4):
            q = np.random.randint(used)
            s, i = q // replicas, q % replicas
            full = 0.0
            if replicas > 1:
                b = slot[s * replicas + (i + 1) % replicas]
                full = _fullest(slot[q], b, previous, via, ends, load)
            if s + 1 < stages:
                b = slot[(s + 1) * replicas + sends_to[s, i]]
                full = max(full, _fullest(slot[q], b, previous, via, ends, load))
                full = max(full, _fullest(b, slot[q], previous, via, ends, load))
            if full > most:
                p, most = q, full
        s, i = p // replicas, p % replicas
        chance = np.random.random()
        if chance < 0.25 and s + 1 < stages and replicas > 1:
            j = np.random.randint(replicas)
            if i == j:
                continue
            change = _receivers(s, i, j, -1.0, slot, sends_to, forward, backward,
                                previous, via, ends, weight, load)  # fmt: skip
            sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
            change += _receivers(s, i, j, 1.0, slot, sends_to, forward, backward,
                                 previous, via, ends, weight, load)  # fmt: skip
            if change > 0 and np.random.random() >= np.exp(-change / heat):
                _receivers(s, i, j, -1.0, slot, sends_to, forward, backward,
                           previous, via, ends, weight, load)  # fmt: skip
                sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
                _receivers(s, i, j, 1.0, slot, sends_to, forward, backward,
                           previous, via, ends, weight, load)  # fmt: skip
            else:
                came_from[s + 1, sends_to[s, i]], came_from[s + 1, sends_to[s, j]] = i, j
        elif chance < 0.4 and replicas > 3 and ring[s] > 0:
            length = 2 + np.random.randint(replicas - 2)
            change = _rings(s, -1.0, slot, ring, replicas, previous, via, ends, weight, load)
            _turn(s, i, length, slot, sends_to, came_from)
            change += _rings(s, 1.0, slot, ring, replicas, previous, via, ends, weight, load)
            if change > 0 and np.random.random() >= np.exp(-change / heat):
                _rings(s, -1.0, slot, ring, replicas, previous, via, ends, weight, load)
                _turn(s, i, length, slot, sends_to, came_from)
                _rings(s, 1.0, slot, ring, replicas, previous, via, ends, weight, load)
        else:
            if np.random.random() < 0.5 and s + 1 < stages:
                p = (s + 1) * replicas + sends_to[s, i]
            q = np.random.randint(size)
            if p == q:
                continue
            change = _exchange(p, q, slot, sends_to, came_from, forward, backward, ring,
                               previous, via, ends, weight, load)  # fmt: skip
            if change > 0 and np.random.random() >= np.exp(-change / heat):
                _exchange(p, q, slot, sends_to, came_from, forward, backward, ring,
                          previous, via, ends, weight, load)  # fmt: skip
