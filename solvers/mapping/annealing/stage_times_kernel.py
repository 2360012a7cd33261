"""Cost of the annealing: a power sum of the stage times, with all-reduces of any kind.

A step begins at a random replica, or at the longest message of a stage. It exchanges two devices,
two receivers, or two positions in the order of the stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....formulations.mapping.kernels import allreduce_time
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import uncounted
from .anneal_kernel import (
    EXCHANGE,
    RECEIVERS,
    apply_move,
    below,
    for_cost,
    misfits,
    touch_stage,
    touched_edges,
    uniform,
    write_move,
)


class StageTimes(NamedTuple):
    """Σ_s (T_s / scale)^power, where no T_s exceeds its upper bound; times are in seconds."""

    latency: Floats  # (D, D)
    inverse: Floats  # (D, D)
    boundary: Floats  # (S, 2)
    ring: Floats  # (S, 2)
    base: Floats  # (S,)
    own: Floats  # (S, D), as in `MappingCosts`
    overlap: bool
    fits: Bools  # (S, D)
    island: Ints  # (D,)
    reduced: Floats  # (S,) bytes of the all-reduce
    rings_only: bool
    upper_bound: Floats  # (S,)
    scale: float
    power: int
    orders_only: bool  # whether each stage keeps its devices and their messages
    current: Floats  # (S, 1) stage times
    trial: Floats  # (S, 1)
    is_changed: Bools  # (S,)
    changed: Ints  # (S+1,)
    touched: Ints  # scratch for edges
    scratch: Ints  # (2R,) for all-reduces


@uncounted
def _longest(cost, state, s):
    """Return the time of stage s with a ring, and the slots at the ends of its longest message."""
    stages, replicas = state.sends_to.shape
    sent, around, near, far = 0.0, 0.0, -1, -1
    if s + 1 < stages and (cost.boundary[s, 0] > 0 or cost.boundary[s, 1] > 0):
        for i in range(replicas):
            p, q = s * replicas + i, (s + 1) * replicas + state.sends_to[s, i]
            a, b = state.slot[p], state.slot[q]
            seconds = cost.boundary[s, 0] * cost.latency[a, b]
            seconds += cost.boundary[s, 1] * cost.inverse[a, b]
            if seconds > sent:
                sent, near, far = seconds, p, q
    if replicas > 1 and (cost.ring[s, 0] > 0 or cost.ring[s, 1] > 0):
        for i in range(replicas):
            p, q = s * replicas + i, s * replicas + (i + 1) % replicas
            a, b = state.slot[p], state.slot[q]
            seconds = cost.ring[s, 0] * cost.latency[a, b] + cost.ring[s, 1] * cost.inverse[a, b]
            if seconds > around:
                around = seconds
                if seconds > sent:
                    near, far = p, q
    return sent, around, near, far


@uncounted
def _time(cost, state, s):
    """Time of stage s, with the cheapest all-reduce for its order of devices."""
    sent, around, _near, _far = _longest(cost, state, s)
    if not cost.rings_only:
        replicas = state.sends_to.shape[1]
        row = state.slot[s * replicas : (s + 1) * replicas]
        around = allreduce_time(
            cost.latency, cost.inverse, cost.island, row, cost.reduced[s], cost.scratch
        )
    slowest, replicas = 0.0, state.sends_to.shape[1]
    for i in range(replicas):
        slowest = max(slowest, cost.own[s, state.slot[s * replicas + i]])
    time = cost.base[s] + sent + around
    return max(time, slowest) if cost.overlap else time + slowest


@uncounted
def _begin(cost, state):
    """Compute the stage times of a state."""
    for s in range(len(cost.current)):
        cost.current[s, 0] = _time(cost, state, s)


@uncounted
def _propose(cost, state, moves):
    """Write a step; where the longest stages rule, half of them begin at the longest.

    Where all stages count alike, most begin at the longest message of a stage.
    """
    stages, replicas = state.sends_to.shape
    s = below(state.random, stages)
    if cost.orders_only:
        i, j = below(state.random, replicas), below(state.random, replicas)
        return _exchange_places(state, moves, s, i, j)
    if cost.power > 1 and uniform(state.random) < 0.5:
        for t in range(stages):
            if cost.current[t, 0] > cost.current[s, 0]:
                s = t
    p = far = s * replicas + below(state.random, replicas)
    if cost.power == 1 and uniform(state.random) < 0.7:
        _sent, _around, near, other = _longest(cost, state, s)
        if near >= 0:
            p, far = near, other
    chance = uniform(state.random)
    if chance < 0.6:
        i, j = p % replicas, below(state.random, replicas)
        if s + 1 == stages or (chance < 0.4 and far // replicas == s):
            return _exchange_places(state, moves, s, i, j)
        return 0 if i == j else write_move(moves, 0, RECEIVERS, s, i, j)
    if chance < 0.8:
        p = far
    q = below(state.random, len(state.slot))
    return 0 if p == q else write_move(moves, 0, EXCHANGE, state.slot[p], state.slot[q], 0)


@uncounted
def _exchange_places(state, moves, s, i, j):
    """Write the moves that exchange two replicas with their messages; return how many."""
    stages, replicas = state.sends_to.shape
    if i == j:
        return 0
    d, e = state.slot[s * replicas + i], state.slot[s * replicas + j]
    n = write_move(moves, 0, EXCHANGE, d, e, 0)
    if s + 1 < stages:
        n = write_move(moves, n, RECEIVERS, s, i, j)
    if s > 0:
        n = write_move(moves, n, RECEIVERS, s - 1, state.came_from[s, i], state.came_from[s, j])
    return n


@uncounted
def _make(cost, state, move):
    """Apply a move and mark its stages; `change_left` returns the change of the cost."""
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    for k in range(touched_edges(move, state, False, cost.touched)):
        e = cost.touched[k]
        touch_stage(cost, (e if e < used else e - used) // replicas)
    apply_move(move, state)
    return np.inf if misfits(cost.fits, state, move) else 0.0


@uncounted
def _change_left(cost, state):
    """Change of the sum; `inf` if a stage exceeds its upper bound."""
    change = 0.0
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        time = _time(cost, state, s)
        cost.trial[s, 0] = time
        if time > cost.upper_bound[s]:
            change = np.inf
        change += _power(time / cost.scale, cost.power)
        change -= _power(cost.current[s, 0] / cost.scale, cost.power)
    return change


@uncounted
def _power(x, power):
    """x to a whole power, rounded alike whether interpreted or compiled."""
    product = x
    for _ in range(power - 1):
        product *= x
    return product


for_cost(StageTimes, begin=_begin, propose=_propose, make=_make, change_left=_change_left)
