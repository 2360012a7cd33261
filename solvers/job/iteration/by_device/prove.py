"""The search device by device, for one or two stages on each device of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .....formulations.job.line import Line
from .....instances.common.arrays import Ints
from ..sized import SLACK, Run, Sized
from ..stage_list import StageList, list_stages
from .options import Pairs, Singles
from .pair_graph import Meeting
from .search import BestFirst, ChainSource, Root

#: Ideals at most where devices hold two stages: pairs of them are counted.
IDEALS = 3_000


#: The next gap to be reached, in parts of the last, as much less is left below a lower target; and
#: below what the next one is the last.
STEP, LAST = 0.6, 1e-3


#: How many times as long as the last such step the next one takes: 2 to 5 where gaps last. A search
#: that does not end has raised the bound by next to nothing: so it must fit into `USABLE` of the
#: time left, or the step becomes smaller, down to a power of `STEP`.
GROWS, USABLE, LEAST = 4.0, 0.9, 0.2


def by_device(line: Line, numbers: list[Sized]) -> bool:
    """Whether all devices are of one kind, and hold a stage each, or stages d and D + d of 2D.

    With two stages on a device, without rules.
    """
    if len(line.kinds) > 1:
        return False
    if all(_alone(plans) for plans in numbers):
        return True
    problem = line.problem
    few = all(plans.paths.stages.lattice.size <= IDEALS for plans in numbers)
    return (
        few
        and problem.chunks_per_device == 2
        and not (problem.overlap or problem.order or line.rules)
    )


def chains_by_device(
    run: Run, numbers: list[Sized], raise_bound: Callable[[], None]
) -> Iterator[None]:
    """Raise the bounds of all numbers of stages together, until plan and bound meet."""
    search = run.search
    longest = _longest(run.line)

    def met(ideals: Ints, makespan: float) -> None:
        run.offer_ideals(np.append(0, ideals), (0,) * len(ideals), makespan)

    def raise_all(bound: float) -> None:
        for plans in numbers:
            plans.bound = max(plans.bound, bound)
        raise_bound()

    roots = [Root(source, source.plans.pool) for source in _sources(run, numbers)]
    gap, part = 1.0, STEP
    while search.next_gap < gap:  # a search is for chains below its aim: one for each gap
        begun = search.seconds
        gap = part * min(gap, search.gap)
        if gap < max(LAST, search.next_gap):
            gap = search.next_gap

        def aim(gap: float = gap) -> float:
            return min(run.aim(gap), longest)

        best = BestFirst(aim, met, raise_all)
        for root in roots:
            root.step = 1.0
            best.push(max(root.bound, root.source.plans.bound), root)
        while best.step():
            yield
        if search.best is None and best.closed == np.inf:
            for plans in numbers:
                plans.bound = np.inf
        part = next_step(search.seconds - begun, search.seconds_left)


def next_step(took: float, left: float) -> float:
    """Return the next gap to be reached, as a part of the last, which took so many seconds."""
    if took <= 0 or np.isinf(left):
        return STEP
    power = np.log(max(USABLE * left / took, 1.0)) / np.log(GROWS)
    return float(STEP ** np.clip(power, LEAST, 1.0))


def _sources(run: Run, numbers: list[Sized]) -> Iterator[ChainSource]:
    """Yield the chains of each number of stages that can be below the incumbent."""
    most_work = run.search.objective / run.line.problem.batch
    listed: StageList | None = None
    for plans in numbers:
        if plans.bound >= run.aim():
            continue
        if not plans.pool:
            plans.pool.append(plans.prices)
        if _alone(plans):
            yield Singles(plans)
            continue
        paid = plans.paths.stages
        if plans.size > 2:  # not all on one device
            listed = listed or list_stages(run.line, run.lattice, most_work, run.search)
            if listed is None:
                return
            paid = listed
        pairs = Pairs(plans.paths, paid)
        for meet in range(1, run.lattice.size - 1):
            yield Meeting(plans, meet, pairs)


def _alone(plans: Sized) -> bool:
    """Whether each stage has a device of its own."""
    order = plans.paths.chain.order
    return len(order.tables) == order.stages


def _longest(line: Line) -> float:
    """Return a time in which any plan is through, if all its actions wait for each other."""
    finite = np.where(np.isfinite(line.compute), line.compute, 0.0)
    once = finite.max(axis=0).sum() + line.weight.max(axis=0).sum() * line.most_stages
    return float(once) * line.problem.batch * (1 + SLACK) + 1.0
