"""Cost of the annealing: the loads of all links.

It is Σ_l f(load_l / best): the eighth power up to 1, ruled by the busiest links, and little more
above, so that barriers between good mappings stay low. A step takes the message with the fullest
link on its route, of a few random ones. It exchanges the device at one of its ends with another,
exchanges two receivers, or reverses a part of a ring.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import uncounted
from .anneal_kernel import (
    EXCHANGE,
    RECEIVERS,
    REVERSE,
    apply_move,
    below,
    edge_ends,
    for_cost,
    touched_edges,
    uniform,
    write_move,
)


class LinkLoads(NamedTuple):
    """Loads of L links in both directions, relative to the incumbent's busiest."""

    forward: Floats  # (S,) bytes of a message to the next stage
    backward: Floats  # (S,) bytes back
    ring: Floats  # (S,) bytes of a ring's link
    previous: NDArray[np.int32]  # (D, D) the device before on the route from the lower one
    via: NDArray[np.int32]  # (D, D) the link to it
    ends: Ints  # (L, 2)
    weight: Floats  # (L,) per byte
    load: Floats  # (2L,)
    touched: Ints  # scratch for edges


@uncounted
def _penalty(load):
    """Penalty of a link by its load over the incumbent: the eighth power below 1, then flat."""
    if load >= 1.0:
        return 2.0 - 1.0 / load
    square = load * load
    return (square * square) * (square * square)


@uncounted
def _step(cost, a, b, v):
    """The next device on the route from the higher of a and b to the lower, and the link's load.

    Returns the device, the link and its direction as an index of `load`.
    """
    low = min(a, b)
    u, k = cost.previous[low, v], cost.via[low, v]
    begin = v if b == low else u
    return u, k, 2 * k if cost.ends[k, 0] == begin else 2 * k + 1


@uncounted
def _send(cost, a, b, size):
    """Add a message to the loads; return the change of the penalties."""
    change = 0.0
    if size == 0.0 or a == b:
        return change
    low, v = min(a, b), max(a, b)
    while v != low:
        v, k, link = _step(cost, a, b, v)
        old = cost.load[link]
        new = max(0.0, old + size * cost.weight[k])
        cost.load[link] = new
        change += _penalty(new) - _penalty(old)
    return change


@uncounted
def _fullest(cost, a, b):
    """Return the largest load on a route."""
    low, v = min(a, b), max(a, b)
    most = 0.0
    while v != low:
        v, _k, link = _step(cost, a, b, v)
        most = max(most, cost.load[link])
    return most


@uncounted
def _add_edge(cost, state, e, sign):
    """Add the messages of edge e to the loads, or subtract them; return the change of the cost."""
    p, q = edge_ends(e, state)
    if p < 0:
        return 0.0
    s = p // state.sends_to.shape[1]
    a, b = state.slot[p], state.slot[q]
    if e < state.sends_to.size:
        return _send(cost, a, b, sign * cost.ring[s])
    change = _send(cost, a, b, sign * cost.forward[s])
    return change + _send(cost, b, a, sign * cost.backward[s])


@uncounted
def _begin(cost, state):
    """Compute the loads of a state from all messages."""
    cost.load[:] = 0.0
    for e in range(2 * state.sends_to.size):
        _add_edge(cost, state, e, 1.0)


@uncounted
def _propose(cost, state, moves):
    """Write a step from the message with the fullest link, of a few random ones."""
    stages, replicas = state.sends_to.shape
    slot = state.slot
    p, most = 0, -1.0
    for _ in range(4):
        q = below(state.random, stages * replicas)
        s = q // replicas
        full = 0.0
        if replicas > 1:
            _q, b = edge_ends(q, state)
            full = _fullest(cost, slot[q], slot[b])
        if s + 1 < stages:
            b = (s + 1) * replicas + state.sends_to[s, q % replicas]
            full = max(full, _fullest(cost, slot[q], slot[b]))
            full = max(full, _fullest(cost, slot[b], slot[q]))
        if full > most:
            p, most = q, full
    s, i = p // replicas, p % replicas
    chance = uniform(state.random)
    if chance < 0.25 and s + 1 < stages and replicas > 1:
        j = below(state.random, replicas)
        return 0 if i == j else write_move(moves, 0, RECEIVERS, s, i, j)
    if chance < 0.4 and replicas > 3 and cost.ring[s] > 0:
        length = 2 + below(state.random, replicas - 2)
        return write_move(moves, 0, REVERSE, s, i, length)
    if uniform(state.random) < 0.5 and s + 1 < stages:
        p = (s + 1) * replicas + state.sends_to[s, i]
    q = below(state.random, len(slot))
    return 0 if p == q else write_move(moves, 0, EXCHANGE, slot[p], slot[q], 0)


@uncounted
def _make(cost, state, move):
    """Apply a move to state and loads; return the change."""
    n = touched_edges(move, state, True, cost.touched)
    change = 0.0
    for j in range(n):
        change += _add_edge(cost, state, cost.touched[j], -1.0)
    apply_move(move, state)
    for j in range(n):
        change += _add_edge(cost, state, cost.touched[j], 1.0)
    return change


@uncounted
def _undo(cost, state, move):
    """Undo a move in the state and in the loads."""
    _make(cost, state, move)


@uncounted
def _end_step(_cost, _accepted):
    """`undo` has undone the loads."""


for_cost(LinkLoads, begin=_begin, propose=_propose, make=_make, undo=_undo, end_step=_end_step)
