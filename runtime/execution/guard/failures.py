"""Guard that ends all ranks within a bounded time and shows the first error once.

Every rank has a watching thread. It writes heartbeats to the group's store, looks there for an
error, and ends the process when there is one. The first error comes

- from a rank that fails: its exception, in one line;
- from the rank before one that was killed, and no longer answers;
- from a rank that computes for longer than the timeout while the others wait for it;
- from a rank that misses another one at the start, or finds that it runs another plan or model.

An error of a rank that waited for a killed one ("connection closed by peer") is not the first: the
watching thread then looks for the rank that no longer answers.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import torch
import torch.distributed as dist

from ....instances import InfeasibleError, InputError, StagecutError
from ..own_loop import transport

#: Longest time that a rank may compute between actions, or start after another one, by default.
TIMEOUT_S = 120.0
#: Seconds between two times that a rank looks for errors and reports that it is alive.
POLL_S = 0.25
#: Longest silence of a rank; after that it counts as gone.
SILENCE_S = 15.0
#: Longest silence once a connection broke or the launcher ends the ranks.
SUSPICION_S = 3.0
#: Time that a rank has to end by itself after an error.
GRACE_S = 5.0
#: Files in whose code a rank waits for others.
_WAITING = (transport.__file__, threading.__file__)
_WAITING_IN = os.path.dirname(dist.__file__) + os.sep


class Guard:
    """Failure guard of one rank of `world`; `guarded` makes it, and `show` prints its errors."""

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
        """Store to make the process group with."""
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
        """Publish an exception of this rank, where it is caught; return whether it is the first.

        Later calls return the same.
        """
        if self._first_here is None:
            self._failed = True
            code, text = 1, f"rank {self.rank}: {error_line(error)}"
            if isinstance(error, StagecutError) and error.__cause__ is None:  # the user's error
                code, text = 3 if isinstance(error, InfeasibleError) else 2, str(error)
            elif is_of_waiting(error):
                text = self._suspect(text)
            self._first_here = self.heartbeats.publish(text, code)
        return self._first_here

    # The watching thread.

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
        """Wait for the next turn; return the numbers of the signals that came meanwhile."""
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
        """Publish from the watching thread, and end, unless the main thread is about to."""
        if self.heartbeats.publish(text, code):
            tell_launcher(text)
            self.show(text)
        elif self._failed:
            return
        self._end(code)

    def store_is_gone(self) -> NoReturn:
        """End this process, as the rank that hosts the store no longer answers."""
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
    """End all ranks of torchrun's environment if one of them fails, hangs or is killed.

    If this rank fails with the first error, its exception propagates, as a `StagecutError` of one
    line; if another one was first, the process ends. A single rank is not watched.

    Parameters
    ----------
    timeout_s
        Longest time, in seconds, that a rank may compute while others wait for it, or start after
        another one.
    show
        Function that prints an error that the watching thread found; default: on standard error.

    Returns
    -------
    context manager
        A context that yields the guard, or None for a single rank.

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


