"""The annealing of mappings: one loop for all costs.

A cost is a named tuple of arrays, with the functions below for its type (`for_cost`).
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from ....instances.common.kernel import Kernel
from .uncounted import UNCOUNTED

#: By type of cost: the loop with its kernels.
_LOOPS: dict[type, Kernel] = {}


def for_cost(kind: type, **kernels: Kernel) -> None:
    """Let `anneal` use these kernels, by the names of the operations below, for a type of cost."""
    loop = FunctionType(_anneal.__code__, {**globals(), **kernels}, "anneal")
    _LOOPS[kind] = Kernel(loop, interpreted=False, options=UNCOUNTED)


def anneal(
    cost: Any, state: Any, moves: Any, steps: int, seed: int, hot: float, cold: float
) -> None:
    """Anneal `state` in place for `steps` steps, or until the cost is finished.

    The temperature falls geometrically from `hot` to `cold`; at 0 nothing worse is accepted.
    `moves` is room to work in, as `new_moves` returns it.
    """
    _LOOPS[type(cost)](cost, state, moves, steps, seed, hot, cold)


def begin(cost: Any, state: Any) -> None:
    """Compute the cost of a state anew."""
    raise NotImplementedError


def finished(cost: Any) -> bool:
    """Whether the state is as good as it needs to be; asked every S steps."""
    raise NotImplementedError


def propose(cost: Any, state: Any, moves: Any) -> int:
    """Write the moves of a random step to `moves`, shape (M, 4); return how many, 0 for none."""
    raise NotImplementedError


def make(cost: Any, state: Any, move: Any) -> float:
    """Apply a move to state and cost; return its change, as far as it is known by now."""
    raise NotImplementedError


def change_left(cost: Any, state: Any) -> float:
    """The rest of what the moves made change; `inf` forbids them."""
    raise NotImplementedError


def undo(cost: Any, state: Any, move: Any) -> None:
    """Undo a move, the last one made."""
    raise NotImplementedError


def settle(cost: Any, accepted: bool) -> None:
    """Keep the cost of the moves made, or forget it; moves are undone already."""
    raise NotImplementedError


def _anneal(
    cost: Any, state: Any, moves: Any, steps: int, seed: int, hot: float, cold: float
) -> None:
    """Anneal as `anneal` says, with the operations of one cost in place of those above."""
    np.random.seed(seed)
    stages = len(state.sends_to)
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
                accepted = np.random.random() < np.exp(-change / heat)
            if not accepted:
                for k in range(count - 1, -1, -1):
                    undo(cost, state, moves[k])
            settle(cost, accepted)
