"""Workers of one solve: other processes that run strategies beside its method.

The solve starts them once they are worth it, passes to each what the others find, and ends them.
Its search remains the only judge: it judges again what a worker sends.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...formulations.task import Task
from ...instances import InputError, Limit, Solution
from .limits import Limits
from .method import Strategy
from .processes import LAST_WORDS_S, Channel, Executor, LocalProcesses, Moved
from .search import OPTIMAL_GAP, PERIOD_S, Found, News, Peers, Proved, Search
from .under_rules import run_method

#: Seconds that a solve must have run, and half of those it must have left, before workers start:
#: starting one takes about two seconds of computing.
START_AFTER_S = 1.5

#: CPU seconds of the solve without a heartbeat of a worker, after which the worker counts as
#: starved, and the solve no longer relies on its strategy. A worker sends four heartbeats per
#: `STARVED_S` of its own CPU time.
STARVED_S = 2.0

#: Sender of the news that a worker gets from the solve.
SOLVE = "the solve"


@dataclass(frozen=True)
class Begun:
    """Message: a worker runs a strategy from now on."""

    strategy: str


@dataclass(frozen=True)
class Heartbeat:
    """Heartbeat of a worker: it has computed for another quarter of `STARVED_S`."""


@dataclass(frozen=True)
class Failed:
    """Message: a strategy ended with an error."""

    strategy: str
    error: str


@dataclass(frozen=True)
class Finished:
    """Message: a worker has run all its strategies."""


@dataclass(frozen=True)
class Ended:
    """Message: the channel is closed."""

    why: str


@dataclass(frozen=True, eq=False)
class WorkerJob:
    """A worker's task, limits and strategies, and the best solution and bound so far."""

    # task, judge, tie: as in the solve; picklable, so functions of modules or values of classes
    task: Task[Any]
    judge: Callable[[Any], float]
    tie: Callable[[Any], float] | None
    limits: Limits  # as in the solve, but for the seconds left and the seed
    strategies: tuple[Strategy, ...]  # run one after the other
    news: tuple[News, ...] = ()  # the best solution and bound known


