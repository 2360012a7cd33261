"""Adapter of HiGHS that keeps the deadline, and keeps the best solution on Ctrl-C.

The model goes to HiGHS as arrays (`passModel`), in a fifth of the time of Pyomo's own interfaces.
HiGHS runs in a thread of its own, while the caller's thread waits, handles Ctrl-C, passes on what
HiGHS reports, and asks it to stop. The callbacks inside HiGHS are a few lines that copy its reports
and cannot fail, and a presolve that ignores the clock cannot block the caller. HiGHS keeps one
scheduler per thread, so the number of threads that other code of the process chose does not matter.

"Optimal" is only a claim of HiGHS: each solution must be evaluated from the problem's definition.

HiGHS 1.12 prints a line about repaired solutions with C's `puts`, whatever its options. While it
runs, the output of C code is discarded; Python's output does not pass through C's streams.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import highspy
import numpy as np

from ...formulations.linear import Linear
from ...instances import StagecutError
from ...instances.common.arrays import Floats
from .search import PERIOD_S, S, Search

#: Seconds that HiGHS gets to return once it was asked to stop, before it is abandoned. It ignores
#: requests while it solves the first relaxation, though it keeps its time limit then.
PATIENCE_S = 1.0


class Monitor:
    """The solutions and bounds that HiGHS reports; written in its thread, read in the caller's."""

    def __init__(
        self,
        linear: Linear,
        on_incumbent: Callable[[Floats], bool | None] | None = None,
        on_bound: Callable[[float], bool | None] | None = None,
    ) -> None:
        self.linear = linear
        self.x: Floats | None = None
        self.bound = -math.inf
        self.stop = threading.Event()
        self.news: queue.SimpleQueue[Floats | float | None] = queue.SimpleQueue()
        self._on_incumbent = on_incumbent
        self._on_bound = on_bound

    def listen(self, highs: highspy.Highs) -> None:
        """Subscribe to HiGHS's reports of solutions and bounds; call this before the solve."""
        reported = -1e30

        def interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            event.data_in.user_interrupt = self.stop.is_set()

        def mip_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            nonlocal reported
            event.data_in.user_interrupt = self.stop.is_set()
            bound = float(event.data_out.mip_dual_bound)
            if reported < bound < 1e30:
                reported = bound
                self.news.put(bound)

        def improved(event: highspy.highs.HighsCallbackEvent) -> None:
            self.news.put(np.array(event.data_out.mip_solution, dtype=np.float64))

        highs.cbSimplexInterrupt.subscribe(interrupt)
        highs.cbIpmInterrupt.subscribe(interrupt)
        highs.cbMipInterrupt.subscribe(mip_interrupt)
        highs.cbMipImprovingSolution.subscribe(improved)

    def take(self, item: Floats | float) -> None:
        """Handle a new solution or bound, in the caller's thread."""
        if isinstance(item, float):
            self.bound = item
            enough = self._on_bound is not None and self._on_bound(item)
        else:
            self.x = whole(self.linear, item)
            enough = self._on_incumbent is not None and self._on_incumbent(self.x)
        if enough:
            self.stop.set()


_lock = threading.Lock()

_running = 0  # solves at this moment: the first redirects C's standard output, the last restores it

_printing: int | None = None  # C's standard output before the first of them

#: The presolve of HiGHS 1.12 can call a feasible program infeasible where columns have no bound
#: (rule 6, "forcing row"). Switching off that rule alone can corrupt the memory of the process, so
#: such a program is solved again without any presolve before "infeasible" is believed.
PRESOLVE = "presolve"


@dataclass(frozen=True, eq=False)
class Outcome:
    """Status, solution and bound of a minimisation, as its solver claims them."""

    # ``optimal`` (within the gap asked for), ``feasible``, ``infeasible`` or ``no solution``
    status: Literal["optimal", "feasible", "infeasible", "no solution"]
    # what ended it: ``none``, ``time``, ``nodes`` or ``stopped`` (as the search asked)
    limit: Literal["none", "time", "nodes", "stopped"]
    x: Floats | None  # (n,): the best solution, or None; integer columns are whole
    objective: float  # objective of x
    bound: float  # lower bound on the objective; `-inf` if none is known


