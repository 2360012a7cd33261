"""Messages between a solve and its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....formulations.task import Task
from ..limits import Limits
from .strategy import Strategy


@dataclass(frozen=True)
class Found:
    """Message: a solution, with its objective by the sender's judge."""

    solution: Any
    objective: float


@dataclass(frozen=True)
class Proved:
    """Message: a bound; see `Search.raise_bound`."""

    bound: float
    origin: str
    certificate: dict[str, object]


@dataclass(frozen=True)
class Withdrawn:
    """Message: all bounds of `origin` are withdrawn, since `claim` is refuted."""

    origin: str
    claim: str


@dataclass(frozen=True)
class Infeasible:
    """Message: no solution exists."""

    because: str


@dataclass(frozen=True)
class Begun:
    """Message: a worker runs a strategy from now on."""

    strategy: str


@dataclass(frozen=True)
class Failed:
    """Message: a strategy ended with an error."""

    strategy: str
    error: str


@dataclass(frozen=True)
class Moved:
    """Message: a worker begins again, on another machine than before."""


@dataclass(frozen=True)
class Finished:
    """Message: a worker has run all its strategies."""


@dataclass(frozen=True)
class Ended:
    """Message: the channel is closed."""

    why: str


@dataclass(frozen=True, eq=False)
class WorkerJob:
    """The order of a worker: task, limits, strategies, and the best plan and bound known.

    Parameters
    ----------
    task, judge, tie
        As of the solve; functions of modules, or values of their classes.
    limits
        Those of the solve, with the seconds left and a seed of its own.
    strategies
        Run one after the other.
    news
        The best solution and bound known, as `Found` and `Proved`.
    """

    task: Task[Any]
    judge: Callable[[Any], float]
    tie: Callable[[Any], float] | None
    limits: Limits
    strategies: tuple[Strategy, ...]
    news: tuple[Found | Proved, ...] = ()
