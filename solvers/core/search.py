"""Searches: clock, incumbent, bound and trace of one solve, and shares of its time for parts of it.

`Search` alone decides when to stop, and why. A `Share` is a part of the time that a search has
left; a `PartSearch` is a search for another problem within a share.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from ...instances import Limit, Status, gap_between
from .limits import Limits

S = TypeVar("S")

#: Relative gap up to which a plan is called optimal: the tolerance of the solvers' arithmetic.
OPTIMAL_GAP = 1e-6

#: Seconds on the way from one gap to the next that are worth a note.
SHOWN_S = 0.01


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
class _Bound:
    """The best bound of one origin, and the evidence for it."""

    value: float
    certificate: dict[str, object]


class Stoppable(Protocol):
    """A clock: whether a long computation has to stop, and the seconds it has left."""

    def should_stop(self) -> bool:
        """Whether to stop soon."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; `inf` without one."""


class Search(Generic[S]):
    """One search for a solution of type S (for throughput: the device of each node).

    Every solver gets one, offers it what it finds, raises its bound, and stops when it says so.
    Nothing counts as incumbent that the judge has not evaluated from the definition.

    Parameters
    ----------
    limits
        When to stop.
    judge
        Objective of a solution by definition; `inf` if the solution breaks a rule.
    on_progress
        Called at every better incumbent or bound, and by `tick`; not more often than it likes.
    started
        `time.monotonic()` from which the deadline counts; default: now.
    tie
        Decides between solutions of one objective, less is better; default: the first stays.
    """

    def __init__(
        self,
        limits: Limits,
        judge: Callable[[S], float],
        on_progress: Callable[[Progress], None] | None = None,
        started: float | None = None,
        tie: Callable[[S], float] | None = None,
    ) -> None:
        self.limits = limits
        self.method = ""
        self.best: S | None = None
        self.objective = math.inf
        self.infeasible_because: str | None = None
        self.hit = Limit.NONE
        self.trace: list[Point] = []
        self.phases: dict[str, float] = {}
        self.notes: list[str] = []
        self.beside: frozenset[str] = frozenset()  # strategies that other processes run meanwhile
        self._bounds: dict[str, _Bound] = {}  # replaced, never changed: other threads read it
        self._refused: set[str] = set()
        self._judge = judge
        self._tie = tie
        self._on_progress = on_progress
        self._started = time.monotonic() if started is None else started
        self._interrupted_at: float | None = None
        self._near_at: float | None = None  # seconds after which the limits' gap was reached
        self._lock = threading.Lock()
        self._closed = False

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0; `inf` without one."""
        if self.limits.seconds is None:
            return math.inf
        return max(0.0, self.limits.seconds - self.seconds)

    @property
    def bound(self) -> float:
        """No solution has a lower objective; `-inf` while nothing is proved."""
        proved = max((bound.value for bound in self._bounds.values()), default=-math.inf)
        return min(proved, self.objective)

    @property
    def bound_origin(self) -> str:
        """What proved the bound: of several the newest; empty while nothing is proved."""
        bounds = self._bounds
        return max(reversed(bounds), key=lambda origin: bounds[origin].value, default="")

    @property
    def certificate(self) -> dict[str, object]:
        """The evidence for the bound, if its origin gives some."""
        return self._bounds[self.bound_origin].certificate if self._bounds else {}

    @property
    def gap(self) -> float:
        """Gap between incumbent and bound; `inf` without an incumbent."""
        return math.inf if self.best is None else gap_between(self.objective, self.bound)

    def value(self, solution: S) -> float:
        """Return the objective of `solution` by definition, `inf` if it breaks a rule."""
        return self._judge(solution)

    def offer(self, solution: S) -> bool:
        """Take `solution` as incumbent if, by definition, it is feasible and better."""
        return self._take(solution, self._judge(solution))

    def _take(self, solution: S, objective: float) -> bool:
        """Take a solution of this objective as incumbent if it is better."""
        with self._lock:
            better = objective < self.objective or self._settles(solution, objective)
            if self._closed or not better:
                return False
            self.best, self.objective = solution, objective
            if self.infeasible_because is not None:
                self._defect(f"infeasibility was claimed ({self.infeasible_because})")
                self.infeasible_because = None
            for origin in [o for o, bound in self._bounds.items() if self._exceeds(bound.value)]:
                self._withdraw(origin, f"bound {self._bounds[origin].value:.9g}")
        self._record()
        return True

    def _settles(self, solution: S, objective: float) -> bool:
        """Whether a solution is as good as the incumbent, and wins the tie."""
        if self._tie is None or self.best is None or objective != self.objective:
            return False
        return self._tie(solution) < self._tie(self.best)

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Record that no solution is better than `bound`, which `origin` has proved.

        What exceeds the incumbent by rounding alone (a relative `OPTIMAL_GAP`) is taken as the
        incumbent's objective. A claim that exceeds it by more is wrong, as the judge has verified
        the incumbent: it is refused, all bounds of the same origin are withdrawn, none is taken
        from it any more, and a note says so; also if a later incumbent shows a bound to be wrong.

        Parameters
        ----------
        bound
            A finite number; `-inf` says nothing, and `inf` and NaN are refused like a bound that
            is too high: that no solution exists is said with `prove_infeasible`.

        Returns
        -------
        bool
            Whether the bound of the search is better now.
        """
        with self._lock:
            if self._closed or origin in self._refused or bound == -math.inf:
                return False
            if not math.isfinite(bound) or self._exceeds(bound):
                self._withdraw(origin, f"bound {bound:.9g}")
                return False
            bound, before = min(bound, self.objective), self.bound
            if origin not in self._bounds or bound > self._bounds[origin].value:
                self._bounds = {**self._bounds, origin: _Bound(bound, certificate or {})}
            if not bound > before:
                return False
        self._record()
        return True

    def _exceeds(self, bound: float) -> bool:
        """Whether the incumbent shows that a bound is wrong."""
        return bound - self.objective > OPTIMAL_GAP * abs(self.objective)

    def withdraw(self, origin: str, claim: str = "") -> None:
        """Withdraw all bounds of an origin, and take none any more.

        Parameters
        ----------
        claim
            What it claims, if that is provably wrong: a note tells so.
        """
        with self._lock:
            self._withdraw(origin, claim)

    def _withdraw(self, origin: str, claim: str) -> None:
        self._bounds = {o: found for o, found in self._bounds.items() if o != origin}
        self._refused.add(origin)
        known = "" if self.best is None else f" and a verified plan has {self.objective:.9g}"
        if claim:
            self._defect(f"{origin} claims {claim}{known}")

    def _defect(self, what: str) -> None:
        self.note(f"{what}: not used; a defect of Stagecut or its solver, please report it")

    def prove_infeasible(self, because: str) -> None:
        """Record that no solution exists; `because` names the device, colour or bytes at fault.

        While a solution is known this is a defect, which a note reports.
        """
        with self._lock:
            if self.best is None:
                self.infeasible_because = because
            else:
                self._defect(f"infeasibility was claimed ({because}), and a verified plan is known")

    def interrupt(self) -> None:
        """Ask the search to stop soon with what it has; safe from signal handlers and threads."""
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()

    def overdue(self) -> float:
        """Seconds since the search should have stopped; 0 if it need not yet."""
        now = time.monotonic()
        late = 0.0 if self._interrupted_at is None else now - self._interrupted_at
        if self.limits.seconds is not None:
            late = max(late, now - self._started - self.limits.seconds)
        return late

    def close(self) -> None:
        """Take no more solutions and bounds: a solver that did not stop in time is left behind."""
        self.should_stop()
        with self._lock:
            self._closed = True

    def should_stop(self) -> bool:
        """Whether a limit is reached, the gap closed or a stop was asked for; remembers which."""
        if self._interrupted_at is not None:
            self.hit = Limit.INTERRUPT
        elif self.done:
            return True
        elif self.seconds_left <= 0:
            self.hit = Limit.TIME
        return self.hit != Limit.NONE

    @property
    def done(self) -> bool:
        """Whether the gap asked for is reached, or no solution exists.

        The gap asked for is the limits' `gap`, and while their `patience` lasts `cheap_gap`.
        """
        if self.infeasible_because is not None or self.gap <= max(self.limits.least_gap, 1e-12):
            return True
        near = self.seconds if self._near_at is None else self._near_at
        return self.near and self.seconds >= near + self.limits.patience(near)

    @property
    def next_gap(self) -> float:
        """The gap to reach next: the limits' `gap`, and after it their `least_gap`."""
        return self.limits.least_gap if self.near else self.limits.gap

    @property
    def near(self) -> bool:
        """Whether the limits' `gap` is reached."""
        return self.gap <= max(self.limits.gap, 1e-12)

    def say_gap(self) -> None:
        """Add a note if the search went on beyond the limits' `gap`, and how far."""
        gap, least = (f"{100 * g:g} %" for g in (self.limits.gap, self.limits.least_gap))
        if self._near_at is None or not self.near or gap == least:
            return
        reached = f"gap: {gap} after {self._near_at:.2f} s"
        if self.gap <= self.limits.least_gap:
            if self.trace[-1].seconds - self._near_at > SHOWN_S:
                self.note(f"{reached}, {least} after {self.trace[-1].seconds:.2f} s")
        elif self.hit == Limit.NONE and self.done:
            self.note(
                f"{reached}; {least} is dear: not reached in {self.seconds - self._near_at:.2f} s "
                f"more (--gap {self.limits.least_gap:g} goes on)"
            )

    def stop_for(self, limit: Limit | str) -> None:
        """Record that a solver stopped at a limit of its own accord."""
        self.hit = Limit(limit)

    @property
    def status(self) -> Status:
        """Status by incumbent, bound and proofs so far."""
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
        """Keep a remark for the user, such as what `auto` chose and why; each only once."""
        if text not in self.notes:
            self.notes.append(text)

    def _record(self) -> None:
        if self._near_at is None and self.near:
            self._near_at = self.seconds
        self.trace.append(Point(self.seconds, self.objective, self.bound))
        self.tick()


class Share(Stoppable):
    """A part of the time that a search has left.

    Parameters
    ----------
    whole
        The search, or a share of it.
    part
        Of the time left now; without deadline there is no end to it.
    """

    def __init__(self, whole: Stoppable, part: float = 1.0) -> None:
        self._whole = whole
        self._ends = time.monotonic() + part * whole.seconds_left

    def should_stop(self) -> bool:
        """Whether to stop soon."""
        return self._whole.should_stop() or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Seconds until the share is used up; `inf` without a deadline."""
        return max(0.0, min(self._whole.seconds_left, self._ends - time.monotonic()))


class PartSearch(Search[S]):
    """A search for another problem in a share of the time of a search.

    Parameters
    ----------
    share
        Of the other search's time.
    judge
        As of `Search`.
    """

    def __init__(self, share: Share, judge: Callable[[S], float]) -> None:
        left = share.seconds_left
        super().__init__(Limits(seconds=None if np.isinf(left) else max(left, 1e-3)), judge)
        self._share = share

    def should_stop(self) -> bool:
        """Whether to stop soon, as the whole search must too."""
        return self._share.should_stop() or super().should_stop()
