"""Annealing on violated edges: repair a mapping until every message fits under a target.

At a target T every boundary and ring has a cap; a message above its cap is a *violated edge*. A
step takes one of them at random and brings an admitted neighbour to one of its ends: by exchange
of two devices (spare ones too), by exchange of two replicas' receivers, or by reversing a part
of a ring. Where a stage has both terms, its caps are split anew from time to time, so that as few
edges as possible are violated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..formulations.mapping import MappingCosts
from ..formulations.mapping_bound import Floors
from ..instances.arrays import Ints


@dataclass(eq=False)
class State:
    """A mapping under repair.

    Parameters
    ----------
    slot
        Shape (D,): device in each slot; slot s·R + i is position i of stage s, the last slots are
        spare.
    sends_to
        Shape (S, R): as in `Mapped`; the last row is not used.
    order
        Shape (D, D−1): the other devices, best route first.
    """

    slot: Ints
    sends_to: Ints
    order: NDArray[np.int32]

    def slots(self, costs: MappingCosts) -> Ints:
        """Return the used slots; shape (S, R)."""
        used = costs.stages * costs.replicas
        return self.slot[:used].reshape(costs.stages, costs.replicas).copy()


def new_state(costs: MappingCosts, slots: Ints, sends_to: Ints) -> State:
    """Return the state of a mapping."""
    used = slots.ravel()
    spare = np.setdiff1d(np.arange(costs.size), used)
    full = np.zeros((costs.stages, costs.replicas), np.int64)
    full[: costs.stages - 1] = sends_to
    return State(np.concatenate([used, spare]).astype(np.int64), full, _order(costs))


def _order(costs: MappingCosts) -> NDArray[np.int32]:
    order = np.empty((costs.size, costs.size - 1), np.int32)
    for d in range(costs.size):
        row = np.lexsort((costs.latency[d], costs.inverse[d]))
        order[d] = row[row != d]
    return order


def repair(
    costs: MappingCosts,
    least: Floors,
    state: State,
    threshold: float,
    steps: int,
    seed: int,
    temperature: float = 0.35,
) -> int:
    """Anneal for at most `steps` steps; return how many edges stay violated.

    About a microsecond per step.
    """
    left: int = _repair(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        threshold - costs.base,
        least.transfer,
        least.allreduce,
        state.slot,
        state.sends_to,
        state.order,
        costs.stages,
        costs.replicas,
        threshold,
        steps,
        seed,
        temperature,
    )
    return left


@njit(cache=True)
def _pair_cost(latency, inverse, factors, a, b):  # type: ignore[no-untyped-def]
    return factors[0] * latency[a, b] + factors[1] * inverse[a, b]


@njit(cache=True)
def _penalty(cost, cap, scale):  # type: ignore[no-untyped-def]
    if cost <= cap:
        return 0.0
    return 1.0 + min(1.0, (cost - cap) * scale)


@njit(cache=True)
def _edge(e, latency, inverse, boundary, ring, cap, slot, sends_to, stages, replicas, scale):  # type: ignore[no-untyped-def]
    """Penalty of edge e: ring edges first, then boundary edges, by position."""
    used = stages * replicas
    if e < used:
        s, i = e // replicas, e % replicas
        if replicas < 2 or (replicas == 2 and i == 1):
            return 0.0
        a = slot[e]
        b = slot[s * replicas + (i + 1) % replicas]
        return _penalty(_pair_cost(latency, inverse, ring[s], a, b), cap[1, s], scale)
    s, i = (e - used) // replicas, (e - used) % replicas
    if s + 1 >= stages:
        return 0.0
    a = slot[e - used]
    b = slot[(s + 1) * replicas + sends_to[s, i]]
    return _penalty(_pair_cost(latency, inverse, boundary[s], a, b), cap[0, s], scale)


@njit(cache=True)
def _split(  # type: ignore[no-untyped-def]
    room, least_p, least_a, latency, inverse, boundary, ring, slot, sends_to, s, replicas, cap,
):  # fmt: skip
    """Choose the caps of stage s anew: fewest violated edges, then most slack on both."""
    if boundary[s, 0] == 0 and boundary[s, 1] == 0:
        cap[0, s], cap[1, s] = np.inf, room
        return
    if ring[s, 0] == 0 and ring[s, 1] == 0:
        cap[0, s], cap[1, s] = room, np.inf
        return
    out = np.empty(replicas)
    around = np.empty(replicas)
    for i in range(replicas):
        a = slot[s * replicas + i]
        b = slot[(s + 1) * replicas + sends_to[s, i]]
        out[i] = _pair_cost(latency, inverse, boundary[s], a, b)
        b = slot[s * replicas + (i + 1) % replicas]
        around[i] = _pair_cost(latency, inverse, ring[s], a, b)
    out.sort()
    around.sort()
    best, chosen, slack = 1 << 60, least_p, -1.0
    for i in range(-1, replicas):
        p = least_p if i < 0 else max(least_p, out[i])
        a = room - p
        if a < least_a:
            p = room - least_a
            a = least_a
        over = replicas - np.searchsorted(out, p, side="right")
        over += replicas - np.searchsorted(around, a, side="right")
        # of equal counts, the split that leaves the least violated ring edge the least way to go
        k = np.searchsorted(around, a, side="right")
        gap = 0.0 if k == replicas else a - around[k]
        if over < best or (over == best and gap > slack):
            best, chosen, slack = over, p, gap
    cap[0, s], cap[1, s] = chosen, room - chosen


@njit(cache=True)
def _admitted(order, d, factors, latency, inverse, cap):  # type: ignore[no-untyped-def]
    """How many devices, in the order of routes from d, cost at most `cap`."""
    low, high = 0, order.shape[1]
    while low < high:
        middle = (low + high) // 2
        if _pair_cost(latency, inverse, factors, d, order[d, middle]) <= cap:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _repair(  # type: ignore[no-untyped-def]
    latency, inverse, boundary, ring, room, least_p, least_a, slot, sends_to, order,
    stages, replicas, threshold, steps, seed, temperature,
):  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002
    used = stages * replicas
    size = len(slot)
    scale = 5.0 / threshold
    cap = np.empty((2, stages))
    for s in range(stages):
        _split(room[s], least_p[s], least_a[s], latency, inverse, boundary, ring, slot, sends_to,
               s, replicas, cap)  # fmt: skip
    both = False
    for s in range(stages):
        if boundary[s].max() > 0 and ring[s].max() > 0:
            both = True
    place = np.empty(size, np.int64)
    for k in range(size):
        place[slot[k]] = k
    came_from = np.zeros((stages, replicas), np.int64)
    for s in range(stages - 1):
        for i in range(replicas):
            came_from[s + 1, sends_to[s, i]] = i
    penalty = np.zeros(2 * used)
    bad = np.empty(2 * used, np.int64)
    at = np.full(2 * used, -1, np.int64)
    count = 0
    touched = np.empty(2 * used, np.int64)
    fresh = np.empty(2 * used)
    for e in range(2 * used):
        penalty[e] = _edge(e, latency, inverse, boundary, ring, cap, slot, sends_to, stages,
                           replicas, scale)  # fmt: skip
        if penalty[e] > 0:
            at[e] = count
            bad[count] = e
            count += 1
    every = max(200, 20 * replicas)
    turn = 0
    for step in range(steps):
        if count == 0:
            break
        heat = temperature * (1.0 - 0.9 * step / steps)
        if both and step % every == every - 1:
            s = turn % stages
            turn += 1
            _split(room[s], least_p[s], least_a[s], latency, inverse, boundary, ring, slot,
                   sends_to, s, replicas, cap)  # fmt: skip
            for i in range(replicas):
                for e in (s * replicas + i, used + s * replicas + i):
                    value = _edge(e, latency, inverse, boundary, ring, cap, slot, sends_to,
                                  stages, replicas, scale)  # fmt: skip
                    penalty[e] = value
                    if value > 0 and at[e] < 0:
                        at[e] = count
                        bad[count] = e
                        count += 1
                    elif value == 0 and at[e] >= 0:
                        count -= 1
                        bad[at[e]] = bad[count]
                        at[bad[count]] = at[e]
                        at[e] = -1
            continue
        e = bad[np.random.randint(count)]  # noqa: NPY002
        on_ring = e < used
        s = e // replicas if on_ring else (e - used) // replicas
        i = e % replicas if on_ring else (e - used) % replicas
        if on_ring:
            near, far = s * replicas + i, s * replicas + (i + 1) % replicas
            factors, limit = ring[s], cap[1, s]
        else:
            near, far = s * replicas + i, (s + 1) * replicas + sends_to[s, i]
            factors, limit = boundary[s], cap[0, s]
        if np.random.random() < 0.5:  # noqa: NPY002
            near, far = far, near
        # a neighbour of `near` that would do, to take the place of `far`
        u = slot[near]
        able = _admitted(order, u, factors, latency, inverse, limit)
        kind = 0
        a = b = -1
        if able == 0:
            a, b = near, np.random.randint(size)  # noqa: NPY002
        else:
            w = order[u, np.random.randint(able)]  # noqa: NPY002
            b = place[w]
            a = far
            if b < used and b // replicas == far // replicas:
                # both stand in the stage of `far`: another receiver, or a turn of the ring
                if on_ring and replicas > 3:
                    kind = 2
                elif not on_ring:
                    kind = 1 if np.random.random() < 0.7 else 0  # noqa: NPY002
        if a == b or b == near:
            continue
        n = 0
        if kind == 0:
            for k in (a, b):
                if k >= used:
                    continue
                t, j = k // replicas, k % replicas
                if replicas > 1:
                    touched[n] = k
                    touched[n + 1] = t * replicas + (j - 1) % replicas
                    n += 2
                if t + 1 < stages:
                    touched[n] = used + k
                    n += 1
                if t > 0:
                    touched[n] = used + (t - 1) * replicas + came_from[t, j]
                    n += 1
            slot[a], slot[b] = slot[b], slot[a]
        elif kind == 1:
            # `near` sends to (or receives from) b instead of a
            if near // replicas < far // replicas:
                t = near // replicas
                i1, i2 = came_from[t + 1, a % replicas], came_from[t + 1, b % replicas]
            else:
                t = far // replicas
                i1, i2 = a % replicas, b % replicas
            touched[0], touched[1] = used + t * replicas + i1, used + t * replicas + i2
            n = 2
            sends_to[t, i1], sends_to[t, i2] = sends_to[t, i2], sends_to[t, i1]
            came_from[t + 1, sends_to[t, i1]] = i1
            came_from[t + 1, sends_to[t, i2]] = i2
        else:
            # reverse the part that ends with b, so that b comes to stand beside `near`
            t = near // replicas
            p, f, q = near % replicas, far % replicas, b % replicas
            if (p + 1) % replicas == f:  # near, far … b → near, b … far
                first, length = f, (q - f) % replicas + 1
            else:  # b … far, near → far … b, near
                first, length = q, (f - q) % replicas + 1
            touched[0] = t * replicas + (first - 1) % replicas
            touched[1] = t * replicas + (first + length - 1) % replicas
            n = 2
            if length >= replicas:
                continue
            _reverse(slot, sends_to, came_from, t, first, length, replicas, stages)
        # what changed
        change = 0.0
        m = 0
        for k in range(n):
            e = touched[k]
            seen = False
            for j in range(m):
                if touched[j] == e:
                    seen = True
            if seen:
                continue
            touched[m] = e
            fresh[m] = _edge(e, latency, inverse, boundary, ring, cap, slot, sends_to, stages,
                             replicas, scale)  # fmt: skip
            change += fresh[m] - penalty[e]
            m += 1
        if change <= 0 or np.random.random() < np.exp(-change / heat):  # noqa: NPY002
            if kind == 0:
                place[slot[a]], place[slot[b]] = a, b
            elif kind == 2:
                for j in range(replicas):
                    place[slot[t * replicas + j]] = t * replicas + j
                # the edges inside, and those to the neighbours, moved with their devices
                for j in range(length):
                    k = t * replicas + (first + j) % replicas
                    touched[m] = k
                    m += 1
                    if t + 1 < stages:
                        touched[m] = used + k
                        m += 1
                for j in range(2 if m > 2 else 0, m):
                    fresh[j] = _edge(touched[j], latency, inverse, boundary, ring, cap, slot,
                                     sends_to, stages, replicas, scale)  # fmt: skip
            for j in range(m):
                e = touched[j]
                penalty[e] = fresh[j]
                if fresh[j] > 0 and at[e] < 0:
                    at[e] = count
                    bad[count] = e
                    count += 1
                elif fresh[j] == 0 and at[e] >= 0:
                    count -= 1
                    bad[at[e]] = bad[count]
                    at[bad[count]] = at[e]
                    at[e] = -1
        elif kind == 0:
            slot[a], slot[b] = slot[b], slot[a]
        elif kind == 1:
            sends_to[t, i1], sends_to[t, i2] = sends_to[t, i2], sends_to[t, i1]
            came_from[t + 1, sends_to[t, i1]] = i1
            came_from[t + 1, sends_to[t, i2]] = i2
        else:
            _reverse(slot, sends_to, came_from, t, first, length, replicas, stages)
    return count


@njit(cache=True)
def _reverse(slot, sends_to, came_from, t, first, length, replicas, stages):  # type: ignore[no-untyped-def]
    """Reverse `length` positions of the ring of stage t from `first` on, receivers with them."""
    for j in range(length // 2):
        x, y = (first + j) % replicas, (first + length - 1 - j) % replicas
        k, q = t * replicas + x, t * replicas + y
        slot[k], slot[q] = slot[q], slot[k]
        if t + 1 < stages:
            sends_to[t, x], sends_to[t, y] = sends_to[t, y], sends_to[t, x]
            came_from[t + 1, sends_to[t, x]] = x
            came_from[t + 1, sends_to[t, y]] = y
        if t > 0:
            i1, i2 = came_from[t, x], came_from[t, y]
            came_from[t, x], came_from[t, y] = i2, i1
            sends_to[t - 1, i1], sends_to[t - 1, i2] = y, x
