"""Contiguous splits: the exact dynamic program over ideals, and the same over one order."""

from __future__ import annotations

import numpy as np

from ..formulations.ideals import Criterion, Pipeline, pipeline, topological_orders
from ..formulations.infeasible import why_infeasible
from ..formulations.task import Task
from ..instances import Placement, Solution, VerificationError
from ..instances.arrays import Floats, Ints
from .lattice import Lattice, chain, list_ideals
from .search import Search
from .stage_dp import Found, least_maximum

#: Relative distance up to which two objectives are one: rounding of sums.
SAME = 1e-11

MOST_IDEALS = 10_000_000


def ideal_dp(task: Task, search: Search[Solution]) -> None:
    """Find the optimum over contiguous splits; it proves the bound where those are asked for."""
    pipe = pipeline(task)
    if _ruled_out(task, search):
        return
    orders = topological_orders(pipe.graph)
    for order in orders:
        _solve(task, pipe, chain(len(order)), order, search)
    order = orders[0]
    rank = np.argsort(order)
    lattice = list_ideals(len(order), rank[pipe.graph.edges], MOST_IDEALS, search)
    if lattice is None:
        return
    bound = _solve(task, pipe, lattice, order, search)
    if bound is None:
        return
    if not _exact(task):
        search.note("the DP's plan is the best contiguous one; other splits may be better")
    elif np.isinf(bound):
        search.prove_infeasible("no contiguous split fits into the memories")
    else:
        search.raise_bound(bound, "dp over ideals")


def linearised_dp(task: Task, search: Search[Solution]) -> None:
    """Find the best split of one line of units, for each of a few topological orders."""
    pipe = pipeline(task)
    if _ruled_out(task, search):
        return
    for order in topological_orders(pipe.graph):
        _solve(task, pipe, chain(len(order)), order, search)


def _ruled_out(task: Task, search: Search[Solution]) -> bool:
    reason = why_infeasible(task)
    if reason is not None:
        search.prove_infeasible(reason)
    return reason is not None


def _exact(task: Task) -> bool:
    """Whether every plan that is asked for is a chain of ideals."""
    problem, costs = task.problem, task.costs
    cores = bool(costs.count[costs.host].any())
    return problem.split == "contiguous" and (problem.cpu_split == "contiguous" or not cores)


def _solve(
    task: Task, pipe: Pipeline, lattice: Lattice, order: Ints, search: Search[Solution]
) -> float | None:
    """Offer the best plan of a lattice if it beats the incumbent.

    Returns
    -------
    float or None
        The least objective of the lattice's plans, or the incumbent's if that is less; None if
        the search had to stop before.
    """
    if task.problem.pipeline == "gpipe":
        return _solve_gpipe(task, pipe, lattice, order, search)
    floor = search.objective  # first: is there any better plan?
    while True:
        floor = floor if np.isfinite(floor) else 0.0
        limit = {"load": search.objective}
        found = least_maximum(pipe, lattice, order, "load", limit, search, floor)
        if not found.complete:
            return None
        value=_offer(task, pipe, found, search)
        if found.device_of_unit is None or value > floor:
            return min(value, search.objective)
        floor = 0.0


def _solve_gpipe(
    task: Task, pipe: Pipeline, lattice: Lattice, order: Ints, search: Search[Solution]
) -> float | None:
    """Minimise max forward + max backward, by minimising one under a limit on the other, in turn.

    Let every plan better than the incumbent U have max forward ≥ f and max backward ≥ b. Then it
    has max forward < U − b. The least max backward under that limit is a better b (or there is
    no better plan); then the same the other way round. Each turn rules out the plan it has found.
    """
    least: dict[Criterion, float] = {"forward": 0.0, "backward": 0.0}
    best = search.objective
    one: Criterion = "backward"
    other: Criterion = "forward"
    while best > sum(least.values()):
        limits = {one: best - least[other], other: (best - least[one]) * (1 - SAME)}
        found = least_maximum(pipe, lattice, order, one, limits, search, least[one])
        if not found.complete:
            return None
        if found.device_of_unit is None:
            return best
        least[one] = found.value
        _offer(task, pipe, found, search)
        best = search.objective
        one, other = other, one
    return best


def _offer(task: Task, pipe: Pipeline, found: Found, search: Search[Solution]) -> float:
    """Offer the plan found; return its objective, `inf` without plan."""
    if found.device_of_unit is None:
        return np.inf
    placement = _placement(task, pipe, found.device_of_unit)
    search.offer(Placement(placement))
    if search.objective > found.value * (1 + 1e-9) and task.problem.pipeline == "pipedream":
        raise VerificationError("dp: defect")
    return found.value


def _placement(task: Task, pipe: Pipeline, device_of_unit: Ints) -> Ints:
    devices = np.concatenate(
        [np.flatnonzero(task.costs.kind_of == kind) for kind in pipe.kinds.tolist()]
    )
    return pipe.graph.expand(devices[device_of_unit])

