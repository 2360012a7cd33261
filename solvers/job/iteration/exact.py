"""Chains of stages for an iteration: plans and bounds until both meet.

For each number of stages P: what divisible work says (`divisible`); then searches that take turns:
annealing, and best first over sets of chains. The one that suits a case best comes to its end in a
small multiple of the time that it would take alone. They share the incumbent. The bound of the
problem is the least over P. Before, some steps of best first are made on chains of a few
topological orders, and all this on the lattice of all ideals. `annealing` at the end runs beside
`auto`, in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice

import numpy as np

from ....formulations.job.iteration_bounds import ORIGIN as DIVISIBLE
from ....formulations.job.iteration_bounds import divisible_bound, max_load_task
from ....formulations.job.line import Line, line, most_between
from ....formulations.job.orders import Chain, order_of
from ....formulations.task import Task
from ....formulations.throughput.infeasible import why_infeasible
from ....instances import PipelineJob, Solution
from ...core.lattice import chain, list_ideals
from ...core.search import Search
from ..methods import ANNEALING
from .annealing import ANNEALINGS, restarts, sizes_of
from .best_first import Root, best_first, root
from .chains import Run
from .frameworks import first_plans
from .stage_list import OutOfTime, StageList, StagePaths, list_stages

#: Seeds between those of two workers; even, as even seeds begin with equal parts.
APART = 1 << 20


#: Seconds of best first that do not count, as most cases with coarse layers end within that time,
#: and the kernels of annealing take a while to compile on a machine's first call; and by how much
#: the time of annealing counts more.
AHEAD, WEIGHT = 1.5, 3.0

ORIGIN = "paths of the schedule over chains of ideals"

#: Most ideals that are listed.
IDEALS = 300_000

#: Steps for chains of one topological order, and the part of the time left for them at most.
STEPS, SHARE = 50, 0.2


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
                _first_chains(Run(task, statement, search, chain(one)))
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


def _anneal(task: Task[PipelineJob], statement: Line, search: Search[Solution]) -> None:
    """Anneal the boundaries of chains of topological orders, where there is no list of stages."""
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    with search.phase("annealing"):
        sizes = sizes_of(statement)
        for order in statement.orders:
            run = Run(task, statement, search, chain(order))
            for _ in restarts(run, sizes, range(ANNEALINGS)):
                if search.should_stop():
                    return


def _first_chains(run: Run) -> None:
    """Offer the chains that some steps of best first meet."""
    until = run.search.part(SHARE)
    numbers = numbers_of_stages(run, most_work(run), prove=False)
    if numbers is not None:
        for _ in islice(best_first(run, numbers, lambda: None), STEPS):
            if until.should_stop():
                return


def numbers_of_stages(run: Run, most: float, *, prove: bool) -> list[Root] | None:
    """Return the numbers of stages with their bounds of divisible work, the least bound first.

    Stages on one device exchange data for nothing. For a bound, only nets count whose pins cannot
    be as far apart as two stages of a device, and relayed ones if neighbours are on different
    devices; on a single device none does. Stages of more work than `most` are left out. None if
    there are too many stages, or the search must stop.
    """
    problem = run.line.problem
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
            lists[paid.tobytes()] = listed.keep(np.argsort(listed.end, kind="stable"))
        chain = Chain(order, problem.weight_share)
        unpaid = np.flatnonzero(~paid) if len(order.tables) > 1 and not problem.relayed else ()
        listed = lists[paid.tobytes()]
        paths = StagePaths(run.line, listed, chain, run.search, tuple(unpaid))
        found.append(root(paths, run.search.objective))
        if run.search.should_stop():
            return None
    return sorted(found, key=lambda own: own.bound)


def most_work(run: Run) -> float:
    """Return the work of a stage beyond which no plan is better than the incumbent."""
    return run.search.objective / run.line.problem.batch


def prove(run: Run) -> bool:
    """Raise the bound, and offer plans, until both meet; False if stages are too many to list."""
    search = run.search
    with search.phase("list stages"):
        numbers = numbers_of_stages(run, most_work(run), prove=True)
    if numbers is None:
        return False

    def raise_bound() -> None:
        bound = min(own.bound for own in numbers)
        if np.isfinite(bound):
            search.raise_bound(bound, ORIGIN)

    raise_bound()
    turns = {}
    if not (run.line.problem.order or run.line.rules):
        turns[ANNEALING] = restarts(run, numbers, count())
        if run.line.problem.chunks_per_device > 1:
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

    def had(name: str) -> float:
        spent = search.phases.get(name, 0.0)
        return WEIGHT * spent if name == ANNEALING else spent - AHEAD

    left = dict(turns)
    while not search.should_stop():
        names = [name for name in left if not (name == ANNEALING and ANNEALING in search.beside)]
        if not names:
            return
        name = min(names, key=had)
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
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    lattice = list_ideals(statement.orders[0], statement.graph.edges, IDEALS, search)
    if not lattice.complete:
        return
    run, first = Run(task, statement, search, lattice), APART * search.limits.seed
    nodes = search.limits.nodes
    seeds = (first + n for n in (count() if nodes is None else range(nodes)))
    for _ in restarts(run, sizes_of(statement), seeds):
        if search.should_stop():
            return
