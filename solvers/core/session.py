"""Session of a solve: a solver in a thread, workers in processes, and the search that they share.

The search alone judges what is found. The session enforces the deadline and Ctrl-C, whatever the
solver does.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from types import FrameType

from ...formulations.task import Task
from ...formulations.throughput.infeasible import colour_notes
from ...instances import Plan, Problem, Solution
from ...instances.common.kernel import NOT_KEPT, compiled_to_come_near, compiling, unkept
from .limits import Workers, usual_count
from .method import Method, Solver
from .portfolio import Portfolio, executor_of
from .search import Search
from .under_rules import has_rules, raise_first_bounds, run_method

#: Seconds that a solver may overrun before it is abandoned.
GRACE_S = 1.2

#: Seconds that a script waits at its end for an abandoned solver before it says so.
LEFT_S = 10.0

#: CPU seconds that a solver gets for a first plan despite the deadline: on a busy machine the
#: imports alone can outlast it.
FIRST_CPU_S = 2.0

#: Wall-clock seconds in which a solver must compute for `PROGRESS_S`, or it counts as stuck: one
#: that shares its cores with many others may take minutes for a second of computing.
STUCK_S, PROGRESS_S = 30.0, 0.02


def run_session(
    task: Task[Problem],
    method: Method[Problem],
    search: Search[Solution],
    start: Plan | None,
    workers: Workers | int | None,
) -> None:
    """Run a method on a task, from a start and beside workers, until it ends or must stop."""
    portfolio = _portfolio(task, method, search, workers)
    with interrupts(search.interrupt):
        if start is not None and not search.offer(start.solution):
            search.note("the start breaks a rule of this problem and was not used")
        _run_beside(partial(solve_in_session, method.solve, task, search), search, portfolio)
    search.say_gap()
    if unkept():
        search.note(f"compiling takes its time in every process: {NOT_KEPT}")


def run_alone(run: Callable[[], None], task: Task[Problem], search: Search[Solution]) -> None:
    """Run a function that knows its search, as `run_session`, without workers and first bounds."""
    idle: Method[Problem] = Method(lambda _task, _search: None)
    with interrupts(search.interrupt):
        _run_beside(run, search, _portfolio(task, idle, search, 1))
    search.say_gap()


def solve_in_session(run: Solver[Problem], task: Task[Problem], search: Search[Solution]) -> None:
    """Raise the bounds that take linear time, then run the method.

    The method runs even if time is up: it makes a first plan before it polls the clock. If kernels
    were compiled to reach the limits' gap, none is compiled to go beyond it; a later call does so.
    """
    for note in colour_notes(task):
        search.note(note)
    with compiled_to_come_near(lambda: search.near):
        if not has_rules(task):
            raise_first_bounds(task, search)
            if search.done:
                return
        run_method(run, task, search)


def _portfolio(
    task: Task[Problem],
    method: Method[Problem],
    search: Search[Solution],
    workers: Workers | int | None,
) -> Portfolio:
    """Return the workers beside a method, not started yet."""
    asked = Workers(workers) if isinstance(workers, int) else workers or Workers()
    strategies = tuple(method.strategies(task))
    if not strategies and ((asked.count or 1) > 1 or asked.scheduler is not None):
        search.note(f"{search.method} has nothing to run beside it, and used one process")
    executor = executor_of((asked.count or usual_count()) - 1, asked.scheduler)
    count = executor.size if asked.count is None else asked.count - 1
    return Portfolio(task, search, strategies, executor, count, deterministic=asked.deterministic)


def _run_beside(run: Callable[[], None], search: Search[Solution], portfolio: Portfolio) -> None:
    """Run a solver in a thread of its own, so that deadline and Ctrl-C hold whatever it does.

    Compiling a kernel, or a presolve that ignores the clock, cannot be interrupted: a solver that
    overruns by `GRACE_S` is abandoned. The deadline waits for a first plan, for `FIRST_CPU_S` of
    CPU time of this process; this thread's own, which starts workers and shows progress, does not
    count.
    """
    began = seen = _computed()
    seen_at = time.monotonic()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(
        target=copy_context().run, args=(work,), name="stagecut solver", daemon=True
    )
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
            portfolio.look()
            if _computed() > seen + PROGRESS_S:
                seen, seen_at = _computed(), time.monotonic()
            first = (
                search.best is None
                and search.hit != "interrupt"
                and seen < began + FIRST_CPU_S
                and time.monotonic() < seen_at + STUCK_S
            )
            if search.overdue() > GRACE_S and not first:
                portfolio.close()
                search.close()
                search.note(
                    f"the time was up while {search.method} was being compiled, once per machine: "
                    "give it more, or run stagecut warm"
                    if compiling()
                    else f"{search.method} did not stop in time and was left behind"
                )
                atexit.register(_wait_for, thread)
                return
        if not failures:
            portfolio.wait()
    finally:
        portfolio.close()
    if failures:
        raise failures[0]


def _wait_for(solver: threading.Thread) -> None:
    """Wait at the end of a script for an abandoned solver, however long it takes.

    Python would end its thread inside compiled code, which aborts the process; Ctrl-C ends the
    process cleanly.
    """
    try:
        solver.join(LEFT_S)
        if solver.is_alive():
            print("waiting for a solver to end; Ctrl-C ends at once", file=sys.stderr, flush=True)
            solver.join()
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(130)


def _computed() -> float:
    """Return the CPU seconds of this process, without those of this thread."""
    return time.process_time() - time.thread_time()


@contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `ask`, for a search to stop with what it has; a second one raises.

    Where Ctrl-C is ignored, as shells do for background jobs, it stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before in (signal.SIG_IGN, None):
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        ask()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
