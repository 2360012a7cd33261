"""Annealing that keeps how many devices of each block serve each stage.

As in `anneal.py` a step takes a random violated edge and seeks an admitted neighbour for one of its
ends. Here that neighbour exchanges its slot with a device of its own block, and the edge is
redirected to that slot by exchanging receivers or reversing a part of the ring. So the counts per
block do not change, and messages inside a block do not become messages between blocks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ....formulations.mapping.costs import MappingCosts
from ....instances.model.arrays import Floats, Ints
from ..parameters import MIN_TARGET_SECONDS, SHUFFLE_RATE, VIOLATION_SCALE
from .anneal import State, add_violation
from .moves import (
    admitted,
    best_split,
    copy_row,
    edge_cost,
    edges_of_slot,
    exchange_receivers,
    places,
    reverse,
    violated_edge,
    violation_left,
)


def anneal_fixed_counts(
    costs: MappingCosts,
    upper_bounds: tuple[Floats, Floats],
    state: State,
    block: Ints,
    threshold: float,
    steps: int,
    seed: int,
    hot: float,
    cold: float,
    *,
    exchange_rate: float = 0.0,
) -> float:
    """Anneal for at most `steps` steps; return the violation that is left, 0 for none.

    Parameters
    ----------
    upper_bounds
        Of messages and ring messages in each split, in seconds; shape (S, Q) both.
    exchange_rate
        Probability that a step exchanges all devices of two blocks of one size: the counts then
        change places with them.
    """
    messages, rings = upper_bounds
    members = np.argsort(block, kind="stable")
    first = np.searchsorted(block[members], np.arange(int(block.max()) + 2))
    left: float = _anneal_fixed_counts(
        costs.latency,
        costs.inverse,
        costs.boundary,
        costs.ring,
        messages,
        rings,
        state.slot,
        state.sends_to,
        state.order,
        block,
        members,
        first,
        VIOLATION_SCALE / max(threshold, MIN_TARGET_SECONDS),
        steps,
        seed,
        hot,
        cold,
        exchange_rate,
        SHUFFLE_RATE,
    )
    return left


@njit(cache=True)
def _add_edge(trial, violation, is_changed, e, sign, tables, messages, rings, scale):  # type: ignore[no-untyped-def]
    """Add edge e to what its stage violates, or take it away."""
    latency, inverse, boundary, ring, slot, sends_to = tables
    stages, replicas = sends_to.shape
    used = stages * replicas
    s = (e if e < used else e - used) // replicas
    if not is_changed[s]:
        is_changed[s] = True
        copy_row(trial, violation, s)
    cost = edge_cost(e, latency, inverse, boundary, ring, slot, sends_to, stages, replicas)
    add_violation(trial[s], cost, rings[s] if e < used else messages[s], scale, sign)


@njit(cache=True)
def _swap(  # type: ignore[no-untyped-def]
    d, e, trial, violation, is_changed, tables, place, came_from, upper_bounds, scale, touched
):
    """Exchange the slots of devices d and e, and update the trial violations."""
    messages, rings = upper_bounds
    slot, sends_to = tables[4], tables[5]
    stages, replicas = sends_to.shape
    y, z = place[d], place[e]
    n = edges_of_slot(y, came_from, stages, replicas, touched, 0)
    n = edges_of_slot(z, came_from, stages, replicas, touched, n)
    for j in range(n):
        _add_edge(trial, violation, is_changed, touched[j], -1.0, tables, messages, rings, scale)
    slot[y], slot[z] = slot[z], slot[y]
    place[d], place[e] = z, y
    for j in range(n):
        _add_edge(trial, violation, is_changed, touched[j], 1.0, tables, messages, rings, scale)


@njit(cache=True)
def _anneal_fixed_counts(  # type: ignore[no-untyped-def]
    latency, inverse, boundary, ring, messages, rings, slot, sends_to, order, block, members,
    first_of, scale, steps, seed, hot, cold, exchange_rate, shuffle_rate,
):  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002
    stages, replicas = sends_to.shape
    size, used, count = len(slot), stages * replicas, messages.shape[1]
    tables = (latency, inverse, boundary, ring, slot, sends_to)
    place, came_from = places(slot, sends_to)
    violation, trial = np.zeros((stages, count)), np.zeros((stages, count))
    is_changed = np.ones(stages, np.bool_)
    for e in range(2 * used):
        _add_edge(violation, trial, is_changed, e, 1.0, tables, messages, rings, scale)
    is_changed[:] = False
    touched, turned = np.empty(16, np.int64), np.empty(2, np.int64)
    these, those = np.empty(size, np.int64), np.empty(size, np.int64)
    width = first_of[1:] - first_of[:-1]
    upper_bounds = (messages, rings)
    step = 0
    left = 1.0
    while step < steps:
        left = violation_left(violation)
        if left < 0.5:
            return 0.0
        for _ in range(stages):
            step += 1
            heat = hot * (cold / hot) ** (min(step, steps) / steps)
            s = np.random.randint(stages)  # noqa: NPY002
            split = best_split(violation, s)
            if violation[s, split] < 0.5:
                continue
            start = np.random.randint(2 * replicas)  # noqa: NPY002
            near, far, on_ring = violated_edge(
                latency, inverse, boundary, ring, slot, sends_to, s, start, messages[s, split],
                rings[s, split],
            )  # fmt: skip
            if near < 0:
                continue
            factors, upper_bound = boundary[s], messages[s, split]
            if on_ring:
                factors, upper_bound = ring[s], rings[s, split]
            if np.random.random() < 0.5:  # noqa: NPY002
                near, far = far, near
            u = slot[near]
            # an admitted neighbour in another block
            able = admitted(order, u, factors, latency, inverse, upper_bound)
            v = -1
            for _ in range(8 if able > 0 else 0):
                w = order[u, np.random.randint(able)]  # noqa: NPY002
                if block[w] != block[u]:
                    v = w
                    break
            kind, d, i1, i2, first, length = 0, u, 0, 0, 0, 0
            one, other = block[slot[far]], -1
            if v >= 0 and exchange_rate > 0 and np.random.random() < exchange_rate:  # noqa: NPY002
                other = block[v]
                if one == other or one == block[u] or width[one] != width[other]:
                    continue
                d = slot[far]
            elif v < 0 or np.random.random() < shuffle_rate:  # noqa: NPY002
                b = block[u]
                v = members[first_of[b] + np.random.randint(width[b])]  # noqa: NPY002
            elif block[v] == one:
                d = slot[far]
            else:
                # a place of v's block that could be the other end of the edge
                b, n = block[v], width[block[v]]
                at = np.random.randint(n)  # noqa: NPY002
                y = -1
                for j in range(n):
                    k = place[members[first_of[b] + (at + j) % n]]
                    if k >= used or k // replicas != far // replicas:
                        continue
                    if on_ring:  # beyond k, away from `near`, the ring leaves the block
                        away = 1 if (near + 1) % replicas == far % replicas else -1
                        beyond = s * replicas + (k + away) % replicas
                        if beyond != near and block[slot[beyond]] != b:
                            y = k
                            break
                    else:
                        if near < far:
                            sender = slot[s * replicas + came_from[s + 1, k % replicas]]
                        else:
                            sender = slot[(s + 1) * replicas + sends_to[s, k % replicas]]
                        if block[sender] != b:
                            y = k
                            break
                if y < 0:
                    continue
                d = slot[y]
                if on_ring:
                    if replicas < 4:
                        continue
                    kind = 2
                    p, f, q = near % replicas, far % replicas, y % replicas
                    if (p + 1) % replicas == f:
                        first, length = f, (q - f) % replicas + 1
                    else:
                        first, length = q, (f - q) % replicas + 1
                    if length >= replicas:
                        continue
                    turned[0] = s * replicas + (first - 1) % replicas
                    turned[1] = s * replicas + (first + length - 1) % replicas
                else:
                    kind = 1
                    if near < far:
                        i1, i2 = near % replicas, came_from[s + 1, y % replicas]
                    else:
                        i1, i2 = came_from[s + 1, near % replicas], y % replicas
                    turned[0], turned[1] = used + s * replicas + i1, used + s * replicas + i2
            if kind > 0:
                for j in range(2):
                    _add_edge(trial, violation, is_changed, turned[j], -1.0, tables, messages,
                              rings, scale)  # fmt: skip
                if kind == 1:
                    exchange_receivers(sends_to, came_from, s, i1, i2)
                else:
                    reverse(slot, place, sends_to, came_from, s, first, length, replicas, stages)
                for j in range(2):
                    _add_edge(trial, violation, is_changed, turned[j], 1.0, tables, messages,
                              rings, scale)  # fmt: skip
            elif d == v:
                continue
            pairs = 0
            if d != v:
                these[0], those[0] = d, v
                pairs = 1
            if other >= 0:  # the other devices of both blocks, turned by a random number
                turn = np.random.randint(width[one])  # noqa: NPY002
                k = turn
                for j in range(width[one]):
                    x = members[first_of[one] + j]
                    if x == d:
                        continue
                    while members[first_of[other] + k % width[one]] == v:
                        k += 1
                    these[pairs], those[pairs] = x, members[first_of[other] + k % width[one]]
                    pairs += 1
                    k += 1
            for j in range(pairs):
                _swap(these[j], those[j], trial, violation, is_changed, tables, place, came_from,
                      upper_bounds, scale, touched)  # fmt: skip
            change = 0.0
            for x in range(stages):
                if is_changed[x]:
                    change += trial[x, best_split(trial, x)]
                    change -= violation[x, best_split(violation, x)]
            accept = change <= 0 or np.random.random() < np.exp(-change / heat)  # noqa: NPY002
            for x in range(stages):
                if is_changed[x] and accept:
                    copy_row(violation, trial, x)
                is_changed[x] = False
            if accept:
                continue
            for j in range(pairs - 1, -1, -1):
                y, z = place[these[j]], place[those[j]]
                slot[y], slot[z] = slot[z], slot[y]
                place[these[j]], place[those[j]] = z, y
            if kind == 1:
                exchange_receivers(sends_to, came_from, s, i1, i2)
            elif kind == 2:
                reverse(slot, place, sends_to, came_from, s, first, length, replicas, stages)
    return left
