"""A clock that counts CPU seconds instead of wall time, so that other load changes little."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


def without_clock(option: Callable[..., None]) -> Callable[..., None]:
    """HiGHS's options without its time limit: the search asks it to stop."""

    def set_option(solver: object, name: str, value: object) -> None:
        if name != "time_limit":
            option(solver, name, value)

    return set_option


@contextmanager
def cpu_clock() -> Iterator[None]:
    """Let searches in this process count its CPU seconds in place of the clock's."""
    from stagecut.solvers.core import highs

    with ExitStack() as stack:
        stack.enter_context(patch.object(time, "monotonic", time.process_time))
        stack.enter_context(patch.object(highs, "_option", without_clock(highs._option)))
        yield
