"""What a worker process does: run its strategies, and share finds with the solve meanwhile."""

from __future__ import annotations

import queue
import threading

from ....instances import Limit, Solution
from ..search import Search
from ..under_rules import run_method
from .channel import Channel
from .messages import Begun, Failed, Finished, Found, Infeasible, Proved, Withdrawn, WorkerJob


class WorkerSearch(Search[Solution]):
    """A search that tells the solve what it finds, and takes what others found.

    News are taken where a strategy asks whether to stop: at no other place does the incumbent
    change under it.
    """

    def __init__(self, job: WorkerJob, channel: Channel) -> None:
        super().__init__(job.limits, job.judge, tie=job.tie)
        self._channel = channel
        self._inbox: queue.SimpleQueue[Found | Proved | Withdrawn] = queue.SimpleQueue()
        for message in job.news:
            self._learn(message)

    def listen(self) -> None:
        """Put messages aside as they come; this process ends when there is nobody left."""
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except Exception:  # whatever a broken pipe looks like
            self._channel.close()

    def should_stop(self) -> bool:
        """Whether to stop soon; takes the news first."""
        while not self._inbox.empty():
            self._learn(self._inbox.get())
        return super().should_stop()

    def offer(self, solution: Solution) -> bool:
        """Take a solution if it is better, and send it."""
        better = super().offer(solution)
        if better:
            self._channel.send(Found(solution, self.objective))
        return better

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Take a bound if it is better, and send it."""
        better = super().raise_bound(bound, origin, certificate)
        if better:
            self._channel.send(Proved(self.bound, origin, certificate or {}))
        return better

    def prove_infeasible(self, because: str) -> None:
        """Record that no solution exists, and send it."""
        super().prove_infeasible(because)
        self._channel.send(Infeasible(because))

    def _withdraw(self, origin: str, claim: str) -> None:
        super()._withdraw(origin, claim)
        self._channel.send(Withdrawn(origin, claim))

    def _learn(self, message: Found | Proved | Withdrawn) -> None:
        if isinstance(message, Found):
            self._take(message.solution, message.objective)
        elif isinstance(message, Proved):
            super().raise_bound(message.bound, message.origin, message.certificate)
        else:
            super()._withdraw(message.origin, message.claim)


def work(job: WorkerJob, channel: Channel) -> None:
    """Run the strategies of a job, one after the other."""
    search = WorkerSearch(job, channel)
    threading.Thread(target=search.listen, name="news", daemon=True).start()
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
