"""Strategies: what the workers of a solve search by, beside the method that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....formulations.task import Task
from ....instances import Solution
from ..search import Search


@dataclass(frozen=True)
class Strategy:
    """A search that runs beside a method, in a process of its own.

    Parameters
    ----------
    name
        What notes call it.
    solve
        A function of a module, by whose name the other process finds it.
    seeded
        Whether it is another search with another seed, so that several workers can run it.
    """

    name: str
    solve: Callable[[Task[Any], Search[Solution]], None]
    seeded: bool = False


def dealt(strategies: Sequence[Strategy], workers: int) -> list[tuple[Strategy, ...]]:
    """Return what each worker runs, one strategy after the other; fewer than asked if need be.

    The first strategies go one to each worker, the others follow in turn. Workers left over run
    the seeded ones once more.

    Examples
    --------
    >>> a, b = Strategy("a", print), Strategy("b", print, seeded=True)
    >>> [[s.name for s in hand] for hand in dealt([a, b], 1)]
    [['a', 'b']]
    >>> [[s.name for s in hand] for hand in dealt([a, b], 3)]
    [['a', 'b'], ['b'], ['b']]
    """
    seeded = [strategy for strategy in strategies if strategy.seeded]
    hands: list[tuple[Strategy, ...]] = []
    for i in range(workers):
        hand = tuple(strategies[i::workers])
        if seeded and not any(strategy.seeded for strategy in hand):
            hand = (*hand, seeded[i % len(seeded)])
        if hand:
            hands.append(hand)
    return hands
