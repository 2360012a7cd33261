"""Start time of this process, in seconds: deadlines count from there, imports included."""

from __future__ import annotations

import os
import time
from pathlib import Path


def _age_s() -> float:
    """Return the seconds for which this process has run.

    On Linux psutil adds clock ticks since boot to a boot time that is known to whole seconds only;
    so the ticks are compared with the clock that counts from boot.
    """
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        import psutil

        return time.time() - psutil.Process().create_time()


#: `time.monotonic()` when the process began: the latest of three readings, since a pause between
#: the two clocks makes the process seem older.
STARTED = max(time.monotonic() - _age_s() for _ in range(3))


def seconds_left(limit: float, least: float = 0.5) -> float:
    """Return the seconds left of a limit since the process began, at least the share `least`."""
    return max(least * limit, STARTED + limit - time.monotonic())
