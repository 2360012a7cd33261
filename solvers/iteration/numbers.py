"""The numbers of stages that plans can have, and first chains of each."""

from __future__ import annotations

import numpy as np

from ...formulations.iteration.chain import Chain
from ...formulations.iteration.line import most_between
from ...formulations.iteration.orders import order_of
from ..core.search import Stoppable
from .annealing.climb import Chains, climb
from .chain_dp import Cheapest
from .run import Run, ideals_of
from .sized import Sized, candidates, durations_of, sized
from .stage_list import StageList, list_stages
from .stage_paths import StagePaths

#: Candidates of a number of stages whose boundaries are moved.
CLIMBS = 2


def numbers_of_stages(run: Run, most: float, *, prove: bool) -> list[Sized] | None:
    """Return the numbers of stages, each with what divisible work says, the best first.

    Stages on one device exchange data for nothing. For a bound, only nets count whose pins cannot
    be as far apart as two stages of a device, and relayed ones if neighbours are on different
    devices; on a single device none does.

    Parameters
    ----------
    most
        Work of a stage.
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
            listed = list_stages(run.line, run.lattice, most, run.search, paid)
            if listed is None:
                return None
            lists[paid.tobytes()] = listed.keep(np.argsort(listed.end, kind="stable"))
        chain = Chain(order, problem.weight_share)
        paths = StagePaths(run.line, lists[paid.tobytes()], chain, run.search)
        found.append(sized(paths, run.search.objective))
        if run.search.should_stop():
            return None
    return sorted(found, key=lambda plans: plans.bound)


def try_candidates(run: Run, plans: Sized, until: Stoppable) -> None:
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


def most_work(run: Run) -> float:
    """Return the work of a stage beyond which no plan is better than the incumbent."""
    return run.search.objective / run.line.problem.batch
