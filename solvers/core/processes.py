"""Processes that run a function elsewhere, and the channels to communicate with them.

An *executor* runs functions: `LocalProcesses` on this machine, `DaskCluster` (`dask_cluster.py`) on
others. Comparisons run their cases through `unordered`, solves their strategies through `start`.

Processes are started as new programs: not forked, as there may be threads of HiGHS or torch, and
not through `multiprocessing`, which would run the user's own program again. They communicate
through pipes, and a process ends when its pipe does, so that none survives if this one is killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

A = TypeVar("A")
R = TypeVar("R")

#: Message that ends the writing thread.
_CLOSED = object()

#: Niceness of workers: if cores are scarce, the process that they help gets nine tenths of them.
NICENESS = 10

#: Seconds for the last messages of processes to arrive, and for processes to learn that they end.
LAST_WORDS_S = 2.0

#: Times that a message is pickled before that counts as failed; see `_pickled`.
ATTEMPTS = 5


class Channel(Protocol):
    """Messages to and from a function that runs elsewhere."""

    def send(self, message: object) -> None:
        """Send a message; return at once, and never fail, though the message may be lost."""

    def receive(self) -> Any:
        """Return the next message; wait for it if there is none.

        EOFError, whose text says how the function ended, once all that it sent is received.
        """

    def close(self) -> None:
        """End the function, wherever it runs; what it has sent can still be received."""


#: A function that runs elsewhere, given its argument and the channel back.
Body = Callable[[Any, Channel], None]


@dataclass(frozen=True)
class Moved:
    """Message: a function starts, on its first machine or again on another."""


class Executor(Protocol):
    """A place where functions run, each in a process of its own."""

    size: int  # number of functions that run at a time

    def start(self, body: Body, argument: object) -> Channel:
        """Start a function in a process of its own."""

    def unordered(
        self, function: Callable[[A], R], arguments: Sequence[A]
    ) -> Iterator[tuple[A, R]]:
        """Yield each argument with its result, as results become available."""

    def close(self) -> None:
        """Release processes and connections."""


def python_process(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of a Python process, given arguments of the interpreter.

    It imports modules from where this process does, but not from the working directory unless this
    package is there: files beside a user's data are data, even if one is called ``random.py``.
    """
    (package, *_) = sys.modules[__package__.partition(".")[0]].__path__
    folders = (path for path in sys.path if path and not _is_working_directory(path))
    paths = dict.fromkeys([*folders, os.path.dirname(package)])
    return [sys.executable, "-P", *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _is_working_directory(path: str) -> bool:
    try:
        return os.path.samefile(path, ".")
    except OSError:  # one of the two does not exist
        return False


class LocalProcesses(Executor):
    """Processes on this machine, `size` at a time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def start(self, body: Body, argument: object) -> Channel:
        """Start a function in a process of its own."""
        return Process(body, argument)

    def unordered(
        self, function: Callable[[A], R], arguments: Sequence[A]
    ) -> Iterator[tuple[A, R]]:
        """Call a function from threads, as it starts processes itself; yield the results."""
        with ThreadPoolExecutor(max_workers=self.size) as pool:
            futures = {pool.submit(function, argument): argument for argument in arguments}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Do nothing, as nothing is held."""


class Process(Channel):
    """A function that runs in a process of its own, and the channel to it."""

    def __init__(self, body: Body, argument: object) -> None:
        command, environment = python_process("-c", PROGRAM)
        # workers share the cores, so numerical libraries get one thread each
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, **threads},
            # Ctrl-C is for this process alone. A session of its own would get as much CPU time as
            # all processes of this session if the scheduler groups by session.
            process_group=0,
        )
        self._out: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._out.put((body, argument))
        threading.Thread(target=self._write, name="to a worker", daemon=True).start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._child.pid

    def send(self, message: object) -> None:
        """Send a message."""
        self._out.put(message)

    def receive(self) -> Any:
        """Return the next message; EOFError says how the process ended."""
        assert self._child.stdout is not None
        try:
            return pickle.load(self._child.stdout)
        except Exception:  # a truncated message can raise anything
            self._child.stdout.close()
            raise EOFError(_end_of(self._child)) from None

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()
        self._out.put(_CLOSED)

    def _write(self) -> None:
        assert self._child.stdin is not None
        with suppress(OSError), self._child.stdin as pipe:
            while (message := self._out.get()) is not _CLOSED:
                pipe.write(_pickled(message))
                pipe.flush()


def _pickled(message: object) -> bytes:
    """Return a message as bytes.

    A solver may add a cached property to the task while it is pickled; then try again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return pickle.dumps(message)
        except RuntimeError:
            continue
    return pickle.dumps(message)


def _end_of(child: subprocess.Popen[bytes]) -> str:
    """Return, in words, how a process that has closed its pipe ended."""
    code = child.wait()
    return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"


class Pipes(Channel):
    """The channel over standard input and output, in the process that runs the function."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; end the process if nobody listens any more."""
        try:
            with self._lock:
                pickle.dump(message, self._outgoing)
                self._outgoing.flush()
        except OSError:
            self.close()

    def receive(self) -> Any:
        """Return the next message."""
        return pickle.load(self._incoming)

    def close(self) -> None:
        """End this process at once, whatever its threads do."""
        os._exit(1)


#: The program of a worker process: run the function received, and communicate through the pipes.
PROGRAM = f"from {__name__} import main; main()"


def main() -> None:
    """Run one function; the process, and so its pipes, end with it."""
    os.nice(NICENESS)
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between messages
    body, argument = pickle.load(sys.stdin.buffer)
    body(argument, Pipes(sys.stdin.buffer, outgoing))
    outgoing.flush()
    os._exit(0)  # does not wait for threads of HiGHS that ignore requests
