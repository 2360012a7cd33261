"""The workers of one solve: when they start, what they hear, and how they end."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from ....formulations.task import Task
from ..search import OPTIMAL_GAP
from .channel import Channel, Executor
from .messages import Begun, Ended, Finished, WorkerJob
from .shared_search import Message, SharedSearch
from .strategy import Strategy, dealt
from .worker import work

#: Seconds that a solve must have run, and must have left, for workers to be worth their start: of
#: about two seconds of computing each.
START_AFTER_S, LEAST_LEFT_S = 1.5, 3.0

#: Seconds that what workers sent last may take to come in.
LAST_WORDS_S = 2.0


class Portfolio:
    """The workers of a solve.

    Parameters
    ----------
    task, search
        Of the solve.
    strategies
        What runs beside its method.
    executor
        Where.
    count
        Workers at most.
    deterministic
        Whether finds are exchanged at the end alone; then workers start at once.
    """

    def __init__(
        self,
        task: Task[Any],
        search: SharedSearch,
        strategies: tuple[Strategy, ...],
        executor: Executor,
        count: int,
        *,
        deterministic: bool,
    ) -> None:
        self._task, self._search, self._executor = task, search, executor
        self._hands = dealt(strategies, count)
        self._deterministic = deterministic
        self._begun = time.monotonic()
        self._channels: dict[str, Channel] = {}
        self._listeners: dict[str, threading.Thread] = {}
        self._kept: dict[str, list[object]] = {}
        self._at_work: dict[str, str] = {}  # what each worker runs now
        self._closing = False
        search.holds_news_back = deterministic

    def look(self) -> None:
        """Start the workers once that is worth it; take their news if the solver does not."""
        search = self._search
        if self._channels:
            search.take_news()
        elif self._hands and (
            self._deterministic
            or (
                time.monotonic() - self._begun > START_AFTER_S
                and search.seconds_left > LEAST_LEFT_S
                and not search.should_stop()
            )
        ):
            self._start()

    def wait(self) -> None:
        """Wait until all workers have run their strategies, or time or gap end the search."""
        if not self._channels:
            return
        while self._at_work and not self._search.overdue() > 0 and not self._settled:
            time.sleep(0.02)
            self._search.take_news()
        self._search.should_stop()  # notes which limit it was

    @property
    def _settled(self) -> bool:
        return self._search.done or self._search.gap <= OPTIMAL_GAP

    def close(self) -> None:
        """End the workers, and take what they have sent.

        A search that was done without it does not depend on how far deterministic workers came.
        """
        self._closing, settled = True, self._settled
        for channel in self._channels.values():
            channel.close()
        until = time.monotonic() + LAST_WORDS_S
        for listener in self._listeners.values():
            listener.join(max(0.0, until - time.monotonic()))
        self._search.holds_news_back = False
        for name, messages in self._kept.items():
            for message in messages if not settled else ():
                self._search.put(name, message)
        self._search.take_news()
        self._executor.close()
        by = {"best plan": self._search.found_by, "bound": self._search.proved_by}
        if any(by.values()):
            self._search.note("; ".join(f"{what} by {who}" for what, who in by.items() if who))

    def _start(self) -> None:
        search, hands, self._hands = self._search, self._hands, []
        limits = search.limits
        left = None if limits.seconds is None else max(search.seconds_left, 1e-3)
        search.connect(self._tell)
        for i, hand in enumerate(hands, start=1):
            name = f"worker {i} ({', '.join(strategy.name for strategy in hand)})"
            own = replace(limits, seconds=left, seed=(limits.seed + i) % 2**31)
            news = () if self._deterministic else search.known()
            job = WorkerJob(self._task, search.judge, search.tie, own, hand, news)
            try:
                channel = self._executor.start(work, job)
            except OSError as error:
                search.note(f"{name} could not be started ({error})")
                continue
            self._channels[name] = channel
            self._at_work[name] = ""
            listener = threading.Thread(target=self._listen, args=(name, channel), daemon=True)
            self._listeners[name] = listener
            listener.start()
            for message in () if self._deterministic else search.known():
                channel.send(message)  # what was found while it was started, too
        search.note(f"beside this process: {', '.join(self._channels)}")

    def _runs(self, name: str, strategy: str | None) -> None:
        """Record which strategy worker `name` runs; forget the worker if `strategy` is None."""
        if strategy is None:
            del self._at_work[name]
        else:
            self._at_work[name] = strategy
        if not self._deterministic:
            self._search.beside = frozenset(self._at_work.copy().values())

    def _tell(self, message: Message, sender: str) -> None:
        """Hand on to all others what is found, or was withdrawn."""
        if not self._deterministic:
            for name, channel in list(self._channels.items()):
                if name != sender:
                    channel.send(message)

    def _listen(self, name: str, channel: Channel) -> None:
        """Put aside what a worker sends, until it ends."""
        finished = False
        kept = self._kept.setdefault(name, [])
        while True:
            try:
                message = channel.receive()
            except EOFError as end:
                message = Ended(str(end))
            if isinstance(message, Begun):
                self._runs(name, message.strategy)
            elif isinstance(message, Finished):
                finished = True
            elif self._deterministic and not isinstance(message, Ended):
                kept.append(message)
            elif not isinstance(message, Ended) or not (finished or self._closing):
                self._search.put(name, message)
            if isinstance(message, Ended):
                self._runs(name, None)
                return
