"""Steps from violated edges: a device that is admitted at one end comes to the other end.

A step takes a random violated edge and looks for an admitted neighbour for one of its ends. Either
that neighbour takes the place of the other end; or, where the counts of devices per block are kept,
it exchanges its slot with a device of its own block, and the edge is redirected to that slot. So
messages inside a block do not become messages between blocks.
"""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import uncounted
from .random_kernel import below, uniform
from .state_kernel import EXCHANGE, RECEIVERS, REVERSE, edge_ends, write_move
from .violations_kernel import best_split, edge_cost, pair_cost


@uncounted
def propose(cost, state, moves):
    """Begin with a violated edge of a random stage."""
    stages, replicas = state.sends_to.shape
    s = below(state.random, stages)
    split = best_split(cost.current, s)
    if cost.current[s, split] < 0.5:
        return 0
    start = below(state.random, 2 * replicas)
    near, far, on_ring = _violated_edge(cost, state, s, start, split)
    if near < 0:
        return 0
    if uniform(state.random) < 0.5:
        near, far = far, near
    factors, upper_bound = cost.boundary[s], cost.messages[s, split]
    if on_ring:
        factors, upper_bound = cost.ring[s], cost.rings[s, split]
    able = _admitted(cost, state.slot[near], factors, upper_bound)
    edge = (s, near, far, on_ring)
    if cost.keeps_counts:
        return _propose_in_blocks(cost, state, moves, edge, able)
    return _propose_any(cost, state, moves, edge, able)


@uncounted
def _violated_edge(cost, state, s, start, split):
    """The first edge of stage s above its upper bound, from number `start` on.

    Returns its ends as slots, and whether it is on the ring; −1 and −1 if there is none.
    """
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    for j in range(2 * replicas):
        i = (start + j) % (2 * replicas)
        on_ring = i < replicas
        e = s * replicas + i % replicas + (0 if on_ring else used)
        upper_bound = cost.rings[s, split] if on_ring else cost.messages[s, split]
        if edge_cost(cost, state, e) > upper_bound:
            near, far = edge_ends(e, state)
            return near, far, on_ring
    return -1, -1, False


@uncounted
def _admitted(cost, d, factors, upper_bound):
    """How many devices, in the order of routes from d, cost at most `upper_bound`."""
    low, high = 0, cost.order.shape[1]
    while low < high:
        middle = (low + high) // 2
        if pair_cost(cost, factors, d, cost.order[d, middle]) <= upper_bound:
            low = middle + 1
        else:
            high = middle
    return low


@uncounted
def _redirect(state, moves, edge, q):
    """Write the move that lets slot q take the place of the far end of an edge; return how many.

    Slot q is of the stage of the far end.
    """
    s, near, far, on_ring = edge
    replicas = state.sends_to.shape[1]
    p, f, i = near % replicas, far % replicas, q % replicas
    if not on_ring:
        if near < far:
            return write_move(moves, 0, RECEIVERS, s, p, state.came_from[s + 1, i])
        return write_move(moves, 0, RECEIVERS, s, f, i)
    # reverse the part that ends with q, so that q comes to stand beside `near`
    if (p + 1) % replicas == f:  # near, far … q → near, q … far
        first, length = f, (i - f) % replicas + 1
    else:  # q … far, near → far … q, near
        first, length = i, (f - i) % replicas + 1
    if length >= replicas:
        return 0
    return write_move(moves, 0, REVERSE, s, first, length)


@uncounted
def _propose_any(cost, state, moves, edge, able):
    """Let an admitted neighbour of `near` take the place of `far`."""
    _s, near, far, on_ring = edge
    slot, block = state.slot, cost.block
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    if able == 0:
        b = below(state.random, len(slot))
        return 0 if b == near else write_move(moves, 0, EXCHANGE, slot[near], slot[b], 0)
    neighbours = cost.order[slot[near]]
    b = state.place[neighbours[below(state.random, able)]]
    for _ in range(below(state.random, 4)):  # rather one of the block of `far`
        if block[slot[b]] == block[slot[far]]:
            break
        b = state.place[neighbours[below(state.random, able)]]
    redirects = False
    if b < used and b // replicas == far // replicas:
        # both stand in the stage of `far`: another receiver, or a turn of the ring
        redirects = replicas > 3 if on_ring else uniform(state.random) < 0.7
    if b in (far, near):
        return 0
    if redirects:
        return _redirect(state, moves, edge, b)
    return write_move(moves, 0, EXCHANGE, slot[far], slot[b], 0)


