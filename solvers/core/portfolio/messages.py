"""What a solve and its workers tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....formulations.task import Task
from ..limits import Limits
from .strategy import Strategy


@dataclass(frozen=True)
class Found:
    """A solution, and its objective as the sender's judge has it."""

    solution: Any
    objective: float


@dataclass(frozen=True)
class Proved:
    """A bound; see `Search.raise_bound`."""

    bound: float
    origin: str
    certificate: dict[str, object]


@dataclass(frozen=True)
class Withdrawn:
    """That an origin claims what is wrong; see `Search.withdraw`."""

    origin: str
    claim: str


@dataclass(frozen=True)
class Infeasible:
    """That no solution exists."""

    because: str


@dataclass(frozen=True)
class Begun:
    """That a worker runs a strategy from now on."""

    strategy: str


@dataclass(frozen=True)
class Failed:
    """That a strategy ended with an error."""

    strategy: str
    error: str


@dataclass(frozen=True)
class Moved:
    """That a worker begins again, on another machine than before."""


@dataclass(frozen=True)
class Finished:
    """That a worker has run all its strategies."""


@dataclass(frozen=True)
class Ended:
    """That nothing more comes: the channel is closed."""

    why: str


@dataclass(frozen=True, eq=False)
class Job:
    """What a worker searches for.

    Parameters
    ----------
    task, judge, tie
        As of the solve; functions of modules, or values of their classes.
    limits
        Those of the solve, with the seconds left and a seed of its own.
    strategies
        Run one after the other.
    news
        What is known: `Found` and `Proved`.
    """

    task: Task[Any]
    judge: Callable[[Any], float]
    tie: Callable[[Any], float] | None
    limits: Limits
    strategies: tuple[Strategy, ...]
    news: tuple[Found | Proved, ...] = ()
