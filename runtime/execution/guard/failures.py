"""Guard that ends all ranks within a bounded time and shows the first error once.

Every rank has a thread that watches. It gives signs of life to the others (`heartbeats.py`), looks
for an error, and ends the process when there is one. The first error wins. It comes

- from a rank that fails: its exception, in one line;
- from the rank before one that no longer answers, since it was killed;
- from a rank that computes for longer than the timeout while the others wait for it;
- from a rank that misses another one at the start, or finds that it runs another plan or model.

An error of a rank that waits for one that is gone ("connection closed by peer") is no first error:
the watcher then looks for the rank that no longer answers.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch.distributed as dist

from ....instances import InfeasibleError, InputError, StagecutError
from .error_origin import error_line, is_of_waiting, lost_ranks, place, tell_launcher, waits
from .heartbeats import Heartbeats

#: Longest that a rank may compute between actions, or start after another one, by default.
TIMEOUT_S = 120.0
#: How often a rank looks for errors and says that it lives.
POLL_S = 0.25
#: A rank without a sign of life for this long is gone.
SILENCE_S = 15.0
#: The same once a connection broke or the launcher ends the ranks.
SUSPICION_S = 3.0
#: Time that a rank has to end by itself after an error.
GRACE_S = 5.0


class Guard:
    """Failure guard of a rank of `world`, which shows errors; `guarded` makes it."""

    def __init__(
        self, rank: int, world: int, timeout_s: float, show: Callable[[str], None]
    ) -> None:
        self.rank, self.world, self.timeout_s, self.show = rank, world, timeout_s, show
        self.heartbeats = Heartbeats(rank, world, timeout_s)
        self._ended = threading.Event()
        self._joined = False  # from then on, others wait for this rank
        self._failed = False
        self._first_here: bool | None = None  # whether an exception of this rank came first
        self._busy_since = time.monotonic()
        self._main = threading.get_ident()
        self._actions: Callable[[], int] = int
        self._done = 0
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._last_word = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="stagecut watch", daemon=True)

    @property
    def store(self) -> dist.Store:
        """Store for making the process group."""
        return self.heartbeats.store

    def tick(self) -> None:
        """Record progress of this rank."""
        self._busy_since = time.monotonic()

    def count(self, actions: Callable[[], int]) -> None:
        """Record progress whenever the number of finished actions changes."""
        self._actions = actions

    def join(self, identity: dict[str, str]) -> None:
        """Wait until all ranks are here, and check that they run the same: `Heartbeats.join`."""
        self.heartbeats.join(identity)
        self.tick()
        self._joined = True

    def fail(self, error: BaseException) -> bool:
        """Make an exception of this rank known; return whether it is the first error.

        To be called where it is caught; again, it returns the same.
        """
        if self._first_here is None:
            self._failed = True
            code, text = 1, f"rank {self.rank}: {error_line(error)}"
            if isinstance(error, StagecutError) and error.__cause__ is None:  # what the user gave
                code, text = 3 if isinstance(error, InfeasibleError) else 2, str(error)
            elif is_of_waiting(error):
                text = self._suspect(text)
            self._first_here = self.heartbeats.publish(text, code)
        return self._first_here

    # The thread that watches.

    def start(self) -> None:
        """Begin to watch."""
        self.heartbeats.live(0)
        self._thread.start()

    def stop(self) -> None:
        """End without an error."""
        self._ended.set()
        self._thread.join()
        self._leave()

    def _leave(self) -> None:
        self.heartbeats.leave(GRACE_S if self._failed else self.timeout_s)

    def _watch(self) -> None:
        beats, since_error = 0, 0.0
        seen, changed = b"", time.monotonic()
        after = (self.rank + 1) % self.world
        while not self._ended.is_set():
            caught = self._caught()
            try:
                beats += 1
                self.heartbeats.live(beats)
                if self.heartbeats.has_error():
                    since_error = since_error or time.monotonic()
                    if not self._failed or time.monotonic() > since_error + GRACE_S:
                        code, text = self.heartbeats.first_error()
                        tell_launcher(text)
                        self._end(code)
                elif signal.SIGTERM in caught and not self._failed:
                    self._first(self._suspect(f"rank {self.rank}: ended by SIGTERM"), 1)
                elif signal.SIGINT in caught:
                    self._end(130)
                beat = self.heartbeats.beat(after)
                if beat != seen:
                    seen, changed = beat, time.monotonic()
                if beat and time.monotonic() > changed + SILENCE_S:
                    self._first(lost_ranks([after]), 1)
                self._check_pace()
            except dist.DistError:
                if not self._ended.is_set():
                    self.store_is_gone()

    def _caught(self) -> bytes:
        """Wait for the next look; return the numbers of the signals that came meanwhile."""
        ready, _, _ = select.select([self._signals], [], [], POLL_S)
        return os.read(self._signals, 64) if ready else b""

    def _check_pace(self) -> None:
        frame = sys._current_frames().get(self._main)
        now = time.monotonic()
        before, self._done = self._done, self._actions()
        gets_on = self._done != before or not self._joined or self._failed
        if gets_on or frame is None or waits(frame):
            self._busy_since = now
        elif now > self._busy_since + self.timeout_s:
            self._first(
                f"rank {self.rank} is late: busy for {self.timeout_s:g} s at {place(frame)}; "
                "see what it does there, or raise the timeout (--set timeout=S)",
                1,
            )

    def _suspect(self, otherwise: str) -> str:
        """Return the lost rank's error; `otherwise` if all are alive, or an earlier error."""
        before = {r: self.heartbeats.beat(r) for r in range(self.world) if r != self.rank}
        until = time.monotonic() + SUSPICION_S
        while time.monotonic() < until:
            if self.heartbeats.has_error():
                return otherwise
            time.sleep(POLL_S / 4)
        silent = [r for r, beat in before.items() if beat and self.heartbeats.beat(r) == beat]
        return lost_ranks(silent) if silent else otherwise

    def _first(self, text: str, code: int) -> None:
        """Publish from the thread that watches, and end, unless the main thread is about to."""
        if self.heartbeats.publish(text, code):
            tell_launcher(text)
            self.show(text)
        elif self._failed:
            return
        self._end(code)

    def store_is_gone(self) -> NoReturn:
        """End this process: the rank that keeps the store does not answer any more."""
        self._last_word.acquire()  # never released: both threads may get here
        if self.rank == 1:  # one rank reports for all that are left
            self.show("rank 0 is gone: it was killed, or ended without a word")
        os._exit(1)

    def _end(self, code: int) -> None:
        self._failed = True
        try:
            self._leave()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Deliver signals to the watching thread while the main thread waits in torch."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.signal(signal.SIGTERM, lambda *_: None)
        before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def guarded(
    *, timeout_s: float = TIMEOUT_S, show: Callable[[str], None] | None = None
) -> Iterator[Guard | None]:
    """Keep the ranks that torchrun's environment describes together.

    If this rank fails with the first error, its exception goes on, as a `StagecutError` of one
    line; if another one was first, the process ends. Without other ranks nothing is watched.

    Parameters
    ----------
    timeout_s
        How long a rank may compute while others wait for it, and start after another one.
    show
        Shows an error that the thread that watches found; default: on standard error.

    Returns
    -------
    context manager
        Of the guard; of None without other ranks.

    Raises
    ------
    StagecutError
        The first error, where it came from.
    InputError
        If this process has a process group already.

    Examples
    --------
    >>> with guarded() as guard:  # without torchrun there is one rank
    ...     print(guard)
    None
    """
    if dist.is_initialized():
        raise InputError(
            "a process group is there already, and a run makes its own: call "
            "torch.distributed.destroy_process_group() before, or begin none"
        )
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield None
        return
    guard = Guard(rank, world, timeout_s, show or _print)
    guard.start()
    with guard.signals():
        try:
            yield guard
        except BaseException as error:
            try:
                first = guard.fail(error)
                code, text = guard.heartbeats.first_error()
                guard.stop()
            except dist.DistError:
                guard.store_is_gone()
            tell_launcher(text)
            if not first:
                raise SystemExit(code) from None
            if text == str(error):
                raise
            raise StagecutError(text) from error
        guard.stop()


def _print(text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)
