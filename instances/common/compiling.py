"""When kernels may be compiled: for the gap asked for, and beyond it by a call that has not yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Conditions for compiling what has not been compiled on this machine, the innermost last.
_conditions: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("_conditions", default=())


class NotCompiled(Exception):
    """A kernel has too much to do to be interpreted, and is not to be compiled now."""


def may_compile() -> bool:
    """Return whether all conditions hold; those behind one that does not are not asked."""
    return all(may() for may in reversed(_conditions.get()))


@contextmanager
def compiled_only_if(may: Callable[[], bool]) -> Iterator[None]:
    """Let kernels raise `NotCompiled` that would have to be compiled while `may` says no.

    It counts for this thread; what was compiled on this machine before is used all the same.
    """
    token = _conditions.set((*_conditions.get(), may))
    try:
        yield
    finally:
        _conditions.reset(token)


@contextmanager
def compiled_to_come_near(near: Callable[[], bool]) -> Iterator[None]:
    """Let the body compile while it is not `near`; if it did, it ends where it would go on to."""
    waited = declined = False

    def worth_it() -> bool:
        nonlocal waited, declined
        there = near()
        declined = waited and there
        waited = waited or not there
        return not declined

    try:
        with compiled_only_if(worth_it):
            yield
    except NotCompiled:
        if not declined:
            raise
