"""What Pyomo needs so that it keeps to our manners."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed() -> Iterator[None]:
    """Silence Pyomo's log: it tells of every limit reached and every exception passed on."""
    log = logging.getLogger("pyomo")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
