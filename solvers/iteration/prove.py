"""The search on the lattice of all ideals: bounds and plans of all numbers of stages.

What is quick comes first: candidates, and the game of paths against chains. Then annealing, branch
and bound from the last stage (`branch`), and best first over chains by device (`by_device`) take
turns, each for as long as the others have had, branch and bound a little before. They share the
incumbent, and what is proved of each number of stages. So the one that suits a case best comes to
its end in a small multiple of the time that it would take alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import numpy as np

from ...instances import Solution
from ..core.search import Search
from ..core.share import Share
from .annealing.restarts import ANNEALINGS, LONG_STEPS, Best, restarts
from .bounds.stage_paths import StagePaths
from .branch import branch
from .by_device.prove import by_device, chains_by_device
from .chain_dp import Cheapest
from .numbers import most_work, numbers_of_stages, try_candidates
from .run import Run
from .sized import Sized, leave_out, refute

ORIGIN = "paths of the schedule over chains of ideals"
#: Executions of the first branch and bound, and by how much their number grows after each that
#: did not come to its end.
NODES, GROWTH = 2_000, 1.5
#: Seconds by which a search is ahead of the others: most cases with coarse layers end within it,
#: and the others' kernels take 13 s to compile on a machine's first call.
AHEAD_S = {"branch and bound": 1.5, "long annealing": -6.0}
#: By how much the time of searches counts more where devices hold two stages: branch and bound from
#: the last stage does not see what the first stage of a device costs, and annealing finds early.
SLOWER = {"annealing": 2.0, "branch and bound": 12.0}
#: The same for annealing that cools more slowly.
LONG = {"long annealing": 6.0}
#: Part of the time for candidates.
SHARE = 0.2
#: What runs in other processes by this name, and the turns that are left to them then.
ANNEALING, LEFT_TO_OTHERS = "annealing", {"annealing", "long annealing"}


def prove(run: Run) -> None:
    """Raise the bound, and offer plans, until both meet or the search must stop."""
    search = run.search
    with search.phase("list stages"):
        numbers = numbers_of_stages(run, most_work(run), prove=True)
    if numbers is None:
        search.note("dp: too many stages to list in time; the plan is the best of some orders")
        return

    def raise_bound() -> None:
        bound = min(plans.bound for plans in numbers)
        if np.isfinite(bound):
            search.raise_bound(bound, ORIGIN)

    raise_bound()
    until = Share(search, SHARE)
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
    slower = LONG
    if by_device(run.line, numbers):
        turns["chains by device"] = chains_by_device(run, numbers, raise_bound)
        if run.line.problem.chunks_per_device > 1:
            slower = LONG | SLOWER
    take_turns(search, turns, slower)
    if search.best is None and all(plans.bound == np.inf for plans in numbers):
        under = " that keeps the placement rules" if run.line.rules else ""
        search.prove_infeasible(
            f"no contiguous split{under} fits into memory with the microbatches that this schedule "
            "has in flight; give more memory or more devices, or take another schedule"
        )


def take_turns(
    search: Search[Solution], turns: dict[str, Iterator[None]], slower: Mapping[str, float]
) -> None:
    """Run searches in steps, next always the one that has had the least time, until all have ended.

    `AHEAD_S` is not counted. Those in `LONG` have no end of their own. What other processes do
    meanwhile has no turn.

    Parameters
    ----------
    turns
        By the name of their phase; they may end early.
    slower
        By how much the time of some of them counts more.
    """

    def had(name: str) -> float:
        spent = search.phases.get(name, 0.0) * slower.get(name, 1.0)
        return spent - AHEAD_S.get(name, 0.0)

    left = dict(turns)

    def own() -> set[str]:
        return left.keys() - (LEFT_TO_OTHERS if ANNEALING in search.beside else set())

    while own() - LONG.keys() and not search.should_stop():
        name = min(own(), key=had)
        with search.phase(name):
            try:
                next(left[name])
            except StopIteration:
                del left[name]


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
