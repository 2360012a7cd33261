"""Start time of this process, in seconds: deadlines count from there, imports included."""

from __future__ import annotations

import os
import time
from pathlib import Path


def _age_s() -> float:
    """Return for how many seconds this process has run.

    On Linux psutil adds ticks since the machine began to a time of its beginning that is known to
    a whole second only; so they are compared with the clock that counts from there.
    """
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        import psutil

        return time.time() - psutil.Process().create_time()


#: `time.monotonic()` when the process began. Of three looks the latest: a pause between one clock
#: and the other makes the process seem older.
STARTED = max(time.monotonic() - _age_s() for _ in range(3))


def seconds_left(limit: float, least: float = 0.5) -> float:
    """Return the seconds left of a limit that began with the process, at least `least` of it."""
    return max(least * limit, STARTED + limit - time.monotonic())
