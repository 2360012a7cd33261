"""A method at work on a task: with placement rules, each case of it is a search of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ...formulations.cheap_bounds import cheap_bounds
from ...formulations.linear_program import SolverError
from ...formulations.rules.cases import RuleCase
from ...formulations.rules.reduce import stage_task, why_no_case, without_rules
from ...formulations.task import Task
from ...instances import InfeasibleError, Limit, Problem, Solution
from ...instances.model.problem import names_stages
from .method import Solver
from .search import PartSearch, Search, Share

#: Cases at most: with more, bounds of single cases say nothing, and time ends before.
MOST_CASES = 200

#: What bounds of several cases are the least of.
ORIGIN = "the least over all cases of the placement rules"


class CaseSearch(PartSearch[Solution]):
    """The search in a case of placement rules; plans and bounds are translated to the whole task.

    Parameters
    ----------
    case
        What is searched.
    whole
        The search in the task with rules.
    cases
        How many are left, this one counted: it gets that part of the time left.
    lone
        Whether there is no other, so that its bounds hold for the whole.
    """

    def __init__(self, case: RuleCase, whole: Search[Solution], cases: int, *, lone: bool) -> None:
        super().__init__(Share(whole, 1 / cases), partial(_value, case, whole))
        self.limits = replace(whole.limits, seconds=self.limits.seconds)
        self.method, self.notes, self.phases = whole.method, whole.notes, whole.phases
        self._case, self._whole, self._lone = case, whole, lone
        if whole.best is not None and (known := case.restrict(whole.best)) is not None:
            super().offer(known)

    def offer(self, solution: Solution) -> bool:
        """Offer a solution to the case, and to the whole task if it is better."""
        better = super().offer(solution)
        if better:
            self._whole.offer(self._case.expand(solution))
        return better

    def raise_bound(
        self, bound: float, origin: str, certificate: dict[str, object] | None = None
    ) -> bool:
        """Raise the bound of the case; if it is the only one, of both.

        The certificate stays with the case, whose units and kinds it speaks of.
        """
        better = super().raise_bound(bound, origin, certificate)
        if better and self._lone:
            self._whole.raise_bound(self.bound, f"{origin}, under the placement rules")
        return better

    def should_stop(self) -> bool:
        """Whether to stop soon: too if no plan of the case can be better than the best one."""
        gap = max(self._whole.limits.least_gap, 1e-12)
        hopeless = self._whole.best is not None and self.bound >= self._whole.objective * (1 - gap)
        return hopeless or super().should_stop()

    def tick(self) -> None:
        """Report the progress of the whole search."""
        self._whole.tick()


def _value(case: RuleCase, whole: Search[Solution], found: Solution) -> float:
    """Return the objective of a solution of a case; `inf` if it is one of another case."""
    return whole.value(case.expand(found)) if case.has(found) else math.inf


def has_rules(task: Task[Any]) -> bool:
    """Whether the task has rules for placements."""
    return bool(getattr(task.problem, "placement_rules", False))


def raise_first_bounds(task: Task[Problem], search: Search[Solution]) -> None:
    """Raise the bounds that need neither a plan nor a kernel: see `cheap_bounds`."""
    with search.phase("first bounds"):
        try:
            for bound, origin in cheap_bounds(task):
                search.raise_bound(bound, origin)
        except SolverError as error:
            search.note(f"not all first bounds are known: {error}")


def run_method(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method on a task, with or without rules."""
    if has_rules(task):
        solve_under_rules(run, task, search)
    else:
        _run(run, task, search)


def _run(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method; what it has found stands, also if HiGHS fails it."""
    try:
        run(task, search)
    except SolverError as error:
        search.note(f"{search.method} ended early: {error}")


def solve_under_rules(run: Solver[Any], task: Task[Any], search: Search[Solution]) -> None:
    """Run a method on the cases of a task with rules, and put their ends together."""
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
    ends: list[CaseSearch] = []
    for left in range(len(found), 0, -1):
        if ends and search.should_stop():  # the first one begins even where the time is up
            break
        case = found[-left]
        inner = CaseSearch(case, search, left, lone=len(found) == 1)
        _run(run, case.task, inner)
        search.method = inner.method
        ends.append(inner)
    _put_together(search, ends, len(found))


def _put_together(search: Search[Solution], ends: list[CaseSearch], count: int) -> None:
    """Conclude on the whole task from its cases, some of which may not have been searched."""
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
