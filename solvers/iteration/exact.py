"""Chains of stages for an iteration: candidates first, then bounds until both meet.

For each number of stages P: what divisible work says (`divisible`); the least worst stage, and
candidates from it, improved by moving boundaries (`climb`); the game of paths against chains
(`sized`); branch and bound (`branch`). The bound of the problem is the least over P. First all this
runs without proofs on chains of a few topological orders, then on the lattice of all ideals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ...formulations.iteration.cheap_bounds import max_load_task
from ...formulations.iteration.line import line, most_between
from ...formulations.iteration.orders import order_of
from ...formulations.task import Task
from ...formulations.throughput.infeasible import why_infeasible
from ...instances import Iteration, Solution
from ...instances.common.arrays import Ints
from ..core.lattice import chain, list_ideals
from ..core.search import Search, Stoppable
from ..core.share import Share
from .annealing.boundaries import anneal, equal_parts
from .branch import branch
from .by_device.prove import by_device, pairs_of_devices
from .chain import Chain
from .chain_dp import Cheapest
from .climb import Chains, climb
from .first_plans import first_plans
from .run import Run, ideals_of
from .sized import SLACK, Sized, candidates, durations_of, leave_out, refute, sized
from .stage_list import StageList, list_stages
from .stage_paths import OutOfTime, StagePaths

ORIGIN = "paths of the schedule over chains of ideals"
#: Ideals at most.
IDEALS = 300_000
#: Executions of the first branch and bound, and by how much their number grows after each that
#: did not come to its end.
NODES, GROWTH = 2_000, 1.5
#: Candidates of a number of stages whose boundaries are moved, and part of the time for all that.
CLIMBS, SHARE = 2, 0.2
#: Annealings of a number of stages.
ANNEALINGS = 10
#: Work of a stage that is tried first, in parts of what each device has to do on average.
WORK = (2.0, 4.0, np.inf)


def chain_search(task: Task[Iteration], search: Search[Solution]) -> None:
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
    first_plans(task, statement, search)
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
        return
    if not search.should_stop():
        with suppress(OutOfTime):
            _prove(Run(task, statement, search, lattice))


def _numbers(run: Run, most_work: float, *, prove: bool) -> list[Sized] | None:
    """Return the numbers of stages, each with what divisible work says, the best first.

    Stages on one device exchange data for nothing. For a bound, only nets count whose pins cannot
    be as far apart as two stages of a device, and relayed ones if neighbours are on different
    devices; on a single device none does.

    Parameters
    ----------
    most_work
        Of a stage.
    prove
        Whether times must be lower bounds.

    Returns
    -------
    list or None
        None if there are too many stages, or the search must stop.
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
            listed = list_stages(run.line, run.lattice, most_work, run.search, paid)
            if listed is None:
                return None
            lists[paid.tobytes()] = listed.keep(np.argsort(listed.end, kind="stable"))
        chain = Chain(order, problem.weight_share)
        found.append(sized(StagePaths(run.line, lists[paid.tobytes()], chain, run.search)))
        if run.search.should_stop():
            return None
    return sorted(found, key=lambda plans: plans.bound)


def _try_candidates(run: Run, plans: Sized, until: Stoppable) -> None:
    """Offer candidates of P stages, and what moving the boundaries of the best ones gives."""
    paths = plans.paths
    met = []
    for found in candidates(plans, until):
        makespan = paths.chain.makespan(durations_of(paths, found))
        run.offer(paths, found, makespan)
        met.append((makespan, found.stages, found.kinds))
    for _, stages, kinds in sorted(set(met))[:CLIMBS]:
        chains = Chains(paths, kinds)
        ideals = ideals_of(paths.stages, Cheapest({}, 0.0, stages, kinds))
        value, ideals = climb(chains, ideals, until)
        numbers = chains.stages(ideals)
        if numbers is not None:
            better = Cheapest({}, value, tuple(numbers.tolist()), kinds)
            run.offer(paths, better, value)


def _most_work(run: Run) -> float:
    """Return the work of a stage beyond which no plan is better than the incumbent."""
    return run.search.objective / run.line.problem.microbatches


