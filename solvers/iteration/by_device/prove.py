"""The search device by device, for two stages on each device of one kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....formulations.iteration.line import Line
from ....instances.common.arrays import Ints
from ..run import Run
from ..sized import SLACK, Sized
from ..stage_list import list_stages
from .pairs import Pairs
from .search import BestFirst, Root


def by_device(line: Line) -> bool:
    """Whether each device holds stages d and D + d, all are of one kind, and no rules hold."""
    problem = line.problem
    two = problem.chunks_per_device == 2 and len(line.kinds) == 1
    return two and not (problem.overlap or problem.order or line.rules)


def pairs_of_devices(run: Run, numbers: list[Sized], raise_bound: Callable[[], None]) -> None:
    """Raise the bounds of all numbers of stages together, until plan and bound meet."""
    search = run.search

    def aim() -> float:
        return min(search.objective * (1 - max(search.next_gap, SLACK)), longest)

    def met(pairs: Pairs, ideals: Ints, makespan: float) -> None:
        kinds = (0,) * pairs.paths.chain.order.stages
        run.offer_ideals(np.append(0, ideals), kinds, makespan)

    def raise_all(bound: float) -> None:
        for plans in numbers:
            plans.bound = max(plans.bound, bound)
        raise_bound()

    longest = _longest(run.line)
    best = BestFirst(search, aim, met, raise_all)
    most_work = search.objective / run.line.problem.microbatches
    for plans in numbers:
        if plans.bound >= aim():
            continue
        size = plans.size // 2
        paid = plans.paths.stages
        if size > 1:
            listed = list_stages(run.line, run.lattice, most_work, search)
            if listed is None:
                return
            paid = listed
        pool = plans.pool or [plans.prices]
        pairs = Pairs(plans.paths, paid)
        for meet in range(1, run.lattice.size - 1):
            best.push(plans.bound, Root(pairs, meet, pool))
    best.run()
    if best.complete and search.best is None and best.closed == np.inf:
        for plans in numbers:
            plans.bound = np.inf


def _longest(line: Line) -> float:
    """Return a time in which any plan is through, if all its actions wait for each other."""
    finite = np.where(np.isfinite(line.compute), line.compute, 0.0)
    once = finite.max(axis=0).sum() + line.weight.max(axis=0).sum() * line.most_stages
    return float(once) * line.problem.microbatches * (1 + SLACK) + 1.0
