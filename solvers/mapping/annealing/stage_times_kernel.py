"""A cost of mappings for the annealing: the stage times themselves, whatever all-reduces take.

A step begins at a random replica, or at the longest message of a stage. It exchanges two devices,
two receivers, or two places in the order of the stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....formulations.mapping.collectives import allreduce_time
from ....instances.common.arrays import Bools, Floats, Ints
from .anneal_kernel import for_cost
from .state import EXCHANGE, RECEIVERS, apply_move, touched_edges, write_move
from .uncounted import uncounted


class StageTimes(NamedTuple):
    """Σ_s (T_s / scale)^power, where no T_s exceeds its upper bound; times are in seconds."""

    latency: Floats  # (D, D)
    inverse: Floats  # (D, D)
    boundary: Floats  # (S, 2)
    ring: Floats  # (S, 2)
    base: Floats  # (S,)
    island: Ints  # (D,)
    reduced: Floats  # (S,) bytes of the all-reduce
    rings_only: bool
    upper_bound: Floats  # (S,)
    scale: float
    power: int
    orders_only: bool  # whether each stage keeps its devices and their messages
    times: Floats  # (S,)
    trial: Floats  # (S,) the same with the moves of a step
    is_changed: Bools  # (S,)
    changed: Ints  # (S+1,) the stages that moves of a step touch; their number last
    touched: Ints  # room for edges
    room: Ints  # (2R,) for all-reduces


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
            cost.latency, cost.inverse, cost.island, row, cost.reduced[s], cost.room
        )
    return cost.base[s] + sent + around


@uncounted
def _begin(cost, state):
    """Compute all stage times."""
    for s in range(len(cost.times)):
        cost.times[s] = _time(cost, state, s)


@uncounted
def _finished(_cost):
    """There is always something to improve."""
    return False


@uncounted
def _propose(cost, state, moves):
    """Write a step; where the longest stages rule, half of them begin at the longest.

    Where all stages count alike, most begin at the longest message of a stage.
    """
    stages, replicas = state.sends_to.shape
    s = np.random.randint(stages)
    if cost.orders_only:
        i, j = np.random.randint(replicas), np.random.randint(replicas)
        return _exchange_places(state, moves, s, i, j)
    if cost.power > 1 and np.random.random() < 0.5:
        for t in range(stages):
            if cost.times[t] > cost.times[s]:
                s = t
    p = far = s * replicas + np.random.randint(replicas)
    if cost.power == 1 and np.random.random() < 0.7:
        _sent, _around, near, other = _longest(cost, state, s)
        if near >= 0:
            p, far = near, other
    chance = np.random.random()
    if chance < 0.6:
        i, j = p % replicas, np.random.randint(replicas)
        if s + 1 == stages or (chance < 0.4 and far // replicas == s):
            return _exchange_places(state, moves, s, i, j)
        return 0 if i == j else write_move(moves, 0, RECEIVERS, s, i, j)
    if chance < 0.8:
        p = far
    q = np.random.randint(len(state.slot))
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
    """Apply a move; `change_left` looks at the stages that it touches."""
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    for k in range(touched_edges(move, state, False, cost.touched)):
        e = cost.touched[k]
        s = (e if e < used else e - used) // replicas
        if not cost.is_changed[s]:
            cost.is_changed[s] = True
            cost.changed[cost.changed[-1]] = s
            cost.changed[-1] += 1
    apply_move(move, state)
    return 0.0


@uncounted
def _change_left(cost, state):
    """Change of the sum; `inf` if a stage exceeds its upper bound."""
    change = 0.0
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        cost.trial[s] = _time(cost, state, s)
        if cost.trial[s] > cost.upper_bound[s]:
            change = np.inf
        change += (cost.trial[s] / cost.scale) ** cost.power
        change -= (cost.times[s] / cost.scale) ** cost.power
    return change


@uncounted
def _undo(_cost, state, move):
    """Undo a move; `settle` drops the trial times."""
    apply_move(move, state)


@uncounted
def _settle(cost, accepted):
    """Keep the trial times, or drop them."""
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        cost.is_changed[s] = False
        if accepted:
            cost.times[s] = cost.trial[s]
    cost.changed[-1] = 0


for_cost(
    StageTimes,
    begin=_begin,
    finished=_finished,
    propose=_propose,
    make=_make,
    change_left=_change_left,
    undo=_undo,
    settle=_settle,
)