class Heartbeats:
    """A rank's connection to the store of heartbeats and errors.

    Raises StagecutError if rank 0 does not start within `timeout_s`.
    """

    def __init__(self, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.hosts = rank == 0 and not launched
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

        def connect(*, hosts: bool) -> dist.Store:
            store = dist.TCPStore(
                address,
                port,
                is_master=hosts,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
            return dist.PrefixStore(f"stagecut {attempt}", store)

        try:
            self.store = connect(hosts=self.hosts)
            self._mine = connect(hosts=False)  # the other one may be busy, waiting for a key
        except dist.DistError as error:
            raise StagecutError(
                f"rank {rank}: rank 0 did not start within {timeout_s:g} s ({first_line(error)})"
            ) from None

    def join(self, identity: dict[str, str]) -> None:
        """Wait until all ranks are here, and check that all have the same `identity`.

        Raises StagecutError if a rank does not come within the timeout, or runs something else.
        """
        text = "\n".join(f"{what}\t{value}" for what, value in identity.items())
        self.store.set(f"joined {self.rank}", text)
        keys = [f"joined {r}" for r in range(self.world)]
        until = time.monotonic() + self.timeout_s
        while not self.store.check(keys):
            if time.monotonic() > until:
                late = [str(r) for r, key in enumerate(keys) if not self.store.check([key])]
                raise StagecutError(
                    f"rank {', '.join(late)} of {self.world} did not start within "
                    f"{self.timeout_s:g} s; see why, or raise the timeout (--set timeout=S)"
                )
            time.sleep(0.02)
        for r, key in enumerate(keys):
            theirs = dict(line.split("\t") for line in self.store.get(key).decode().splitlines())
            for what, value in identity.items():
                if theirs.get(what) != value:
                    low, high = sorted(((self.rank, value), (r, str(theirs.get(what)))))
                    raise StagecutError(
                        f"rank {high[0]} runs another {what} than rank {low[0]} "
                        f"({_short(high[1])}, {_short(low[1])}); give all ranks the same"
                    )

    def publish(self, text: str, code: int) -> bool:
        """Publish an error with its exit code; return whether it is the first."""
        value = f"{self.rank}\t{code}\t{text}"
        return bool(self._mine.compare_set("error", "", value).decode() == value)

    def has_error(self) -> bool:
        """Whether an error is known."""
        return bool(self._mine.check(["error"]))

    def first_error(self) -> tuple[int, str]:
        """Return exit code and text of the first error; waits for one."""
        _, code, text = self._mine.get("error").decode().split("\t", 2)
        return int(code), text

    def live(self, beats: int) -> None:
        """Publish a heartbeat; `beats` differs from call to call."""
        self._mine.set(f"alive {self.rank}", str(beats))

    def beat(self, rank: int) -> bytes:
        """Return the last heartbeat of a rank; empty if it is not here yet or has left."""
        if self._mine.check([f"left {rank}"]) or not self._mine.check([f"alive {rank}"]):
            return b""
        return bytes(self._mine.get(f"alive {rank}"))

    def leave(self, patience_s: float) -> None:
        """Record the end of this rank; the host of the store waits for the others."""
        self._mine.set(f"left {self.rank}", "1")
        until = time.monotonic() + patience_s
        keys = [f"left {r}" for r in range(self.world)]
        while self.hosts and time.monotonic() < until and not self._mine.check(keys):
            time.sleep(0.02)


def _short(value: str) -> str:
    """Return the beginning of a value; longer, if it is no hash, to tell folders apart."""
    return value[:12] if re.fullmatch("[0-9a-f]{40,}", value) else value[:60]


def waits(frame: FrameType) -> bool:
    """Whether a rank whose innermost frame this is waits for others."""
    file = frame.f_code.co_filename
    return file in _WAITING or file.startswith(_WAITING_IN)


def is_of_waiting(error: BaseException) -> bool:
    """Whether an exception was raised where a rank waits for others."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and isinstance(error, RuntimeError) and waits(trace.tb_frame)


def place(frame: FrameType) -> str:
    """Return the innermost line of code outside of torch, as file and number."""
    root = os.path.dirname(torch.__file__) + os.sep
    at = frame
    while at.f_back is not None and at.f_code.co_filename.startswith(root):
        at = at.f_back
    return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}"


def lost_ranks(ranks: list[int]) -> str:
    """Return the error of ranks that no longer answer."""
    which = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
    return f"{which} gone: killed (for taking too much memory?), or the machine is down"


def error_line(error: BaseException) -> str:
    """Return an exception in one line."""
    line = first_line(error)
    cause = error.__cause__ or error
    if isinstance(cause, MemoryError | torch.OutOfMemoryError) or "allocate memory" in line:
        return f"out of memory: {line}"
    if isinstance(error, StagecutError):
        return line
    name = type(error).__name__
    return name if line == name else f"{name}: {line}"


def tell_launcher(text: str) -> None:
    """Add the error's line to torchrun's report of failed processes."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        with suppress(OSError):  # then torchrun's report goes without it
            Path(file).write_text(
                json.dumps({"message": text, "timestamp": str(int(time.time()))}), encoding="utf-8"
            )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type if it has none."""
    lines = (line.strip() for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)
