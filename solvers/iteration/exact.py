"""Chains of stages for an iteration: candidates first, then bounds until both meet.

For each number of stages P: what divisible work says (`divisible`); the least worst stage, and
candidates from it, improved by moving boundaries (`climb`); the game of paths against chains
(`sized`); then searches that take turns (`prove`). The bound of the problem is the least over P.
First all this runs without proofs on chains of a few topological orders, then on the lattice of all
ideals.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ...formulations.iteration.cheap_bounds import max_load_task
from ...formulations.iteration.divisible import ORIGIN as DIVISIBLE
from ...formulations.iteration.divisible import divisible_bound
from ...formulations.iteration.line import Line, line
from ...formulations.task import Task
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Solution, TrainingJob
from ..core.lattice import chain, list_ideals
from ..core.search import Search, Share
from .annealing.restarts import ANNEALINGS, Best, restarts, sizes_of
from .first_plans import first_plans
from .numbers import most_work, numbers_of_stages, try_candidates
from .prove import prove
from .run import Run
from .sized import SLACK
from .stage_paths import OutOfTime

#: Ideals at most.
IDEALS = 300_000
#: Part of the time for candidates.
SHARE = 0.2
#: Work of a stage that is tried first, in parts of what each device has to do on average.
WORK = (2.0, 4.0, np.inf)


def chain_search(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Find the chain of stages with the least makespan, and prove it for contiguous splits.

    Where the lattice of ideals, or the list of stages, is too large, that is said, and the plan is
    the best of some topological orders.
    """
    with search.phase("build"):
        statement = line(task)
        reason = why_infeasible(max_load_task(task))
    if reason is not None:
        search.prove_infeasible(reason)
        return
    if not statement.sizes():
        search.prove_infeasible(statement.why_no_size())
        return
    if np.isinf(statement.compute).any(axis=1).all(axis=0).any():  # a unit that runs nowhere
        if task.problem.split == "contiguous":
            search.prove_infeasible(str(why_infeasible(max_load_task(task), statement.graph)))
        return
    if search.best is None:
        first_plans(task, statement, search)
    with search.phase("divisible work"):
        work = statement.compute.min(axis=0).sum(axis=1)
        if task.problem.split == "contiguous" and np.isfinite(work).all():
            bound = divisible_bound(task.problem, statement.sizes(), work)
            search.raise_bound(bound, DIVISIBLE)
    if search.should_stop():
        return
    order, edges = statement.orders[0], statement.graph.edges
    with search.phase("list ideals"):
        lattice = list_ideals(order, edges, IDEALS, search)
    with search.phase("topological orders"):
        for one in statement.orders[: 1 if lattice.complete else None]:
            if search.should_stop():
                return
            with suppress(OutOfTime):
                _heuristics(Run(task, statement, search, chain(one)))
    if task.problem.split != "contiguous":
        return
    if not lattice.complete:
        search.note(f"dp: more than {IDEALS} ideals; the plan is the best of some orders")
        _anneal(task, statement, search)
        return
    if not search.should_stop():
        with suppress(OutOfTime):
            if not prove(Run(task, statement, search, lattice)):
                search.note(
                    "dp: too many stages to list in time; the plan is the best of some orders"
                )
                _anneal(task, statement, search)


def _anneal(task: Task[TrainingJob], statement: Line, search: Search[Solution]) -> None:
    """Anneal the boundaries of chains of topological orders, where there is no list of stages."""
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    with search.phase("annealing"):
        sizes = sizes_of(statement)
        for order in statement.orders:
            run = Run(task, statement, search, chain(order))
            for _ in restarts(run, sizes, range(ANNEALINGS), 1, Best()):
                if search.should_stop():
                    return


def _heuristics(run: Run) -> None:
    """Offer candidates for each number of stages."""
    until = Share(run.search, SHARE)
    total = float(run.line.compute.min(axis=0).sum())
    share = total / float(run.line.count.sum())
    for part in WORK:
        numbers = numbers_of_stages(run, min(part * share, most_work(run)), prove=False)
        for plans in numbers or ():
            if plans.bound >= run.search.objective * (1 - SLACK) or until.should_stop():
                continue
            try_candidates(run, plans, until)
        if run.search.best is not None:
            return