def _heuristics(run: Run) -> None:
    """Offer candidates for each number of stages."""
    until = Share(run.search, SHARE)
    total = float(run.line.compute.min(axis=0).sum())
    share = total / float(run.line.count.sum())
    for part in WORK:
        numbers = _numbers(run, min(part * share, _most_work(run)), prove=False)
        for plans in numbers or ():
            if plans.bound >= run.search.objective * (1 - SLACK) or until.should_stop():
                continue
            _try_candidates(run, plans, until)
        if run.search.best is not None:
            return


def _prove(run: Run) -> None:
    search = run.search
    with search.phase("list stages"):
        numbers = _numbers(run, _most_work(run), prove=True)
    if numbers is None:
        search.note("dp: too many stages to list in time; the plan is the best of some orders")
        return

    def raise_bound() -> None:
        bound = min(plans.bound for plans in numbers)
        if np.isfinite(bound):
            search.raise_bound(bound, ORIGIN)

    raise_bound()
    until = Share(search, SHARE)
    problem = run.line.problem
    if problem.chunks_per_device > 1 and not (problem.order or run.line.rules):
        with search.phase("annealing"):
            _anneal(run, numbers, until)
        raise_bound()
    with search.phase("candidates"):
        for plans in numbers:
            if plans.bound < search.objective and not until.should_stop():
                _try_candidates(run, plans, until)
        raise_bound()
    with search.phase("paths against chains"):
        for plans in sorted(numbers, key=lambda plans: plans.bound):
            if plans.bound < search.objective and not search.should_stop():
                leave_out(plans, search.objective)
                for makespan, found in refute(plans, search.objective, search):
                    run.offer(plans.paths, found, makespan)
                raise_bound()
    with search.phase("branch and bound"):
        if by_device(run.line):
            pairs_of_devices(run, numbers, raise_bound)
        else:
            _branch(run, numbers, raise_bound)
    if search.best is None and all(plans.bound == np.inf for plans in numbers):
        under = " that keeps the placement rules" if run.line.rules else ""
        search.prove_infeasible(
            f"no contiguous split{under} fits into memory with the microbatches that this schedule "
            "has in flight; give more memory or more devices, or take another schedule"
        )


def _anneal(run: Run, numbers: list[Sized], until: Stoppable) -> None:
    """Offer what annealing makes of equal parts, and of the best chain so far."""
    best: dict[int, tuple[float, Ints]] = {}
    for seed in range(ANNEALINGS):
        for plans in numbers:
            start = equal_parts(run.line, run.lattice, plans.size)
            if until.should_stop() or start is None or plans.bound >= run.search.objective:
                continue
            if seed % 2 and plans.size in best:
                start = best[plans.size][1]
            for kind in range(len(run.line.kinds)):
                size = plans.size // run.line.problem.chunks_per_device
                if run.line.count[kind] < size:
                    continue
                chain = plans.paths.chain
                found = anneal(run.line, run.lattice, chain, (kind,) * size, start, seed)
                if found is not None and found[0] < best.get(plans.size, (np.inf,))[0]:
                    best[plans.size] = found
                    run.offer_ideals(found[1], (kind,) * plans.size, found[0])


def _branch(run: Run, numbers: list[Sized], raise_bound: Callable[[], None]) -> None:
    """Raise the bound of the number of stages that has the least, step by step.

    A step is halved where branch and bound does not come to its end, and doubled where it does.
    """
    search = run.search
    step = {plans.size: 1.0 for plans in numbers}
    budget = NODES

    while not search.should_stop():
        plans = min(numbers, key=lambda plans: plans.bound)
        part = 1 - max(search.next_gap, SLACK)
        aim = search.objective * part
        if plans.bound >= aim:
            break
        target = aim
        if step[plans.size] < 1:
            target = plans.bound + step[plans.size] * (aim - plans.bound)
        for makespan, found in refute(plans, target, search):
            run.offer(plans.paths, found, makespan)

        out = branch(plans, target, run.taker(plans.paths, part, target), search, budget)
        if out.complete:
            plans.bound = max(plans.bound, out.target)
            step[plans.size] = min(1.0, 2 * step[plans.size])
        else:
            plans.bound = max(plans.bound, min(out.open_bound, out.target))
            step[plans.size] /= 2
            budget = int(budget * GROWTH)
        raise_bound()
