"""The search of a solve that others help: it takes their finds, and tells them its own."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ....instances import Solution
from ..limits import Limits
from ..search import Progress, Search
from .messages import Ended, Failed, Found, Infeasible, Moved, Proved, Withdrawn

Message = Found | Proved | Withdrawn


class SharedSearch(Search[Solution]):
    """A search with news from others.

    News are taken where a solver asks whether to stop, or, while it does not ask, by `take_news`.
    What comes is judged here as if it had been found here.

    Parameters
    ----------
    limits, judge, on_progress, started, tie
        As of `Search`.
    """

    def __init__(
        self,
        limits: Limits,
        judge: Callable[[Solution], float],
        on_progress: Callable[[Progress], None] | None = None,
        started: float | None = None,
        tie: Callable[[Solution], float] | None = None,
    ) -> None:
        super().__init__(limits, judge, on_progress, started, tie)
        self.judge, self.tie = judge, tie
        self.holds_news_back = False
        self.found_by = self.proved_by = ""
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._taking = threading.Lock()
        self._tell: Callable[[Message, str], None] | None = None
        self._local = threading.local()
        self._done_at: float | None = None

    @property
    def _sender(self) -> str:
        """Name of the worker whose message this thread handles; empty for this process."""
        return getattr(self._local, "sender", "")

    def connect(self, tell: Callable[[Message, str], None]) -> None:
        """Call `tell` with what is found from now on, and by whom: empty for this search itself."""
        self._tell = tell

    def put(self, sender: str, message: object) -> None:
        """Queue a message, from any thread; it is handled when messages are taken."""
        self._inbox.put((sender, message))

    def should_stop(self) -> bool:
        """Whether to stop soon; takes the news first."""
        self.take_news()
        return super().should_stop()

    def take_news(self) -> None:
        """Take what has come, unless it is held back or another thread is at it."""
        if self.holds_news_back or self._inbox.empty() or not self._taking.acquire(blocking=False):
            return
        try:
            while not self._inbox.empty():
                self._local.sender, message = self._inbox.get()
                self._take_message(message)
        finally:
            self._local.sender = ""
            self._taking.release()

    def _take_message(self, message: object) -> None:
        match message:
            case Found(solution, objective):
                better = objective < self.objective or self.tie is not None
                if better and self.offer(solution):
                    self.found_by = self._sender
            case Proved(bound, origin, certificate):
                if self.raise_bound(bound, origin, certificate):
                    self.proved_by = self._sender
            case Withdrawn(origin, claim):
                self.withdraw(origin, claim)
            case Infeasible(because):
                self.prove_infeasible(because)
            case Failed(strategy, error):
                self.note(f"{self._sender}: {strategy} failed ({error}); the others went on")
            case Moved():
                self.note(f"{self._sender}: its machine left; begun again on another")
            case Ended(why):
                self.note(f"{self._sender} {why}; what it had found is kept, the others went on")
        if self.done and self._done_at is None:
            self._done_at = time.monotonic()

    def overdue(self) -> float:
        """Seconds since the search should have stopped, also as others had closed the gap."""
        late = super().overdue()
        return late if self._done_at is None else max(late, time.monotonic() - self._done_at)

    def known(self) -> tuple[Found | Proved, ...]:
        """Return the best solution and bound as messages, for a new worker."""
        found = () if self.best is None else (Found(self.best, self.objective),)
        proved = () if not math.isfinite(self.bound) else (self._proved(),)
        return (*found, *proved)

    def _proved(self) -> Proved:
        return Proved(self.bound, self.bound_origin, self.certificate)

    def _take(self, solution: Solution, objective: float) -> bool:
        better = super()._take(solution, objective)
        if better:
            self.found_by = ""
            if self._tell is not None:
                self._tell(Found(solution, objective), self._sender)
        return better

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Raise the bound, and send it if it is better."""
        better = super().raise_bound(bound, origin, certificate)
        if better:
            self.proved_by = ""
            if self._tell is not None:
                self._tell(Proved(self.bound, origin, certificate or {}), self._sender)
        return better

    def _withdraw(self, origin: str, claim: str) -> None:
        super()._withdraw(origin, claim)
        if self._tell is not None:
            self._tell(Withdrawn(origin, claim), self._sender)
