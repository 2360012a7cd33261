"""HiGHS in a thread of its own, and the caller's thread that watches over it."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable

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