@uncounted
def _propose_in_blocks(cost, state, moves, edge, able):
    """Let an admitted neighbour of `near`, in another block, take the place of `far`.

    It exchanges its slot with a device of its own block; sometimes two blocks of one size exchange
    all their devices, or two devices of the block of `near` are exchanged at random.
    """
    _s, near, far, on_ring = edge
    slot, block, first = state.slot, cost.block, cost.first
    u = slot[near]
    one, own = block[slot[far]], block[u]
    v = _neighbour_outside(cost, state, u, able)
    if v >= 0 and cost.exchange_rate > 0 and uniform(state.random) < cost.exchange_rate:
        other = block[v]
        if one in (other, own):
            return 0
        if first[one + 1] - first[one] != first[other + 1] - first[other]:
            return 0
        return _exchange_blocks(cost, state, moves, slot[far], v)
    if v < 0 or uniform(state.random) < cost.shuffle_rate:
        v = cost.members[first[own] + below(state.random, first[own + 1] - first[own])]
        return 0 if u == v else write_move(moves, 0, EXCHANGE, u, v, 0)
    if block[v] == one:
        return 0 if slot[far] == v else write_move(moves, 0, EXCHANGE, slot[far], v, 0)
    q = _place_in_block(cost, state, edge, block[v])
    if q < 0 or (on_ring and state.sends_to.shape[1] < 4):
        return 0
    d = slot[q]
    n = _redirect(state, moves, edge, q)
    return n if n == 0 or d == v else write_move(moves, n, EXCHANGE, d, v, 0)


@uncounted
def _neighbour_outside(cost, state, u, able):
    """One of the best `able` neighbours of device u that is in another block; −1 without one."""
    for _ in range(8 if able > 0 else 0):
        w = cost.order[u, below(state.random, able)]
        if cost.block[w] != cost.block[u]:
            return np.int64(w)
    return np.int64(-1)


@uncounted
def _place_in_block(cost, state, edge, b):
    """A slot with a device of block b that could be the other end of an edge; −1 without one."""
    s, near, far, on_ring = edge
    slot, block = state.slot, cost.block
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    width = cost.first[b + 1] - cost.first[b]
    start = below(state.random, width)
    for j in range(width):
        k = state.place[cost.members[cost.first[b] + (start + j) % width]]
        if k >= used or k // replicas != far // replicas:
            continue
        if on_ring:  # beyond k, away from `near`, the ring leaves the block
            away = 1 if (near + 1) % replicas == far % replicas else -1
            beyond = s * replicas + (k + away) % replicas
            if beyond != near and block[slot[beyond]] != b:
                return k
        else:
            if near < far:
                partner = s * replicas + state.came_from[s + 1, k % replicas]
            else:
                partner = (s + 1) * replicas + state.sends_to[s, k % replicas]
            if block[slot[partner]] != b:
                return k
    return -1


@uncounted
def _exchange_blocks(cost, state, moves, d, v):
    """Exchange all devices of the blocks of d and v: d with v, the others turned at random."""
    members, first = cost.members, cost.first
    one, other = cost.block[d], cost.block[v]
    width = first[one + 1] - first[one]
    n = write_move(moves, 0, EXCHANGE, d, v, 0)
    k = below(state.random, width)
    for j in range(width):
        x = members[first[one] + j]
        if x == d:
            continue
        while members[first[other] + k % width] == v:
            k += 1
        n = write_move(moves, n, EXCHANGE, x, members[first[other] + k % width], 0)
        k += 1
    return n
