"""The annealing of mappings: one loop for all costs.

A cost is a named tuple of arrays, with the operations below for its type (`for_cost`). What an
operation here does is its default. The defaults are for costs that are a sum over stages: they have
`current` and `trial`, shape (S, Q), the cost of each stage and the same with the moves of a step,
`is_changed`, shape (S,), and `changed`, shape (S + 1,): the stages that the moves of a step touch,
their number last.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

from ....instances.common.kernel import UNCOUNTED, Kernel, uncounted
from .random_kernel import generator, uniform
from .state_kernel import State, apply_move

#: By type of cost: the loop with its kernels.
_LOOPS: dict[type, Kernel] = {}


def for_cost(kind: type, **kernels: Kernel) -> None:
    """Let `anneal` use these kernels, by the names of the operations below, for a type of cost."""
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
    """Apply a move to state and cost; return its change, as far as it is known by now."""
    raise NotImplementedError


@uncounted
def finished(_cost):
    """Whether the state is as good as it needs to be, asked every S steps: never."""
    return False


@uncounted
def change_left(_cost, _state):
    """The rest of what the moves made change, `inf` forbids them: nothing."""
    return 0.0


@uncounted
def undo(_cost, state, move):
    """Undo a move, the last one made; `end_step` drops the trial costs."""
    apply_move(move, state)


@uncounted
def end_step(cost, accepted):
    """Keep the cost of the moves made, or forget it; moves are undone already."""
    for k in range(cost.changed[-1]):
        s = cost.changed[k]
        cost.is_changed[s] = False
        if accepted:
            _copy_row(cost.current, cost.trial, s)
    cost.changed[-1] = 0


@uncounted
def touch_stage(cost, s):
    """Note that a step changes stage s, whose trial cost begins with the present one."""
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
    """Anneal as `anneal` says, with the operations of one cost in place of those above."""
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
