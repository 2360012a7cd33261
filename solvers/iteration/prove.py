"""The search on the lattice of all ideals: bounds and plans of all numbers of stages.

What is quick comes first: candidates, and the game of paths against chains. Then annealing, branch
and bound from the last stage (`branch`), and best first over chains by device (`by_device`) take
turns (`turns`). They share the incumbent, and what is proved of each number of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from .annealing.restarts import ANNEALINGS, LONG_STEPS, Best, restarts
from .branch import branch
from .by_device.prove import by_device, chains_by_device
from .chain_dp import Cheapest
from .numbers import most_work, numbers_of_stages, try_candidates
from .run import Run
from .sized import Sized, leave_out, refute
from .stage_paths import StagePaths
from .turns import ALONE, BY_DEVICE, TWO_STAGES, take_turns

ORIGIN = "paths of the schedule over chains of ideals"
#: Executions of the first branch and bound, and by how much their number grows after each that
#: did not come to its end.
NODES, GROWTH = 2_000, 1.5

#: Part of the time for candidates.
SHARE = 0.2


def prove(run: Run) -> bool:
    """Raise the bound, and offer plans, until both meet or the search must stop.

    Returns
    -------
    bool
        False if there are too many stages to list.
    """
    search = run.search
    with search.phase("list stages"):
        numbers = numbers_of_stages(run, most_work(run), prove=True)
    if numbers is None:
        return False

    def raise_bound() -> None:
        bound = min(plans.bound for plans in numbers)
        if np.isfinite(bound):
            search.raise_bound(bound, ORIGIN)

    raise_bound()
    until = search.part(SHARE)
    with search.phase("candidates"):
        for plans in numbers:
            if plans.bound < search.objective and not until.should_stop():
                try_candidates(run, plans, until)
        raise_bound()
    turns = {}
    if not (run.line.problem.order or run.line.rules):
        best = Best()
        turns["annealing"] = restarts(run, numbers, range(ANNEALINGS), 1, best)
        turns["long annealing"] = restarts(run, numbers, count(ANNEALINGS), LONG_STEPS, best)
        if run.line.problem.chunks_per_device > 1:
            with search.phase("annealing"):
                for _ in range(4):
                    next(turns["annealing"], None)
    with search.phase("paths against chains"):
        for plans in sorted(numbers, key=lambda plans: plans.bound):
            if plans.bound < search.objective and not search.should_stop():
                leave_out(plans, search.objective)
                for makespan, found in refute(plans, search.objective, search):
                    run.offer(plans.paths, found, makespan)
                raise_bound()
    turns["branch and bound"] = _branch(run, numbers, raise_bound)
    counted = ALONE
    if by_device(run.line, numbers):
        turns["chains by device"] = chains_by_device(run, numbers, raise_bound)
        counted = TWO_STAGES if run.line.problem.chunks_per_device > 1 else BY_DEVICE
    take_turns(search, turns, counted)
    if search.best is None and all(plans.bound == np.inf for plans in numbers):
        under = " that keeps the placement rules" if run.line.rules else ""
        search.prove_infeasible(
            f"no contiguous split{under} fits into memory with the microbatches that this schedule "
            "has in flight; give more memory or more devices, or take another schedule"
        )
    return True


def _branch(run: Run, numbers: list[Sized], raise_bound: Callable[[], None]) -> Iterator[None]:
    """Raise the bound of the number of stages that has the least, step by step.

    A step is halved where branch and bound does not come to its end, and doubled where it does.
    """
    search = run.search
    step = {plans.size: 1.0 for plans in numbers}
    budget = NODES
    while True:
        plans = min(numbers, key=lambda plans: plans.bound)
        if plans.bound >= run.aim():
            return
        target = run.aim()
        if step[plans.size] < 1:
            target = plans.bound + step[plans.size] * (target - plans.bound)
        for makespan, found in refute(plans, target, search):
            run.offer(plans.paths, found, makespan)
            raise_bound()
            yield

        def offer(found: Cheapest, makespan: float, paths: StagePaths = plans.paths) -> None:
            run.offer(paths, found, makespan)

        def aim(target: float = target) -> float:
            return min(target, run.aim())

        out = yield from branch(plans, aim, offer, search, budget)
        if out.complete:
            plans.bound = max(plans.bound, out.target)
            step[plans.size] = min(1.0, 2 * step[plans.size])
        else:
            plans.bound = max(plans.bound, min(out.open_bound, out.target))
            step[plans.size] /= 2
            budget = int(budget * GROWTH)
        raise_bound()
        yield
