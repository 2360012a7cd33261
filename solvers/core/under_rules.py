"""Runs of a method on a task; under placement rules, one search for each case of the rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any, cast

from ...formulations.linear import SolverError
from ...formulations.rules.cases import RuleCase, stage_task, why_no_case, without_rules
from ...formulations.task import Task
from ...instances import InfeasibleError, Limit, Problem, Solution, is_stream
from ...instances.model.problem import names_stages
from .method import Solver
from .search import Found, News, Peers, Proved, Search, Withdrawn

#: Most cases: with more, bounds of single cases are useless, and time is up earlier.
MOST_CASES = 200

#: Origin of the bound that is the least one over all cases.
ORIGIN = "the least over all cases of the placement rules"


class _Whole(Peers):
    """The search in the whole task with placement rules, as the peer of the search in a case.

    Solutions of the case are translated to the task by `case`. Bounds hold for the task only if
    there is no other case (`lone`). Certificates stay with the case, as they refer to its units
    and kinds.
    """

    def __init__(self, case: RuleCase, whole: Search[Solution], *, lone: bool) -> None:
        self._case, self._whole, self._lone = case, whole, lone

    def tell(self, news: News, sender: str) -> None:  # noqa: ARG002
        """Offer the case's solutions to the whole task, and its bounds if it is the only case."""
        match news:
            case Found(solution):
                self._whole.offer(self._case.expand(solution))
            case Proved(bound, origin) if self._lone:
                self._whole.raise_bound(bound, _under(origin))
            case Withdrawn(origin, claim) if self._lone:
                self._whole.withdraw(_under(origin), claim)

    def take(self, search: Search[Any]) -> None:
        """Set the case's cutoff to the objective of the whole task."""
        search.cutoff = self._whole.objective


def _under(origin: str) -> str:
    return f"{origin}, under the placement rules"


def _case_search(
    case: RuleCase, whole: Search[Solution], cases: int, *, lone: bool
) -> Search[Solution]:
    """Return a search in a case, with an equal part of the time left for each remaining case."""

    def value(found: Solution) -> float:
        return whole.judge(case.expand(found)) if case.has(found) else math.inf

    inner = Search(whole.limits, value, lambda _: whole.tick(), within=whole.part(1 / cases))
    inner.method, inner.notes, inner.phases = whole.method, whole.notes, whole.phases
    if whole.best is not None and (known := case.restrict(whole.best)) is not None:
        inner.offer(known)
    inner.peers = _Whole(case, whole, lone=lone)
    return inner


def has_rules(task: Task[Any]) -> bool:
    """Whether the task has placement rules."""
    return bool(getattr(task.problem, "placement_rules", False))


#: Problem → function in `stagecut.formulations` that yields its cheap bounds with their origins,
#: the quickest first; only the module of the problem at hand is imported.
_CHEAP_BOUNDS = {
    "throughput": "throughput.cheap_bounds.throughput_cheap_bounds",
    "latency": "latency.cheap_bounds.latency_cheap_bounds",
    "stream": "job.stream_bounds.stream_cheap_bounds",
    "pipeline": "job.iteration_bounds.iteration_cheap_bounds",
    "mapping": "mapping.bound.mapping_cheap_bounds",
    "sharding": "sharding.relaxation.sharding_cheap_bounds",
}


def cheap_bounds(task: Task[Problem]) -> Iterator[tuple[float, str]]:
    """Return bounds of negligible cost, with their origins, the quickest first."""
    name = _CHEAP_BOUNDS["stream" if is_stream(task.problem) else task.problem.name]
    module, _, function = name.rpartition(".")
    found = getattr(import_module(f"stagecut.formulations.{module}"), function)
    return cast(Iterator[tuple[float, str]], found(task))


def raise_first_bounds(task: Task[Problem], search: Search[Solution]) -> None:
    """Raise the bounds of `cheap_bounds`, which need neither a plan nor a kernel."""
    with search.phase("first bounds"):
        try:
            for bound, origin in cheap_bounds(task):
                search.raise_bound(bound, origin)
        except SolverError as error:
            search.note(f"not all first bounds are known: {error}")


def run_method(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method on a task, with or without placement rules."""
    if has_rules(task):
        solve_under_rules(run, task, search)
    else:
        _run(run, task, search)


def _run(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method; keep its incumbent and bound if HiGHS fails."""
    try:
        run(task, search)
    except SolverError as error:
        search.note(f"{search.method} ended early: {error}")


def solve_under_rules(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method on each case of a task with rules, and combine the results for the task."""
    try:
        if names_stages(task.problem):
            own = stage_task(task)
            raise_first_bounds(own, search)
            if not search.done:
                _run(run, own, search)
            return
        reduced = without_rules(task)
    except InfeasibleError as error:
        search.prove_infeasible(str(error))
        return
    raise_first_bounds(reduced.relaxation.task, search)
    found = list(islice(reduced.cases, MOST_CASES + 1))
    if not found:
        search.prove_infeasible(why_no_case(task))
        return
    if len(found) > MOST_CASES:
        search.note(f"placement rules: more than {MOST_CASES} cases; the bound is that of all")
    ends: list[Search[Solution]] = []
    for left in range(len(found), 0, -1):
        if ends and search.should_stop():  # the first one starts even if time is up
            break
        case = found[-left]
        inner = _case_search(case, search, left, lone=len(found) == 1)
        _run(run, case.task, inner)
        search.method = inner.method
        ends.append(inner)
    _put_together(search, ends, len(found))


def _put_together(search: Search[Solution], ends: list[Search[Solution]], count: int) -> None:
    """Combine the results of the cases, some of which may not have been searched."""
    if len(ends) == count <= MOST_CASES:
        reasons = [inner.infeasible_because for inner in ends]
        bounds = [
            inner.bound for inner, reason in zip(ends, reasons, strict=True) if reason is None
        ]
        if not bounds:
            which = "" if count == 1 else f" (in the first of {count} cases of the placement rules)"
            search.prove_infeasible(f"{reasons[0]}{which}")
        elif count > 1:
            search.raise_bound(min(bounds), ORIGIN)
    limits = [inner.hit for inner in ends if inner.hit != Limit.NONE]
    if limits and not search.should_stop():
        search.stop_for(limits[0])
