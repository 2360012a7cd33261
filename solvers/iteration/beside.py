"""What can run beside `auto` for contiguous splits, in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count, islice

import numpy as np

from ...formulations.iteration.chain import Chain
from ...formulations.iteration.divisible import divide
from ...formulations.iteration.line import Line, line
from ...formulations.iteration.orders import order_of
from ...formulations.task import Task
from ...instances import Iteration, Solution
from ..core.lattice import list_ideals
from ..core.search import Search
from .annealing.restarts import ANNEALINGS, LONG_STEPS, Best, restarts
from .exact import IDEALS
from .run import Run

#: Steps of annealing without a better plan after which a search without deadline ends.
ENOUGH = 50
#: Seeds between those of two workers; even, as even seeds begin with equal parts.
APART = 1 << 20


@dataclass(frozen=True)
class Size:
    """A number of stages, as far as annealing needs to know it; see `Number`."""

    size: int
    bound: float
    chain: Chain


def annealing(task: Task[Iteration], search: Search[Solution]) -> None:
    """Anneal chains of stages from other random numbers than `auto`; `limits.nodes` counts them.

    No stages are listed: what is known of a number of stages is what divisible work says.
    """
    statement = line(task)
    if statement.rules or task.problem.order:
        return  # annealing does not keep them
    lattice = list_ideals(statement.orders[0], statement.graph.edges, IDEALS, search)
    if not lattice.complete:
        return
    numbers, best = _numbers(statement), Best()
    run, first = Run(task, statement, search, lattice), APART * search.limits.seed
    nodes = search.limits.nodes
    seeds = (first + n for n in (count() if nodes is None else range(nodes)))
    short = islice(seeds, ANNEALINGS)
    idle, least = 0, search.objective
    for _ in chain(
        restarts(run, numbers, short, 1, best), restarts(run, numbers, seeds, LONG_STEPS, best)
    ):
        idle = 0 if search.objective < least else idle + 1
        least = search.objective
        if search.should_stop() or (search.limits.seconds is None and idle >= ENOUGH):
            return


def _numbers(statement: Line) -> list[Size]:
    """Return the numbers of stages that plans can have."""
    problem = statement.problem
    least = statement.compute.min(axis=0)  # annealing ends at once where a unit runs nowhere
    forward, compute = np.where(np.isfinite(least), least, 0.0).sum(axis=1).tolist()
    found = []
    for size in statement.sizes():
        own = Chain(order_of(problem, size, statement.trains), problem.weight_share)
        found.append(Size(size, divide(own, forward, compute).bound, own))
    return found
