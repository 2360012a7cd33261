"""HiGHS in a thread of its own, and the caller's thread that watches over it.

HiGHS 1.12 prints a line of its own (`OWN_LINE`), whatever its options say, past Python to file
descriptor 1. While it runs that is a pipe, and all but this line goes on from there to where it
belongs; so what other threads print is kept.
"""

from __future__ import annotations

import ctypes
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import highspy
import numpy as np

from ...formulations.linear import Linear
from ...instances.common.arrays import Floats
from .search import S, Search

#: Seconds that HiGHS gets to come back after it was asked to stop, before it is left alone. It
#: does not listen while it solves the first relaxation, though it does keep its time limit then.
PATIENCE_S = 1.0
#: Seconds between two looks at the clock and at Ctrl-C.
PERIOD_S = 0.05

#: What HiGHS prints, and seconds after it that what was printed gets to come through the pipe.
OWN_LINE = b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();\n"
THROUGH_S = 1.0


class Monitor:
    """What HiGHS reported so far; filled in its thread, read in the caller's."""

    def __init__(
        self,
        linear: Linear,
        on_incumbent: Callable[[Floats], bool | None] | None = None,
        on_bound: Callable[[float], bool | None] | None = None,
    ) -> None:
        self.linear = linear
        self.sign = -1.0 if linear.maximise else 1.0
        self.x: Floats | None = None
        self.bound = -math.inf * self.sign
        self.nodes = 0
        self.stop = threading.Event()
        self.news: queue.SimpleQueue[Floats | float | None] = queue.SimpleQueue()
        self._on_incumbent = on_incumbent
        self._on_bound = on_bound

    def listen(self, highs: highspy.Highs) -> None:
        """Subscribe to what is needed; runs before the solve."""
        reported = -math.inf

        def interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            event.data_in.user_interrupt = self.stop.is_set()

        def mip_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            nonlocal reported
            event.data_in.user_interrupt = self.stop.is_set()
            self.nodes = int(event.data_out.mip_node_count)
            bound = float(event.data_out.mip_dual_bound)
            if math.isfinite(bound) and abs(bound) < 1e30 and bound * self.sign > reported:
                reported = bound * self.sign
                self.news.put(bound)

        def improved(event: highspy.highs.HighsCallbackEvent) -> None:
            self.news.put(np.array(event.data_out.mip_solution, dtype=np.float64))

        highs.cbSimplexInterrupt.subscribe(interrupt)
        highs.cbIpmInterrupt.subscribe(interrupt)
        highs.cbMipInterrupt.subscribe(mip_interrupt)
        highs.cbMipImprovingSolution.subscribe(improved)

    def take(self, item: Floats | float) -> None:
        """Hand one piece of news on; runs in the caller's thread."""
        if isinstance(item, float):
            self.bound = item
            enough = self._on_bound is not None and self._on_bound(item)
        else:
            self.x = whole(self.linear, item)
            enough = self._on_incumbent is not None and self._on_incumbent(self.x)
        if enough:
            self.stop.set()


def drive(
    highs: highspy.Highs, monitor: Monitor, late: Callable[[], bool], search: Search[S]
) -> bool:
    """Run HiGHS beside us; return whether it came back.

    Raises
    ------
    Exception
        What the monitor's callbacks raise, once HiGHS has been told to stop.
    """
    monitor.listen(highs)

    def work() -> None:
        try:
            with _without_own_line():
                highs.run()
        finally:
            monitor.news.put(None)

    # Not a daemon: Python would end the thread inside HiGHS at exit, which aborts the process.
    worker = threading.Thread(target=work, name="HiGHS", daemon=False)
    failure: BaseException | None = None
    asked = math.inf
    worker.start()
    while True:
        try:
            item = monitor.news.get(timeout=PERIOD_S)
            if item is None:
                worker.join()
                break
            if failure is None:
                monitor.take(item)
        except queue.Empty:
            pass
        except BaseException as error:  # also a second Ctrl-C: stop HiGHS, then let it through
            failure = error
            monitor.stop.set()
        if not monitor.stop.is_set() and (search.should_stop() or late()):
            monitor.stop.set()
        if monitor.stop.is_set():
            asked = min(asked, time.monotonic())
            if time.monotonic() - asked > PATIENCE_S:
                break
    if failure is not None:
        raise failure
    return not worker.is_alive()


def whole(linear: Linear, x: Floats) -> Floats:
    return np.where(linear.integer, np.round(x), x)


class _Pipe(NamedTuple):
    """A pipe in place of standard output: a copy of that, its reader, and how it is known."""

    beyond: int
    reader: threading.Thread
    inode: int


_lock = threading.Lock()
_running = 0  # how many solves there are, of which the first makes the pipe and the last ends it
_piped: _Pipe | None = None


@contextmanager
def _without_own_line() -> Iterator[None]:
    """Let all but HiGHS's own line through to standard output."""
    global _running, _piped
    with _lock:
        _running += 1
        if _running == 1:
            with suppress(OSError):  # it is closed, and nothing can be printed
                _piped = _pipe()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0 and _piped is not None:
                _flush_c()
                with suppress(OSError):  # it was closed meanwhile; or it leads elsewhere
                    if os.fstat(1).st_ino == _piped.inode:
                        os.dup2(_piped.beyond, 1)
                os.close(_piped.beyond)
                _piped.reader.join(THROUGH_S)  # it goes on where a child process has the pipe
                _piped = None


def _pipe() -> _Pipe:
    """Put a pipe in place of standard output."""
    beyond, ours = os.dup(1), os.dup(1)
    read, write = os.pipe()
    _flush_c()
    os.dup2(write, 1)
    os.close(write)
    reader = threading.Thread(target=_pass_on, args=(read, ours), name="stdout", daemon=True)
    reader.start()
    return _Pipe(beyond, reader, os.fstat(1).st_ino)


def _pass_on(read: int, to: int) -> None:
    """Write what is read but for HiGHS's own lines; a line's begin waits for its rest."""
    kept = b""
    with open(read, "rb", buffering=0) as source, open(to, "wb") as target:
        while found := source.read(1 << 16):
            kept = (kept + found).replace(OWN_LINE, b"")
            some = next(
                (n for n in range(len(OWN_LINE) - 1, 0, -1) if kept.endswith(OWN_LINE[:n])), 0
            )
            ready, kept = kept[: len(kept) - some], kept[len(kept) - some :]
            with suppress(OSError):
                target.write(ready)
                target.flush()
        with suppress(OSError):
            target.write(kept)


def _flush_c() -> None:
    """Write what C code has printed and not written yet."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
