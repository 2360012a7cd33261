"""Ctrl-C during a search."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .search import Search


@contextmanager
def interrupts(search: Search[Any]) -> Iterator[None]:
    """Let the first Ctrl-C end the search with what it has; a second one raises as usual.

    Where it is ignored, as by shells for what runs in the background, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before in (signal.SIG_IGN, None):
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        search.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