def run_highs(
    linear: Linear,
    search: Search[S],
    *,
    start: Floats | None = None,
    on_incumbent: Callable[[Floats], bool | None] | None = None,
    on_bound: Callable[[float], bool | None] | None = None,
    gap: float | None = None,
    seconds: float = math.inf,
    options: Mapping[str, bool | int | float | str] | None = None,
) -> Outcome:
    """Solve a program with HiGHS up to a gap or limit, or until the search says stop.

    The presolve of HiGHS 1.12 can call a feasible program infeasible where columns have no upper
    bound; there "infeasible" counts only if a solve without presolve confirms it.

    `start`, shape (n,), is NaN where unknown: given the integer columns alone, HiGHS finds the rest
    by an LP, and ignores a start that has none. Callbacks run in the caller's thread and get
    each better solution or bound; they end the solve by returning True or raising, and an exception
    reaches the caller. Nothing is offered to the search. `seconds` limits this solve besides the
    search's deadline; the option ``mip_max_nodes`` replaces the search's node limit. StagecutError
    if HiGHS refuses the program or an option, or the program is unbounded.
    """
    begin = time.monotonic()
    seconds = min(seconds, search.seconds_left)
    nodes = search.limits.nodes
    settings: dict[str, bool | int | float | str] = {
        "random_seed": search.limits.seed,
        "mip_rel_gap": search.limits.least_gap if gap is None else gap,
        **({} if nodes is None else {"mip_max_nodes": nodes}),
        **(options or {}),
    }

    highs = load(linear, settings)
    if start is not None:
        known = np.flatnonzero(~np.isnan(start)).astype(np.int32)
        highs.setSolution(len(known), known, start[known])  # refused if outside of the box
    if math.isfinite(seconds):
        _option(highs, "time_limit", max(0.0, seconds - (time.monotonic() - begin)))
    monitor = Monitor(linear, on_incumbent, on_bound)
    finished = drive(highs, monitor, lambda: time.monotonic() - begin >= seconds, search)
    if finished:
        outcome = _outcome(linear, highs, monitor)
    else:
        outcome = _so_far(linear, monitor)
    unbounded = not (np.isfinite(linear.column_lower) & np.isfinite(linear.column_upper)).all()
    doubtful = (outcome.status == "infeasible" and unbounded) or (
        finished and _ended_in_error(highs)
    )
    if doubtful and settings.get(PRESOLVE) != "off":
        left = seconds - (time.monotonic() - begin)
        second = run_highs(
            linear,
            search,
            on_incumbent=on_incumbent,
            on_bound=on_bound,
            gap=gap,
            seconds=max(0.0, left),
            options={**(options or {}), PRESOLVE: "off"},
        )
        if outcome.status == "infeasible" or second.x is not None:
            outcome = second
    return outcome


def load(linear: Linear, settings: Mapping[str, bool | int | float | str]) -> highspy.Highs:
    """Return a new HiGHS with the program; a used one would start from its old basis."""
    highs = highspy.Highs()
    _option(highs, "log_to_console", False)
    _option(highs, "threads", 1)  # more gain nothing in this release
    for name, value in settings.items():
        _option(highs, name, value)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(linear.cost), len(linear.row_lower)
    lp.col_cost_, lp.offset_ = linear.cost, linear.offset
    lp.col_lower_, lp.col_upper_ = linear.column_lower, linear.column_upper
    lp.row_lower_, lp.row_upper_ = linear.row_lower, linear.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_ = linear.matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = linear.matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = linear.matrix.data.astype(np.float64)
    if linear.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[i] for i in linear.integer.astype(int).tolist()]
    _check(highs.passModel(lp), "the program")
    return highs


def _option(highs: highspy.Highs, name: str, value: bool | int | float | str) -> None:
    _check(highs.setOptionValue(name, value), f"option {name} = {value!r}")


def _check(status: highspy.HighsStatus, what: str) -> None:
    if status == highspy.HighsStatus.kError:
        raise StagecutError(f"HiGHS refuses {what}")


def _found(highs: highspy.Highs) -> bool:
    point = highs.getInfo().primal_solution_status
    return bool(point == highspy.SolutionStatus.kSolutionStatusFeasible)


def _ended_in_error(highs: highspy.Highs) -> bool:
    """Return whether HiGHS ended in an error, as if its solution violates a tolerance slightly.

    It then has neither solution nor bound any more; seen where it improved on a start.
    """
    return bool(highs.getModelStatus() == highspy.HighsModelStatus.kSolveError)


def _so_far(linear: Linear, monitor: Monitor) -> Outcome:
    """Return the outcome, from its reports, of a solve that did not stop when asked to.

    What HiGHS finds from then on is lost. Its thread ends as soon as HiGHS checks for interrupts
    again, and Python waits for it at exit.
    """
    if monitor.x is None:
        return Outcome("no solution", "stopped", None, math.inf, monitor.bound)
    objective = float(linear.cost @ monitor.x) + linear.offset
    return Outcome("feasible", "stopped", monitor.x, objective, monitor.bound)


