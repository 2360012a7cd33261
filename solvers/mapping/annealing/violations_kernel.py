"""A cost of mappings for the annealing: the edges above their upper bounds.

The slack of stage s under a target can be split in several ways between its longest message and its
longest ring message: a *split* is a pair of upper bounds. The violation of a split is a sum over
the edges above their bounds; that of the stage is the violation of its best split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import uncounted
from .anneal_kernel import end_step, touch_stage
from .state_kernel import apply_move, touched_edges


class Violations(NamedTuple):
    """What stages exceed; S stages, Q splits, D devices, B blocks. Costs are in seconds."""

    latency: Floats  # (D, D)
    inverse: Floats  # (D, D)
    boundary: Floats  # (S, 2)
    ring: Floats  # (S, 2)
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
    """What a message from device a to b costs."""
    return factors[0] * cost.latency[a, b] + factors[1] * cost.inverse[a, b]


@uncounted
def edge_cost(cost, state, e):
    """What edge e costs; 0 where there is none."""
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
    """Add what one edge violates in each split to `row`, shape (Q,); subtract with sign −1."""
    for k in range(len(row)):
        over = seconds - upper_bounds[k]
        if over > 0:
            row[k] += sign * (1.0 + min(1.0, over * scale))


@uncounted
def _add_edge(cost, state, e, sign):
    """Add edge e to the trial violation of its stage, or take it away."""
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
    """Add up all edges."""
    for s in range(len(cost.current)):
        for k in range(cost.current.shape[1]):
            cost.current[s, k] = 0.0
    for e in range(2 * state.sends_to.size):
        _add_edge(cost, state, e, 1.0)
    end_step(cost, True)


@uncounted
def finished(cost):
    """Whether every stage has a split that is not violated."""
    left = 0.0
    for s in range(len(cost.current)):
        left += cost.current[s, best_split(cost.current, s)]
    return left < 0.5


@uncounted
def make(cost, state, move):
    """Apply a move; `change_left` adds up what it changes."""
    n = touched_edges(move, state, False, cost.touched)
    for j in range(n):
        _add_edge(cost, state, cost.touched[j], -1.0)
    apply_move(move, state)
    for j in range(n):
        _add_edge(cost, state, cost.touched[j], 1.0)
    return 0.0


@uncounted
def change_left(cost, _state):
    """Change of the violations in the best splits."""
    change = 0.0
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        change += cost.trial[s, best_split(cost.trial, s)]
        change -= cost.current[s, best_split(cost.current, s)]
    return change