class Portfolio(Peers):
    """The workers of a solve, at most `count`, which run strategies beside its method.

    If `deterministic`, they start at once and exchange what they find only at the end.
    """

    def __init__(
        self,
        task: Task[Any],
        search: Search[Solution],
        strategies: tuple[Strategy, ...],
        executor: Executor,
        count: int,
        *,
        deterministic: bool,
    ) -> None:
        self._task, self._search, self._executor = task, search, executor
        self._hands = dealt(strategies, count)
        self._deterministic = self._holds_back = deterministic
        self._begun = time.monotonic()
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._taking, self._counting = threading.Lock(), threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._listeners: dict[str, threading.Thread] = {}
        self._kept: dict[str, list[object]] = {}
        self._at_work: dict[str, str] = {}  # what each worker runs now
        self._heartbeats: dict[str, float] = {}  # CPU seconds of this process at the last one
        self._closing = False
        search.peers = self

    def look(self) -> None:
        """Start workers once they are worth it; handle their messages, as the solver may not."""
        search = self._search
        if self._channels:
            self._count_beside()
            self.take(search)
        elif self._hands and (self._deterministic or self._worth_starting):
            self._start()

    @property
    def _worth_starting(self) -> bool:
        search = self._search
        return (
            time.monotonic() - self._begun > START_AFTER_S
            and search.seconds_left > 2 * START_AFTER_S
            and (search.restricted or not any(s.restricted for hand in self._hands for s in hand))
            and not search.should_stop()
        )

    def wait(self) -> None:
        """Wait until all workers have run their strategies, or the search has to end."""
        if not self._channels:
            return
        while self._at_work and not self._search.overdue() > 0 and not self._settled:
            time.sleep(0.02)
            self.take(self._search)
        self._search.should_stop()  # records which limit it was

    @property
    def _settled(self) -> bool:
        return self._search.done or self._search.gap <= OPTIMAL_GAP

    def close(self) -> None:
        """End the workers, and handle the messages that they have sent.

        If the search was done without them, those of deterministic workers are dropped: how many
        have arrived depends on the machine.
        """
        self._closing, settled = True, self._settled
        for channel in self._channels.values():
            channel.close()
        until = time.monotonic() + LAST_WORDS_S
        for listener in self._listeners.values():
            listener.join(max(0.0, until - time.monotonic()))
        self._holds_back = False
        for name, messages in self._kept.items():
            for message in messages if not settled else ():
                self._inbox.put((name, message))
        self.take(self._search)
        self._executor.close()
        by = {"best plan": self._search.found_by, "bound": self._search.proved_by}
        if any(by.values()):
            self._search.note("; ".join(f"{what} by {who}" for what, who in by.items() if who))

    def tell(self, news: News, sender: str) -> None:
        """Send news to all workers but the sender."""
        if not self._deterministic:
            for name, channel in list(self._channels.items()):
                if name != sender:
                    channel.send(news)

    def take(self, search: Search[Any]) -> None:
        """Handle the messages received, unless held back or another thread is handling them."""
        if self._holds_back or self._inbox.empty() or not self._taking.acquire(blocking=False):
            return
        try:
            while not self._inbox.empty():
                sender, message = self._inbox.get()
                match message:
                    case Failed(strategy, error):
                        search.note(f"{sender}: {strategy} failed ({error}); the others went on")
                    case Moved():
                        search.note(f"{sender}: its machine left; begun again on another")
                    case Ended(why):
                        search.note(
                            f"{sender} {why}; what it had found is kept, the others went on"
                        )
                    case _:
                        search.learn(message, sender)
        finally:
            self._taking.release()

    def _start(self) -> None:
        search, hands, self._hands = self._search, self._hands, []
        limits = search.limits
        left = None if limits.seconds is None else max(search.seconds_left, 1e-3)
        for i, hand in enumerate(hands, start=1):
            name = f"worker {i} ({', '.join(strategy.name for strategy in hand)})"
            own = replace(limits, seconds=left, seed=(limits.seed + i) % 2**31)
            job = WorkerJob(self._task, search.judge, search.tie, own, hand, self._known())
            try:
                channel = self._executor.start(work, job)
            except OSError as error:
                search.note(f"{name} could not be started ({error})")
                continue
            self._channels[name] = channel
            self._runs(name, "")
            listener = threading.Thread(target=self._listen, args=(name, channel), daemon=True)
            self._listeners[name] = listener
            listener.start()
            for message in self._known():
                channel.send(message)  # includes what was found while it started
        search.note(f"beside this process: {', '.join(self._channels)}")

    def _known(self) -> tuple[News, ...]:
        """Return the best solution and bound as messages, for a new worker."""
        search = self._search
        if self._deterministic:
            return ()
        proved = Proved(search.bound, search.bound_origin, search.certificate)
        return (
            *(() if search.best is None else (Found(search.best, search.objective),)),
            *((proved,) if math.isfinite(proved.bound) else ()),
        )

    def _runs(self, name: str, strategy: str | None) -> None:
        """Record which strategy worker `name` runs; forget the worker if `strategy` is None."""
        with self._counting:  # workers may end at the same time
            if strategy is None:
                del self._at_work[name]
            else:
                self._at_work[name], self._heartbeats[name] = strategy, time.process_time()
        self._count_beside()

    def _count_beside(self) -> None:
        """Tell the search which strategies run beside it, except those of starved workers."""
        if not self._deterministic:
            with self._counting:
                since = time.process_time() - STARVED_S
                alive = (name for name in self._at_work if self._heartbeats[name] >= since)
                self._search.beside = frozenset(self._at_work[name] for name in alive)

    def _listen(self, name: str, channel: Channel) -> None:
        """Queue the messages of a worker until it ends."""
        finished = False
        kept = self._kept.setdefault(name, [])
        while True:
            try:
                message = channel.receive()
            except EOFError as end:
                message = Ended(str(end))
            if isinstance(message, Begun):
                self._runs(name, message.strategy)
            elif isinstance(message, Heartbeat):
                self._heartbeats[name] = time.process_time()
            elif isinstance(message, Finished):
                finished = True
            elif self._deterministic and not isinstance(message, Ended):
                kept.append(message)
            elif not isinstance(message, Ended) or not (finished or self._closing):
                self._inbox.put((name, message))
            if isinstance(message, Ended):
                self._runs(name, None)
                return