def _outcome(linear: Linear, highs: highspy.Highs, monitor: Monitor) -> Outcome:
    """Return the outcome of a solve that ended."""
    if _ended_in_error(highs):
        return replace(_so_far(linear, monitor), limit="none")
    status, info = highs.getModelStatus(), highs.getInfo()
    ends = highspy.HighsModelStatus
    maybe = status == ends.kUnboundedOrInfeasible and cannot_be_unbounded(linear)
    if status == ends.kInfeasible or maybe:
        return Outcome("infeasible", "none", None, math.inf, math.inf)
    if status in (ends.kUnbounded, ends.kUnboundedOrInfeasible):
        raise StagecutError("HiGHS: the program is unbounded")
    limit: Literal["none", "time", "nodes", "stopped"]
    if status in (ends.kOptimal, ends.kModelEmpty):
        limit = "none"
    elif status == ends.kTimeLimit:
        limit = "time"
    elif status == ends.kSolutionLimit:
        limit = "nodes"
    elif status == ends.kInterrupt:
        limit = "stopped"
    else:
        raise StagecutError(f"HiGHS ended with {highs.modelStatusToString(status)!r}")
    x = None
    if _found(highs) or (limit == "none" and not len(linear.cost)):
        x = whole(linear, np.array(highs.getSolution().col_value, dtype=np.float64))
    elif monitor.x is not None:
        x = monitor.x
    objective = math.inf if x is None else float(linear.cost @ x) + linear.offset
    if linear.integer.any():
        bound = float(info.mip_dual_bound)
    else:
        bound = objective if limit == "none" else -math.inf
    if not abs(bound) < 1e30:
        bound = -math.inf
    if limit == "none":
        return Outcome("optimal", limit, x, objective, bound)
    return Outcome("no solution" if x is None else "feasible", limit, x, objective, bound)


def cannot_be_unbounded(linear: Linear) -> bool:
    """Return whether no column with a cost can improve the objective without limit."""
    best = np.where(linear.cost > 0, linear.column_lower, linear.column_upper)
    return bool(np.isfinite(best[linear.cost != 0]).all())


def drive(
    highs: highspy.Highs, monitor: Monitor, late: Callable[[], bool], search: Search[S]
) -> bool:
    """Run HiGHS in a thread of its own, wait for it, and return whether it ended.

    An exception of the monitor's callbacks is raised again once HiGHS was told to stop.
    """
    monitor.listen(highs)

    def work() -> None:
        try:
            with _without_own_line():
                highs.run()
        finally:
            monitor.news.put(None)

    # Not a daemon: Python would end the thread inside HiGHS at exit, which aborts the process.
    worker = threading.Thread(target=work, name="HiGHS", daemon=False)
    failure: BaseException | None = None
    asked = math.inf
    worker.start()
    while True:
        try:
            item = monitor.news.get(timeout=PERIOD_S)
            if item is None:
                worker.join()
                break
            if failure is None:
                monitor.take(item)
        except queue.Empty:
            pass
        except BaseException as error:  # also a second Ctrl-C: stop HiGHS, then raise it
            failure = error
            monitor.stop.set()
        if not monitor.stop.is_set() and (search.should_stop() or late()):
            monitor.stop.set()
        if monitor.stop.is_set():
            asked = min(asked, time.monotonic())
            if time.monotonic() - asked > PATIENCE_S:
                break
    if failure is not None:
        raise failure
    return not worker.is_alive()


def whole(linear: Linear, x: Floats) -> Floats:
    """Return values of the columns, (n,), with those of integer columns rounded."""
    return np.where(linear.integer, np.round(x), x)


@cache
def _c_stdout() -> tuple[ctypes.c_void_p, int | None] | None:
    """Return C's variable of its standard output, and a stream that discards what is printed.

    None where C has no such variable, or a constant in its place; HiGHS's line is printed there.
    """
    name = {"darwin": "__stdoutp", "linux": "stdout"}.get(sys.platform)
    if name is None or (sys.platform == "linux" and platform.libc_ver()[0] != "glibc"):
        return None
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    return ctypes.c_void_p.in_dll(library, name), library.fopen(os.devnull.encode(), b"w")


@contextmanager
def _without_own_line() -> Iterator[None]:
    """Discard what C code prints meanwhile."""
    global _running, _printing
    found = _c_stdout()
    if found is None:
        yield
        return
    stdout, discarding = found
    with _lock:
        _running += 1
        if _running == 1:
            _printing, stdout.value = stdout.value, discarding
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                stdout.value = _printing
