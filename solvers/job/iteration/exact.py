"""Chains of stages for an iteration: plans and bounds until both meet.

For each number of stages P: what divisible work says (`divisible`); then best first over sets of
chains on the lattice of all ideals, which takes turns with annealing where stages share a device.
They share the incumbent. The bound of the problem is the least over P. Where the lattice, or the
list of stages, is too large, best first (for a part of the time) and annealing search the chains of
a few topological orders. `annealing` runs beside `auto`, in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from ....formulations.job.iteration_bounds import ORIGIN as DIVISIBLE
from ....formulations.job.iteration_bounds import divisible_bound, max_load_task
from ....formulations.job.line import Line, line, most_between
from ....formulations.job.orders import Chain, order_of
from ....formulations.task import Task
from ....formulations.throughput.infeasible import why_infeasible
from ....instances import PipelineJob, Solution
from ...core.lattice import Lattice, chain, list_ideals
from ...core.search import Search
from ..methods import ANNEALING
from .annealing import restarts, sizes_of
from .best_first import Root, best_first, root
from .chains import Run
from .frameworks import first_plans
from .options import ChainOptions, OutOfTime
from .stage_list import StageList, list_stages

ORIGIN = "paths of the schedule over chains of ideals"

#: Most ideals that are listed.
IDEALS = 300_000

#: Part of the time left for the chains of one topological order.
SHARE = 0.2


def chain_search(task: Task[PipelineJob], search: Search[Solution]) -> None:
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
    if task.problem.split == "contiguous" and _proved(task, statement, search):
        return
    with search.phase("topological orders"):
        for one in statement.orders:
            if search.should_stop():
                return
            with suppress(OutOfTime):
                _first_chains(Run(task, statement, search, chain(one)))
    if task.problem.split == "contiguous":
        _anneal(task, statement, search, [*map(chain, statement.orders)])


def _proved(task: Task[PipelineJob], statement: Line, search: Search[Solution]) -> bool:
    """Search on the lattice of all ideals; False, and a note, if it or the stages are too many."""
    if search.should_stop():
        return True
    with search.phase("list ideals"):
        lattice = list_ideals(statement.orders[0], statement.graph.edges, IDEALS, search)
    if not lattice.complete:
        search.note(f"dp: more than {IDEALS} ideals; the plan is the best of some orders")
        return False
    with suppress(OutOfTime):
        if not prove(Run(task, statement, search, lattice)):
            search.note("dp: too many stages to list in time; the plan is the best of some orders")
            return False
    return True


def _first_chains(run: Run) -> None:
    """Offer the chains that best first meets in its part of the time."""
    until = run.search.part(SHARE)
    numbers = numbers_of_stages(run, prove=False)
    if numbers is not None:
        for _ in best_first(run, numbers, lambda: None):
            if until.should_stop():
                return


def numbers_of_stages(run: Run, *, prove: bool) -> list[Root] | None:
    """Return the numbers of stages with their bounds of divisible work, the least bound first.

    Stages on one device exchange data for nothing. For a bound, only nets count whose pins cannot
    be as far apart as two stages of a device, and relayed ones if neighbours are on different
    devices; on a single device none does. Stages of more work than a plan better than the incumbent
    can have are left out. None if there are too many stages, or the search must stop.
    """
    problem = run.line.problem
    most = run.search.objective / problem.batch
    shared = problem.chunks_per_device > 1
    every = np.ones(len(run.line.graph.pins), np.bool_)
    between = most_between(run.line.graph) if shared and prove and not problem.relayed else every
    lists: dict[bytes, StageList] = {}
    found = []
    for size in run.line.sizes():
        order = order_of(problem, size, run.line.trains)
        paid = every
        if shared and prove:
            paid = every & (order.apart > 1) if problem.relayed else between < order.apart - 1
        if shared and len(order.tables) == 1:
            paid = np.zeros_like(every)
        if paid.tobytes() not in lists:
            listed = list_stages(run.line, run.lattice, most, run.search, paid)
            if listed is None:
                return None
            lists[paid.tobytes()] = listed
        chain = Chain(order, problem.weight_share)
        unpaid = np.flatnonzero(~paid) if len(order.tables) > 1 and not problem.relayed else ()
        listed = lists[paid.tobytes()]
        options = ChainOptions(run.line, listed, chain, run.search, tuple(unpaid))
        found.append(root(options, run.search.objective))
        if run.search.should_stop():
            return None
    return sorted(found, key=lambda own: own.bound)


def prove(run: Run) -> bool:
    """Raise the bound, and offer plans, until both meet; False if stages are too many to list."""
    search = run.search
    with search.phase("list stages"):
        numbers = numbers_of_stages(run, prove=True)
    if numbers is None:
        return False

    def raise_bound() -> None:
        bound = min(own.bound for own in numbers)
        if np.isfinite(bound):
            search.raise_bound(bound, ORIGIN)

    raise_bound()
    turns = {}
    if run.line.problem.chunks_per_device > 1 and not (run.line.problem.order or run.line.rules):
        turns[ANNEALING] = restarts(run, numbers)
        with search.phase(ANNEALING):
            for _ in range(4):
                next(turns[ANNEALING], None)
    turns["best first"] = best_first(run, numbers, raise_bound)
    take_turns(search, turns)
    if search.best is None and all(own.bound == np.inf for own in numbers):
        under = " that keeps the placement rules" if run.line.rules else ""
        search.prove_infeasible(
            f"no contiguous split{under} fits into memory with the microbatches that this schedule "
            "has in flight; give more memory or more devices, or take another schedule"
        )
    return True


def take_turns(search: Search[Solution], turns: dict[str, Iterator[None]]) -> None:
    """Run searches in steps, next always the one that has had the least time, until all have ended.

    `turns` has the searches by the name of their phase. Annealing has no turn while another process
    anneals.
    """
    left = dict(turns)
    while not search.should_stop():
        names = [name for name in left if not (name == ANNEALING and ANNEALING in search.beside)]
        if not names:
            return
        name = min(names, key=lambda one: search.phases.get(one, 0.0))
        with search.phase(name):
            try:
                next(left[name])
            except StopIteration:
                del left[name]


def annealing(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Anneal chains of stages from other random numbers than `auto`; `limits.nodes` counts them.

    No stages are listed.
    """
    statement = line(task)
    lattice = list_ideals(statement.orders[0], statement.graph.edges, IDEALS, search)
    if lattice.complete:
        _anneal(task, statement, search, [lattice])


def _anneal(
    task: Task[PipelineJob], statement: Line, search: Search[Solution], lattices: Sequence[Lattice]
) -> None:
    """Anneal chains on each of some lattices, for equal parts of the time."""
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    sizes = sizes_of(statement)
    with search.phase(ANNEALING):
        for n, lattice in enumerate(lattices):
            part = search.part(1 / (len(lattices) - n))
            for _ in restarts(Run(task, statement, search, lattice), sizes):
                if part.should_stop():
                    break
