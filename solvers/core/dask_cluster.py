"""Executor that runs the workers of a solve on a Dask cluster.

Each worker is a Dask task that starts a process on whatever machine the scheduler chose, and relays
messages: those from the process through a `Queue`, those to it through a `Variable`. If a machine
leaves, Dask runs its task again elsewhere; a task that found no machine starts when one joins.
Either begins with all that is known by then.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distributed import Client, Future, Queue, Variable
from distributed import as_completed as as_finished
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import get_backend

from ...instances import InputError
from ...instances.common.errors import quote
from .processes import LAST_WORDS_S, A, Body, Channel, Executor, Moved, Process, R
from .search import Found, Proved, Withdrawn

#: Seconds in which a scheduler must answer.
CONNECT_S = 20.0

#: Seconds between two polls for messages, at either end.
PERIOD_S = 0.25

#: Seconds between two heartbeats of the solve, and seconds without one after which a task ends.
BEAT_S, SILENCE_S = 2.0, 60.0

#: Value of the `Variable`, in place of the known messages, that tells the task to end.
_STOP = b""


class DaskCluster(Executor):
    """The workers of the Dask scheduler at an address; InputError if no scheduler answers there."""

    def __init__(self, address: str) -> None:
        try:
            _check_reachable(address)
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # `_Task` reports
            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, OverflowError, ValueError, AssertionError) as error:
            reason = str(error) or type(error).__name__
            raise InputError(
                f"scheduler: no Dask scheduler answers at {quote(address)}: {reason}"
            ) from None
        self.size = max(1, sum(self._client.nthreads().values()))
        self._tasks: list[_Task] = []

    def start(self, body: Body, argument: object) -> Channel:
        """Start a task that runs a function in a process of its own."""
        self._tasks.append(_Task(self._client, body, argument))
        return self._tasks[-1]

    def unordered(
        self, function: Callable[[A], R], arguments: Sequence[A]
    ) -> Iterator[tuple[A, R]]:
        """Call a function on the cluster for each argument, and yield results as they come."""
        futures = {
            self._client.submit(function, argument, pure=False): argument for argument in arguments
        }
        with self._client.as_current():
            finished = as_finished(list(futures))
        for future in finished:
            yield futures[future], future.result()

    def close(self) -> None:
        """End the tasks and leave the cluster, without waiting for a scheduler that is gone."""
        until = time.monotonic() + LAST_WORDS_S
        for task in self._tasks:
            task.wait(until - time.monotonic() if self._client.status == "running" else 0.0)
        leave = threading.Thread(target=self._client.close, name="leaves the cluster", daemon=True)
        leave.start()
        leave.join(max(0.0, until - time.monotonic()))


def _check_reachable(address: str) -> None:
    """Raise unless a scheduler listens at an address; it sends the first byte.

    A `Client` that failed to connect is closed by the garbage collector, in whatever thread that
    runs, and has been seen to deadlock there on a lock that this thread holds. So none is made for
    a wrong address.
    """
    scheme, where = parse_address(address)
    get_backend(scheme)
    if scheme != "inproc":
        with socket.create_connection(parse_host_port(where), timeout=CONNECT_S) as port:
            if scheme == "tcp" and not port.recv(1):
                raise ConnectionError("it hangs up")


class _Task(Channel):
    """The solve's end of a channel to a Dask task."""

    def __init__(self, client: Client, body: Body, argument: object) -> None:
        name = f"stagecut-{uuid.uuid4().hex}"
        self._known: dict[tuple[str, str], object] = {}
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._state = Variable(f"{name}-known", client=client)
        self._queue = Queue(f"{name}-found", client=client)
        self._state.set((0, pickle.dumps([])))
        self._future: Future = client.submit(
            _relay, pickle.dumps((body, argument)), name, key=name, pure=False
        )
        self._thread = threading.Thread(target=self._exchange, name=name, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Send a message; it replaces an unread one of its kind and origin that is no better."""
        key = (type(message).__name__, getattr(message, "origin", ""))
        with self._lock:
            if not _worse(message, self._known.get(key)):
                self._known[key] = message

    def receive(self) -> Any:
        """Return the next message, or raise EOFError with how the task ended."""
        message = self._inbox.get()
        if isinstance(message, EOFError):
            raise message
        return message

    def close(self) -> None:
        """Receive the messages that have arrived, and tell the task to end."""
        self._closed.set()

    def wait(self, seconds: float) -> None:
        """Wait for up to `seconds` until the task has been told to end."""
        self._thread.join(max(0.0, seconds))

    def _exchange(self) -> None:
        """Send and receive messages until the task ends or is closed."""
        try:
            why = self._until_end()
        except Exception as error:  # connections fail in many ways; the receiver must hear
            why = f"lost the scheduler ({error or type(error).__name__})"
        self._inbox.put(EOFError(why))

    def _until_end(self) -> str:
        beat, count, said, begun = 0.0, 0, b"", 0
        while True:
            closed = self._closed.is_set()
            came = [pickle.loads(blob) for blob in self._queue.get(batch=True)]
            for message in came:
                if not isinstance(message, EOFError | Moved):
                    self.send(message)  # first, so that a task that is restarted knows it
            with self._lock:
                known = pickle.dumps(list(self._known.values()))
            if closed or known != said or time.monotonic() - beat > BEAT_S:
                count, said, beat = count + 1, known, time.monotonic()
                self._state.set((count, _STOP if closed else known))
            for message in came:
                if isinstance(message, EOFError):
                    return str(message)
                if isinstance(message, Moved):
                    begun += 1
                    if begun == 1:
                        continue
                self._inbox.put(message)
            if closed:
                self._future.cancel()
                return "was ended"
            if self._future.status in ("error", "cancelled", "lost"):
                return f"failed on the cluster ({self._future.exception(timeout=5)})"
            self._closed.wait(PERIOD_S)


def _worse(message: object, known: object) -> bool:
    """Whether a message adds nothing to one that is known."""
    if isinstance(message, Found) and isinstance(known, Found):
        return known.objective <= message.objective
    if isinstance(message, Proved) and isinstance(known, Proved):
        return known.bound >= message.bound
    return not isinstance(message, Found | Proved | Withdrawn)


def _relay(packed: bytes, name: str) -> None:
    """Run a function in a process beside this task, and relay its messages both ways."""
    body, argument = pickle.loads(packed)
    state, found = Variable(f"{name}-known"), Queue(f"{name}-found")
    found.put(pickle.dumps(Moved()))
    process = Process(body, argument)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(process, inbox), daemon=True).start()
    last, heard, told = -1, time.monotonic(), set[bytes]()
    try:
        while time.monotonic() - heard < SILENCE_S:
            with contextlib.suppress(queue.Empty):
                message = inbox.get(timeout=PERIOD_S)
                found.put(pickle.dumps(message))
                if isinstance(message, EOFError):
                    return
                if not inbox.empty():
                    continue
            count, known = state.get(timeout=SILENCE_S)
            if known == _STOP:
                return
            if count != last:
                last, heard = count, time.monotonic()
            for message in pickle.loads(known):
                blob = pickle.dumps(message)
                if blob not in told:
                    told.add(blob)
                    process.send(message)
    finally:
        process.close()


def _listen(process: Process, inbox: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            inbox.put(process.receive())
        except EOFError as end:
            inbox.put(end)
            return
