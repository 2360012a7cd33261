"""Cost of the annealing: violations of a target by edges above their upper bounds.

The slack of stage s under a target can be split in several ways between its longest message and its
longest ring message: a *split* is a pair of upper bounds. The violation of a split is a sum over
the edges above their bounds; that of the stage is the violation of its best split.

A step takes a random violated edge and brings an admitted neighbour of one of its ends to the other
end: the neighbour takes that slot; or, where the counts of devices per block are fixed, it
exchanges its slot with a device of its own block, and the edge is redirected to that slot, so that
messages inside a block do not become messages between blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import uncounted
from .anneal_kernel import (
    EXCHANGE,
    RECEIVERS,
    REVERSE,
    apply_move,
    below,
    edge_ends,
    end_step,
    misfits,
    touch_stage,
    touched_edges,
    uniform,
    write_move,
)


class Violations(NamedTuple):
    """Violations by stage and split; S stages, Q splits, D devices, B blocks, times in seconds."""

    latency: Floats  # (D, D)
    inverse: Floats  # (D, D)
    boundary: Floats  # (S, 2)
    ring: Floats  # (S, 2)
    fits: Bools  # (S, D)
    order: NDArray[np.int32]  # (D, D−1) the other devices, best route first
    messages: Floats  # (S, Q) upper bounds of messages
    rings: Floats  # (S, Q) upper bounds of ring messages
    scale: float  # per second above an upper bound
    block: Ints  # (D,)
    members: Ints  # (D,) devices by block
    first: Ints  # (B+1,) where the members of each block begin
    keeps_counts: bool
    exchange_rate: float
    shuffle_rate: float
    current: Floats  # (S, Q) violations
    trial: Floats  # (S, Q)
    is_changed: Bools  # (S,)
    changed: Ints  # (S+1,)
    touched: Ints  # scratch for edges


@uncounted
def pair_cost(cost, factors, a, b):
    """Seconds of a message from device a to device b."""
    return factors[0] * cost.latency[a, b] + factors[1] * cost.inverse[a, b]


@uncounted
def edge_cost(cost, state, e):
    """Seconds of edge e; 0 if there is no such edge."""
    stages, replicas = state.sends_to.shape
    used = stages * replicas
    if e < used:
        s, i = e // replicas, e % replicas
        if replicas < 2 or (replicas == 2 and i == 1):  # the two links of such a ring are one
            return 0.0
        after = s * replicas + (i + 1) % replicas
        return pair_cost(cost, cost.ring[s], state.slot[e], state.slot[after])
    s, i = (e - used) // replicas, (e - used) % replicas
    if s + 1 >= stages:
        return 0.0
    after = (s + 1) * replicas + state.sends_to[s, i]
    return pair_cost(cost, cost.boundary[s], state.slot[e - used], state.slot[after])


@uncounted
def _add_violation(row, seconds, upper_bounds, scale, sign):
    """Add the violation of one edge in each split to `row`, shape (Q,); subtract with sign −1."""
    for k in range(len(row)):
        over = seconds - upper_bounds[k]
        if over > 0:
            row[k] += sign * (1.0 + min(1.0, over * scale))


@uncounted
def _add_edge(cost, state, e, sign):
    """Add edge e to the trial violation of its stage; subtract with sign −1."""
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    s = (e if e < used else e - used) // replicas
    touch_stage(cost, s)
    upper_bounds = cost.rings[s] if e < used else cost.messages[s]
    _add_violation(cost.trial[s], edge_cost(cost, state, e), upper_bounds, cost.scale, sign)


@uncounted
def best_split(violation, s):
    """The split of stage s with the least violation (`argmin` takes numba longer to compile)."""
    best = 0
    for k in range(1, violation.shape[1]):
        if violation[s, k] < violation[s, best]:
            best = k
    return best


@uncounted
def begin(cost, state):
    """Compute the violations of a state from all edges."""
    for s in range(len(cost.current)):
        for k in range(cost.current.shape[1]):
            cost.current[s, k] = 0.0
    for e in range(2 * state.sends_to.size):
        _add_edge(cost, state, e, 1.0)
    end_step(cost, True)


@uncounted
def finished(cost):
    """Whether every stage has a split without violation."""
    left = 0.0
    for s in range(len(cost.current)):
        left += cost.current[s, best_split(cost.current, s)]
    return left < 0.5


@uncounted
def make(cost, state, move):
    """Apply a move to state and trial violations; `change_left` returns the change of the cost."""
    n = touched_edges(move, state, False, cost.touched)
    for j in range(n):
        _add_edge(cost, state, cost.touched[j], -1.0)
    apply_move(move, state)
    for j in range(n):
        _add_edge(cost, state, cost.touched[j], 1.0)
    return np.inf if misfits(cost.fits, state, move) else 0.0


@uncounted
def change_left(cost, _state):
    """Change of the violations in the best splits."""
    change = 0.0
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        change += cost.trial[s, best_split(cost.trial, s)]
        change -= cost.current[s, best_split(cost.current, s)]
    return change


@uncounted
def propose(cost, state, moves):
    """Write the moves of a step from a violated edge of a random stage; return how many."""
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
    """Number of devices, in the order of routes from d, with a cost of at most `upper_bound`."""
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