def executor_of(size: int, scheduler: str | None = None) -> Executor:
    """Return an executor on this machine, `size` processes at a time, or on a Dask scheduler.

    InputError if the scheduler does not answer or Dask is not installed.
    """
    if scheduler is None:
        return LocalProcesses(size)
    try:
        from .dask_cluster import DaskCluster
    except ImportError:
        raise InputError(
            "scheduler: dask is not installed; in Stagecut's folder: "
            "pip install -c constraints.txt '.[cluster]'"
        ) from None
    return DaskCluster(scheduler)


def dealt(strategies: Sequence[Strategy], workers: int) -> list[tuple[Strategy, ...]]:
    """Deal strategies to at most `workers` workers; return those of each worker, in order.

    Worker i gets strategies i, i + workers, …. A worker that has no seeded one gets one in
    addition, with its own seed, if there is any.

    Examples
    --------
    >>> a, b = Strategy("a", print), Strategy("b", print, seeded=True)
    >>> [[s.name for s in hand] for hand in dealt([a, b], 1)]
    [['a', 'b']]
    >>> [[s.name for s in hand] for hand in dealt([a, b], 3)]
    [['a', 'b'], ['b'], ['b']]
    """
    seeded = [strategy for strategy in strategies if strategy.seeded]
    hands: list[tuple[Strategy, ...]] = []
    for i in range(workers):
        hand = tuple(strategies[i::workers])
        if seeded and not any(strategy.seeded for strategy in hand):
            hand = (*hand, seeded[i % len(seeded)])
        if hand:
            hands.append(hand)
    return hands


def work(job: WorkerJob, channel: Channel) -> None:
    """Run the strategies of a job in a worker process, one after the other."""
    search: Search[Solution] = Search(job.limits, job.judge, tie=job.tie)
    for news in job.news:
        search.learn(news, SOLVE)
    search.peers = solve = _SolveProcess(channel)
    threading.Thread(target=solve.listen, name="news", daemon=True).start()
    threading.Thread(
        target=_send_heartbeats, args=(channel,), name="heartbeats", daemon=True
    ).start()
    for strategy in job.strategies:
        if search.should_stop():
            break
        channel.send(Begun(strategy.name))
        try:
            run_method(strategy.solve, job.task, search)
        except Exception as error:
            channel.send(Failed(strategy.name, f"{type(error).__name__}: {error}"))
        search.hit = Limit.NONE
    channel.send(Finished())


def _send_heartbeats(channel: Channel) -> None:
    """Send a heartbeat to the solve per `STARVED_S` / 4 of CPU time of this worker."""
    last = time.process_time()
    while True:
        time.sleep(PERIOD_S)
        if time.process_time() > last + STARVED_S / 4:
            channel.send(Heartbeat())
            last = time.process_time()


class _SolveProcess(Peers):
    """The solve, as the peer of a worker's search, through a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[News] = queue.SimpleQueue()

    def listen(self) -> None:
        """Queue messages as they arrive; the process ends when the channel does."""
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except Exception:  # whatever a broken pipe looks like
            self._channel.close()

    def tell(self, news: News, sender: str) -> None:
        """Send the news that this process found itself."""
        if not sender:
            self._channel.send(news)

    def take(self, search: Search[Any]) -> None:
        """Let the search learn the messages received."""
        while not self._inbox.empty():
            search.learn(self._inbox.get(), SOLVE)
