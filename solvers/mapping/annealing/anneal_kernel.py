"""Annealing of mappings: one loop over one state and its moves, for several costs.

*State*. A slot is a position of a replica: slot s·R + i is position i of stage s; the last slots
are spare. Edges have numbers: e < S·R is the ring message of slot e, S·R + e the message of slot e
to the next stage. Each move is its own inverse.

*Costs* are named tuples of arrays, with the operations `begin` to `end_step` below for their type
(`for_cost`); the operations here are the defaults, for a cost that is a sum over stages. Such a
cost has `current` and `trial`, shape (S, Q), the cost of each stage before and after the moves of a
step; `is_changed`, shape (S,); and `changed`, shape (S + 1,), the stages touched by a step, with
their number last.

*Random numbers* are xorshift64*, the same whether kernels are interpreted or compiled; those of
numba differ from NumPy's. Marsaglia, *Xorshift RNGs*, 2003; Vigna, *An experimental exploration of
Marsaglia's xorshift generators, scrambled*, 2016.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....formulations.mapping.costs import MappingCosts
from ....instances.common.arrays import Ints
from ....instances.common.kernel import UNCOUNTED, Kernel, uncounted

#: Shifts of the generator, and the shift and factor that make a number of its state.
_FIRST, _SECOND, _THIRD = np.uint64(12), np.uint64(25), np.uint64(27)

_LOW, _FACTOR = np.uint64(11), np.uint64(2685821657736338717)

#: Loops of `anneal` with their kernels, by type of cost.
_LOOPS: dict[type, Kernel] = {}

#: Moves: two devices d, e exchange their slots; replicas i, j of stage s exchange their receivers;
#: `length` positions of the ring of stage s from `first` on are reversed, receivers with them.
EXCHANGE, RECEIVERS, REVERSE = 0, 1, 2


class State(NamedTuple):
    """State of the annealing: a mapping, its moves and random numbers."""

    slot: Ints  # (D,): device in each slot
    place: Ints  # slot of each device, by its number
    sends_to: Ints  # (S, R): as in `ReplicaPlacement`; the last row is not used
    came_from: Ints  # (S, R): from which replica each one receives; the first row is not used
    moves: Ints  # (D + 1, 4): the moves of a step, each a kind and up to three numbers
    random: NDArray[np.uint64]  # (1,): state of the generator of random numbers

    def copy(self) -> State:
        """Return a copy that shares no arrays."""
        return State._make(each.copy() for each in self)

    def slots(self) -> Ints:
        """Return the devices of the used slots; shape (S, R)."""
        return self.slot[: self.sends_to.size].reshape(self.sends_to.shape).copy()


def new_state(devices: Ints, slots: Ints, sends_to: Ints) -> State:
    """Return the state of a mapping onto devices that may be used.

    `slots` and `sends_to` have shapes (S, R) and (S−1, R).
    """
    slot = np.concatenate([slots.ravel(), np.setdiff1d(devices, slots)]).astype(np.int64)
    place = np.full(int(slot.max()) + 1, -1)
    place[slot] = np.arange(len(slot))
    receivers, senders = np.zeros(slots.shape, np.int64), np.zeros(slots.shape, np.int64)
    receivers[:-1] = sends_to
    senders[1:] = np.argsort(sends_to, axis=1)
    moves = np.zeros((len(slot) + 1, 4), np.int64)
    return State(slot, place, receivers, senders, moves, generator(0))


def state_of(costs: MappingCosts, slots: Ints, sends_to: Ints) -> State:
    """Return the state of a mapping on the devices numbered as in `costs`."""
    return new_state(np.arange(costs.size), slots, sends_to)


@uncounted
def write_move(moves, n, kind, x, y, z):
    """Write a move to row n of `moves`; return n + 1."""
    moves[n, 0], moves[n, 1], moves[n, 2], moves[n, 3] = kind, x, y, z
    return n + 1


@uncounted
def apply_move(move, state):
    """Change the state by a move, shape (4,); a second time undoes it."""
    kind, x, y, z = move[0], move[1], move[2], move[3]
    if kind == EXCHANGE:
        _exchange(state, state.place[x], state.place[y])
    elif kind == RECEIVERS:
        _exchange_receivers(state, x, y, z)
    else:
        _reverse(state, x, y, z)


@uncounted
def misfits(fits, state, move):
    """Whether a move just made has put a device where the memory of a stage does not fit."""
    if move[0] != EXCHANGE:
        return False
    replicas, used = state.sends_to.shape[1], state.sends_to.size
    for device in (move[1], move[2]):
        p = state.place[device]
        if p < used and not fits[p // replicas, device]:
            return True
    return False


@uncounted
def _exchange(state, p, q):
    """Exchange the devices of slots p and q."""
    slot, place = state.slot, state.place
    slot[p], slot[q] = slot[q], slot[p]
    place[slot[p]], place[slot[q]] = p, q


@uncounted
def _exchange_receivers(state, s, i, j):
    """Let replicas i and j of stage s send to each other's receivers."""
    sends_to, came_from = state.sends_to, state.came_from
    sends_to[s, i], sends_to[s, j] = sends_to[s, j], sends_to[s, i]
    came_from[s + 1, sends_to[s, i]] = i
    came_from[s + 1, sends_to[s, j]] = j


