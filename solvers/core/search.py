"""Searches: the incumbent, bound, trace and clock of one solve.

`Search` alone decides when to stop, and why. A `Clock` says when time is up; clocks can be nested,
and a search is one. Searches for the same solution are `Peers`, which exchange `News`: the
processes of a solve (`portfolio.py`), or a task and a case of its placement rules
(`under_rules.py`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ...instances import Limit, Status, gap_between
from ...instances.common.arrays import Ints
from .limits import Limits

S = TypeVar("S")

#: Relative gap up to which a plan is called optimal: the tolerance of the solvers' arithmetic.
OPTIMAL_GAP = 1e-6

#: Seconds between two polls of the clock on behalf of a kernel or solver.
PERIOD_S = 0.05


@dataclass(frozen=True)
class Point:
    """Incumbent and bound after `seconds` of a search; `inf` and `-inf` while there is none."""

    seconds: float
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return gap_between(self.objective, self.bound)


@dataclass(frozen=True)
class Progress:
    """The argument of `on_progress`: the newest point, the method at work, the seconds left."""

    point: Point
    method: str
    seconds_left: float


@dataclass(frozen=True)
class Found:
    """Message: a better solution, with its objective by the sender's judge."""

    solution: Any
    objective: float


@dataclass(frozen=True)
class Proved:
    """Message: a better bound; see `Search.raise_bound`."""

    bound: float
    origin: str
    certificate: dict[str, object]


@dataclass(frozen=True)
class Withdrawn:
    """Message: all bounds of `origin` are withdrawn, since `claim` is refuted."""

    origin: str
    claim: str


@dataclass(frozen=True)
class Infeasible:
    """Message: no solution exists."""

    because: str


News = Found | Proved | Withdrawn | Infeasible


