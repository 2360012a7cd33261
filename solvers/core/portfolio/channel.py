"""Executors: where a function runs in a process of its own, and how to talk with it.

`LocalProcesses` starts processes on this machine, `DaskCluster` (`dask_cluster.py`) on others.
Comparisons run their cases by `unordered`, solves their strategies by `start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Channel(Protocol):
    """Messages to and from a function that runs elsewhere."""

    def send(self, message: object) -> None:
        """Send a message; returns at once, and never fails, though the message may be lost."""

    def receive(self) -> Any:
        """Return the next message, or wait for it.

        Raises
        ------
        EOFError
            Once the function has ended and all that it sent is received; says how it ended.
        """

    def close(self) -> None:
        """End the function, wherever it is; what it has sent can still be received."""


#: A function that runs elsewhere: of its argument, and the channel back.
Body = Callable[[Any, Channel], None]


class Executor(Protocol):
    """Where functions run.

    Parameters
    ----------
    size
        How many run at a time.
    """

    size: int

    def start(self, body: Body, argument: object) -> Channel:
        """Start a function in a process of its own."""

    def unordered(
        self, function: Callable[[A], R], arguments: Sequence[A]
    ) -> Iterator[tuple[A, R]]:
        """Yield every argument with what the function returns for it, as they come."""

    def close(self) -> None:
        """Let go of what it holds."""