@uncounted
def _reverse(state, s, first, length):
    """Reverse `length` positions of the ring of stage s from `first` on, receivers with them."""
    stages, replicas = state.sends_to.shape
    for k in range(length // 2):
        i, j = (first + k) % replicas, (first + length - 1 - k) % replicas
        _exchange(state, s * replicas + i, s * replicas + j)
        if s + 1 < stages:
            _exchange_receivers(state, s, i, j)
        if s > 0:
            _exchange_receivers(state, s - 1, state.came_from[s, i], state.came_from[s, j])


@uncounted
def touched_edges(move, state, directed, touched):
    """Write the edges that a move changes to `touched`, each once; return how many.

    They are the same before and after the move. `directed`: a ring message may cost more or less
    in the other direction.
    """
    stages, replicas = state.sends_to.shape
    kind, x, y, z = move[0], move[1], move[2], move[3]
    if kind == EXCHANGE:
        n = _edges_of_slot(state.place[x], state, touched, 0)
        return _edges_of_slot(state.place[y], state, touched, n)
    if kind == RECEIVERS:
        touched[0], touched[1] = (stages + x) * replicas + y, (stages + x) * replicas + z
        return 2
    if directed:
        for k in range(z + 1):
            touched[k] = x * replicas + (y - 1 + k) % replicas
        return z + 1
    touched[0] = x * replicas + (y - 1) % replicas
    touched[1] = x * replicas + (y + z - 1) % replicas
    return 2


@uncounted
def _edges_of_slot(p, state, touched, n):
    """Write the edges at slot p to touched[n:]; return the new n."""
    stages, replicas = state.sends_to.shape
    used = stages * replicas
    if p >= used:
        return n
    s, i = p // replicas, p % replicas
    if replicas > 1:
        n = _add(touched, n, p)
        n = _add(touched, n, s * replicas + (i - 1) % replicas)
    if s + 1 < stages:
        n = _add(touched, n, used + p)
    if s > 0:
        n = _add(touched, n, used + (s - 1) * replicas + state.came_from[s, i])
    return n


@uncounted
def _add(touched, n, e):
    """Write edge e to touched[n] unless it is there already; return the new n."""
    for j in range(n):
        if touched[j] == e:
            return n
    touched[n] = e
    return n + 1


@uncounted
def edge_ends(e, state):
    """Return the slots at the ends of edge e; −1 and −1 if there is no such edge."""
    stages, replicas = state.sends_to.shape
    used = stages * replicas
    if e < used:
        if replicas < 2:
            return -1, -1
        s, i = e // replicas, e % replicas
        return e, s * replicas + (i + 1) % replicas
    p = e - used
    s, i = p // replicas, p % replicas
    if s + 1 >= stages:
        return -1, -1
    return p, (s + 1) * replicas + state.sends_to[s, i]


def for_cost(kind: type, **kernels: Kernel) -> None:
    """Register the kernels of a type of cost, by the names of the operations below."""
    loop = FunctionType(_anneal.__code__, {**globals(), **kernels})
    loop.__name__ = loop.__qualname__ = f"anneal_{kind.__name__}"
    _LOOPS[kind] = Kernel(loop, options=UNCOUNTED)


def anneal(cost: Any, state: State, steps: int, seed: int, hot: float, cold: float) -> None:
    """Anneal `state` in place for `steps` steps, or until the cost is finished.

    The temperature falls geometrically from `hot` to `cold`; at 0 nothing worse is accepted.
    """
    state.random[:] = generator(seed)
    _LOOPS[type(cost)](cost, state, steps, hot, cold)


def begin(cost: Any, state: Any) -> None:
    """Compute the cost of a state anew."""
    raise NotImplementedError


def propose(cost: Any, state: Any, moves: Any) -> int:
    """Write the moves of a random step to `moves`, shape (M, 4); return how many, 0 for none."""
    raise NotImplementedError


def make(cost: Any, state: Any, move: Any) -> float:
    """Apply a move to state and cost; return its change of the cost, less that of `change_left`."""
    raise NotImplementedError


@uncounted
def finished(_cost):
    """Whether the annealing may end, asked every S steps; default: never."""
    return False


@uncounted
def change_left(_cost, _state):
    """Change of the cost by all moves of a step beyond `make`, `inf` to reject; default: 0."""
    return 0.0


@uncounted
def undo(_cost, state, move):
    """Undo the last move in the state; `end_step` drops the trial costs."""
    apply_move(move, state)


@uncounted
def end_step(cost, accepted):
    """Accept or drop the trial costs of a step; rejected moves are undone before."""
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        cost.is_changed[s] = False
        if accepted:
            _copy_row(cost.current, cost.trial, s)
    cost.changed[-1] = 0


@uncounted
def touch_stage(cost, s):
    """Mark stage s as changed by a step; its trial cost begins with the current one."""
    if not cost.is_changed[s]:
        cost.is_changed[s] = True
        cost.changed[cost.changed[-1]] = s
        cost.changed[-1] += 1
        _copy_row(cost.trial, cost.current, s)


@uncounted
def _copy_row(target, source, s):
    """Copy row s."""
    for k in range(source.shape[1]):
        target[s, k] = source[s, k]


def _anneal(cost: Any, state: Any, steps: int, hot: float, cold: float) -> None:
    """Loop of `anneal`, compiled with the operations of one type of cost."""
    stages, moves = len(state.sends_to), state.moves
    begin(cost, state)
    step = 0
    while step < steps and not finished(cost):
        for _ in range(stages):
            step += 1
            count = propose(cost, state, moves)
            if count == 0:
                continue
            change = 0.0
            for k in range(count):
                change += make(cost, state, moves[k])
            change += change_left(cost, state)
            accepted = change <= 0
            if not accepted and hot > 0:
                heat = hot * (cold / hot) ** (min(step, steps) / steps)
                accepted = uniform(state.random) < math.exp(-change / heat)
            if not accepted:
                for k in range(count - 1, -1, -1):
                    undo(cost, state, moves[k])
            end_step(cost, accepted)


def generator(seed: int) -> NDArray[np.uint64]:
    """Return the state of a generator, shape (1,), which `uniform` and `below` change."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)


@uncounted
def uniform(random):
    """A number from 0 to 1, 1 excluded."""
    x = random[0]
    x ^= x >> _FIRST
    x ^= x << _SECOND
    x ^= x >> _THIRD
    random[0] = x
    return float((x * _FACTOR) >> _LOW) * 2.0**-53


@uncounted
def below(random, count):
    """A whole number from 0 to count − 1."""
    return int(uniform(random) * count)