class Clock:
    """The time of a computation: seconds since its start, seconds left, and whether to stop.

    It has `seconds` from `started` on, by `time.monotonic()`, and ends at the latest when the clock
    `within` which it runs does.

    Examples
    --------
    >>> clock = Clock(8.0)
    >>> clock.should_stop(), 1.9 < clock.part(0.25).seconds_left <= 2.0
    (False, True)
    """

    def __init__(
        self,
        seconds: float | None = None,
        within: Clock | None = None,
        started: float | None = None,
    ) -> None:
        self._started = time.monotonic() if started is None else started
        self._deadline = math.inf if seconds is None else self._started + seconds
        self._within = within

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0; `inf` without one."""
        left = max(0.0, self._deadline - time.monotonic())
        return left if self._within is None else min(left, self._within.seconds_left)

    def should_stop(self) -> bool:
        """Whether the computation has to stop."""
        return self.seconds_left <= 0 or (self._within is not None and self._within.should_stop())

    def part(self, fraction: float = 1.0) -> Clock:
        """Return a clock within this one that has a fraction of the seconds left."""
        left = self.seconds_left
        return Clock(None if math.isinf(left) else fraction * left, within=self)

    @contextmanager
    def flag(self) -> Iterator[Ints]:
        """Yield a flag, shape (1,), for kernels to read; it becomes 1 once the clock says stop.

        Another thread polls the clock, so that a kernel need not return for that.
        """
        halt, over = np.zeros(1, np.int64), threading.Event()

        def watch() -> None:
            while not over.is_set():
                if self.should_stop():
                    halt[0] = 1
                    return
                over.wait(PERIOD_S)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield halt
        finally:
            over.set()
            watcher.join()


class Peers(Protocol):
    """Other searches for the same solution."""

    def tell(self, news: News, sender: str) -> None:
        """Send news to all but the sender (empty: this search itself)."""

    def take(self, search: Search[Any]) -> None:
        """Let the search learn what others have found; called when a solver asks `should_stop`."""


@dataclass(frozen=True)
class _Bound:
    """The best bound of one origin, and the evidence for it."""

    value: float
    certificate: dict[str, object]


class Search(Clock, Generic[S]):
    """Search for a solution of type S of least objective (for throughput: the device of each node).

    Every solver gets a search, offers solutions to it, raises its bound, and stops when it says so.
    Only a solution that `judge` has evaluated from the definition can become the incumbent; `judge`
    returns `inf` if it breaks a rule. Of solutions with equal objectives the one of least `tie`
    stays; without `tie`, the first. `on_progress` is called at every better incumbent or bound, and
    by `tick`.
    """

    def __init__(
        self,
        limits: Limits,
        judge: Callable[[S], float],
        on_progress: Callable[[Progress], None] | None = None,
        started: float | None = None,
        tie: Callable[[S], float] | None = None,
        within: Clock | None = None,
    ) -> None:
        if within is not None and math.isfinite(left := within.seconds_left):
            seconds = left if limits.seconds is None else min(left, limits.seconds)
            limits = replace(limits, seconds=max(seconds, 1e-3))
        super().__init__(limits.seconds, within, started)
        self.limits, self.judge, self.tie = limits, judge, tie
        self.method = ""
        self.best: S | None = None
        self.objective = math.inf
        self.cutoff = math.inf  # objective known elsewhere that solutions have to beat
        self.infeasible_because: str | None = None
        self.hit = Limit.NONE
        self.trace: list[Point] = []
        self.phases: dict[str, float] = {}
        self.notes: list[str] = []
        self.peers: Peers | None = None
        self.beside: frozenset[str] = frozenset()  # strategies that other processes run meanwhile
        self.found_by = self.proved_by = ""  # who sent incumbent and bound; empty: found here
        self._bounds: dict[str, _Bound] = {}  # replaced, never changed: other threads read it
        self._refused: set[str] = set()
        self._keeps: Callable[[S], bool] | None = None
        self._on_progress = on_progress
        self._interrupted_at: float | None = None
        self._near_at: float | None = None  # when the limits' `gap` was reached, in seconds
        self._ended_by_others_at: float | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def bound(self) -> float:
        """Lower bound on the objective of every solution; `-inf` while nothing is proved."""
        proved = max((bound.value for bound in self._bounds.values()), default=-math.inf)
        return min(proved, self.objective)

    @property
    def bound_origin(self) -> str:
        """Name of the proof of the bound, the newest of several; empty without a bound."""
        bounds = self._bounds
        return max(reversed(bounds), key=lambda origin: bounds[origin].value, default="")

    @property
    def certificate(self) -> dict[str, object]:
        """Certificate of the bound, as given by its origin; may be empty."""
        return self._bounds[self.bound_origin].certificate if self._bounds else {}

    @property
    def gap(self) -> float:
        """Gap between incumbent and bound; `inf` without an incumbent."""
        return math.inf if self.best is None else gap_between(self.objective, self.bound)

    def offer(self, solution: S) -> bool:
        """Judge a solution, and make it the incumbent if it is feasible and better."""
        return self._take(solution, self.judge(solution), "")

    def _take(self, solution: S, objective: float, sender: str) -> bool:
        """Make a solution with this objective the incumbent if it is better."""
        with self._lock:
            better = objective < self.objective or self._settles(solution, objective)
            kept = self._keeps is None or self._keeps(solution)
            if self._closed or not (better and kept):
                return False
            self.best, self.objective, self.found_by = solution, objective, sender
            if self.infeasible_because is not None:
                self._defect(f"infeasibility was claimed ({self.infeasible_because})")
                self.infeasible_because = None
            for origin in [o for o, bound in self._bounds.items() if self._exceeds(bound.value)]:
                self._withdraw(origin, f"bound {self._bounds[origin].value:.9g}", sender)
        self._record()
        self._tell(Found(solution, objective), sender)
        return True

    def _settles(self, solution: S, objective: float) -> bool:
        """Whether a solution equals the incumbent in objective, and wins the tie."""
        if self.tie is None or self.best is None or objective != self.objective:
            return False
        return self.tie(solution) < self.tie(self.best)

    def restrict(self, keeps: Callable[[S], bool]) -> bool:
        """Take only solutions that `keeps` accepts from now on; bounds then hold only for these.

        Return whether the incumbent is one of them, or there is none.
        """
        with self._lock:
            self._keeps = keeps
            return self.best is None or keeps(self.best)

    @property
    def restricted(self) -> bool:
        """Whether only some of the solutions are taken; see `restrict`."""
        return self._keeps is not None

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Record a finite bound that `origin` has proved; return whether the search's improved.

        A bound above the incumbent by rounding alone (a relative `OPTIMAL_GAP`) is taken as the
        incumbent's objective. One that exceeds it by more is wrong, as the judge has verified the
        incumbent: it is refused, all bounds of the same origin are withdrawn, no more are taken
        from it, and a note says so. The same happens if a later incumbent shows a bound to be
        wrong, and to `inf` and NaN: infeasibility is claimed with `prove_infeasible`. `-inf` is
        ignored.
        """
        return self._raise(Proved(bound, origin, certificate or {}), "")

    def _raise(self, claim: Proved, sender: str) -> bool:
        """Take a bound if it is better and not refuted; return whether the search's improved."""
        bound, origin = claim.bound, claim.origin
        with self._lock:
            if self._closed or origin in self._refused or bound == -math.inf:
                return False
            if not math.isfinite(bound) or self._exceeds(bound):
                self._withdraw(origin, f"bound {bound:.9g}", sender)
                return False
            bound, before = min(bound, self.objective), self.bound
            if origin not in self._bounds or bound > self._bounds[origin].value:
                self._bounds = {**self._bounds, origin: _Bound(bound, claim.certificate)}
            if not bound > before:
                return False
            self.proved_by = sender
        self._record()
        self._tell(Proved(self.bound, origin, claim.certificate), sender)
        return True

    def _exceeds(self, bound: float) -> bool:
        """Whether the incumbent proves a bound wrong."""
        return bound - self.objective > OPTIMAL_GAP * abs(self.objective)

    def withdraw(self, origin: str, claim: str = "") -> None:
        """Withdraw all bounds of an origin, and take no more from it.

        `claim`, if not empty, is what it claimed and was proved wrong; a note reports it.
        """
        with self._lock:
            self._withdraw(origin, claim, "")

    def _withdraw(self, origin: str, claim: str, sender: str) -> None:
        self._bounds = {o: found for o, found in self._bounds.items() if o != origin}
        self._refused.add(origin)
        known = "" if self.best is None else f" and a verified plan has {self.objective:.9g}"
        if claim:
            self._defect(f"{origin} claims {claim}{known}")
        self._tell(Withdrawn(origin, claim), sender)

    def _defect(self, what: str) -> None:
        self.note(f"{what}: not used; a defect of Stagecut or its solver, please report it")

    def prove_infeasible(self, because: str) -> None:
        """Record that no solution exists; `because` names the device, colour or bytes at fault.

        If a solution is known, the claim is a defect, and a note reports it.
        """
        self._prove_infeasible(because, "")

    def _prove_infeasible(self, because: str, sender: str) -> None:
        with self._lock:
            if self.best is None:
                self.infeasible_because = because
            else:
                self._defect(f"infeasibility was claimed ({because}), and a verified plan is known")
        self._tell(Infeasible(because), sender)

    def learn(self, news: News, sender: str) -> None:
        """Take news of another search, judged as if found here."""
        match news:
            case Found(solution, objective):
                if objective < self.objective or self.tie is not None:
                    self._take(solution, self.judge(solution), sender)
            case Proved():
                self._raise(news, sender)
            case Withdrawn(origin, claim):
                with self._lock:
                    self._withdraw(origin, claim, sender)
            case Infeasible(because):
                self._prove_infeasible(because, sender)
        if self.done and self._ended_by_others_at is None:
            self._ended_by_others_at = time.monotonic()

    def _tell(self, news: News, sender: str) -> None:
        if self.peers is not None:
            self.peers.tell(news, sender)

    def interrupt(self) -> None:
        """Ask the search to stop soon with what it has; safe from signal handlers and threads."""
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()

    def overdue(self) -> float:
        """Return the seconds since the search should have stopped; 0 if it need not stop yet.

        If others closed the gap the search is due, as its solver may not know; a solver that
        closes the gap itself stops by itself.
        """
        due = (self._interrupted_at, self._ended_by_others_at, self._deadline)
        return max(0.0, time.monotonic() - min(at for at in due if at is not None))

    def close(self) -> None:
        """Take no more solutions and bounds, as from a solver that did not stop in time."""
        self.should_stop()
        with self._lock:
            self._closed = True

    def should_stop(self) -> bool:
        """Whether a limit is reached, the gap closed or a stop requested; records which limit.

        Takes the news of peers first.
        """
        if self.peers is not None:
            self.peers.take(self)
        if self._interrupted_at is not None:
            self.hit = Limit.INTERRUPT
        elif self.done:
            return True
        elif self.seconds_left <= 0:
            self.hit = Limit.TIME
        elif self._within is not None and self._within.should_stop():
            return True
        return self.hit != Limit.NONE

    def is_over(self) -> bool:
        """Whether to stop, or the incumbent is optimal up to the tolerance `OPTIMAL_GAP`.

        Certificates leave a margin for rounding, so that a gap of 0 is never reached.
        """
        return self.should_stop() or self.gap <= OPTIMAL_GAP

    @property
    def done(self) -> bool:
        """Whether the gap asked for is reached, or no solution can beat `cutoff` by that gap.

        The gap asked for is `cheap_gap` while the limits' `patience` lasts, then their `gap`.
        """
        least = max(self.limits.least_gap, 1e-12)
        if self.infeasible_because is not None or self.gap <= least:
            return True
        if self.bound >= self.cutoff * (1 - least):
            return True
        near = self.seconds if self._near_at is None else self._near_at
        return self.near and self.seconds >= near + self.limits.patience(near)

    @property
    def next_gap(self) -> float:
        """The gap to reach next: the limits' `gap`, then their `least_gap`."""
        return self.limits.least_gap if self.near else self.limits.gap

    @property
    def near(self) -> bool:
        """Whether the limits' `gap` is reached."""
        return self.gap <= max(self.limits.gap, 1e-12)

    def say_gap(self) -> None:
        """Add a note if the search went on beyond the limits' `gap`, saying how far it came."""
        gap, least = (f"{100 * g:g} %" for g in (self.limits.gap, self.limits.least_gap))
        if self._near_at is None or not self.near or gap == least:
            return
        reached, last = (f"{s:.2f} s" for s in (self._near_at, self.trace[-1].seconds))
        if self.gap <= self.limits.least_gap:
            if last != reached:
                self.note(f"gap: {gap} after {reached}, {least} after {last}")
        elif self.hit == Limit.NONE and self.done:
            more = f"{self.seconds - self._near_at:.2f} s more"
            self.note(
                f"gap: {gap} after {reached}; {least} is dear: not reached in {more} "
                f"(--gap {self.limits.least_gap:g} goes on)"
            )

    def out_of_nodes(self, count: int) -> bool:
        """Whether so many nodes or rounds reach the limit of nodes, which is recorded then."""
        if self.limits.nodes is None or count < self.limits.nodes:
            return False
        self.hit = Limit.NODES
        return True

    def stop_for(self, limit: Limit | str) -> None:
        """Record that a solver stopped by itself at a limit."""
        self.hit = Limit(limit)

    @property
    def status(self) -> Status:
        """Status that follows from incumbent, bound and proofs so far."""
        if self.best is not None:
            return Status.OPTIMAL if self.gap <= OPTIMAL_GAP else Status.FEASIBLE
        return Status.NO_SOLUTION if self.infeasible_because is None else Status.INFEASIBLE

    def tick(self) -> None:
        """Report progress to `on_progress`."""
        if self._on_progress is not None:
            now = Point(self.seconds, self.objective, self.bound)
            self._on_progress(Progress(now, self.method, self.seconds_left))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to phase `name`."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin

    def note(self, text: str) -> None:
        """Add a note for the user, such as the choice of `auto`; each only once."""
        if text not in self.notes:
            self.notes.append(text)

    def _record(self) -> None:
        if self._near_at is None and self.near:
            self._near_at = self.seconds
        self.trace.append(Point(self.seconds, self.objective, self.bound))
        self.tick()
