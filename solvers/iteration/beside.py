"""What can run beside `auto` for contiguous splits, in processes of their own."""

from __future__ import annotations

from itertools import chain, count, islice

from ...formulations.iteration.line import line
from ...formulations.task import Task
from ...instances import Solution, TrainingJob
from ..core.lattice import list_ideals
from ..core.search import Search
from .annealing.restarts import ANNEALINGS, LONG_STEPS, Best, restarts, sizes_of
from .exact import IDEALS
from .run import Run

#: Steps of annealing without a better plan after which it ends, if these are half of all, too.
ENOUGH = 50
#: Seeds between those of two workers; even, as even seeds begin with equal parts.
APART = 1 << 20


def annealing(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Anneal chains of stages from other random numbers than `auto`; `limits.nodes` counts them.

    No stages are listed.
    """
    statement = line(task)
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    lattice = list_ideals(statement.orders[0], statement.graph.edges, IDEALS, search)
    if not lattice.complete:
        return
    numbers, best = sizes_of(statement), Best()
    run, first = Run(task, statement, search, lattice), APART * search.limits.seed
    nodes = search.limits.nodes
    seeds = (first + n for n in (count() if nodes is None else range(nodes)))
    short = islice(seeds, ANNEALINGS)
    idle, least = 0, search.objective
    for step, _ in enumerate(
        chain(
            restarts(run, numbers, short, 1, best), restarts(run, numbers, seeds, LONG_STEPS, best)
        )
    ):
        idle = 0 if search.objective < least else idle + 1
        least = search.objective
        if search.should_stop() or idle >= max(ENOUGH, step // 2):
            return
