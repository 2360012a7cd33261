"""Mapping for the least busiest link: constructions, bounds, annealing on all links at once."""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import Floors, floors, threshold_bound
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.links import (
    LinkTraffic,
    device_bound,
    link_traffic,
    route_costs,
)
from ...formulations.task import Task
from ...instances import ReplicaPlacement, Solution
from ..core.search import OPTIMAL_GAP, Search
from .hunt import Hunt
from .links_kernel import descend
from .programs.blocks import BlockTest

#: Steps between two looks at the clock, and slices from hot to cold.
SLICE, SLICES = 30_000, 8
#: Seconds for the program of islands, at most; and never more than 0.3 of what is left.
ISLAND_SECONDS = 20.0


def busiest_link(task: Task, search: Search[Solution], *, anneal: bool = True) -> None:
    """Partition the workload into stages and map them so that the busiest link carries least.

    The partition and what the bound holds for are those of `strategy.auto`.
    """
    hunt = Hunt(task, search)
    with hunt.step("layouts"):
        hunt.layouts()
    if search.should_stop():
        return
    with search.phase("routes"):
        traffic = link_traffic(hunt.stages, hunt.problem)
    with search.phase("bound"):
        _bound(hunt, traffic)
    if anneal:
        with search.phase("annealing"), hunt.step("annealing"):
            _anneal(hunt, traffic)


def _bound(hunt: Hunt, traffic: LinkTraffic) -> None:
    search = hunt.search
    hunt.raise_bound(device_bound(hunt.problem, traffic), "links of each device")
    for rings in (False, True):
        if search.should_stop():
            return
        costs = route_costs(hunt.costs, traffic, rings=rings)
        if not (costs.ring.any() if rings else costs.boundary.any()):
            continue
        least = floors(costs, search.should_stop)
        alone = float((least.transfer + least.allreduce).max())
        hunt.raise_bound(alone, "narrowest links of routes")
        if search.should_stop():
            return
        bound = threshold_bound(
            costs, least, hunt.objective_s, search.should_stop, lower=hunt.bound_s
        )
        hunt.raise_bound(bound, "narrowest links of routes")
        _count(hunt, costs, least)
    topology = hunt.problem.topology
    names = np.unique(topology.island[topology.usable])
    if len(names) < 2 or search.should_stop() or search.gap <= OPTIMAL_GAP:
        return
    from .islands import bound_by_islands  # with Pyomo, which takes a second to import

    seconds = min(ISLAND_SECONDS, 0.3 * search.seconds_left)
    bound_by_islands(hunt, traffic, names, seconds)


def _count(hunt: Hunt, costs: MappingCosts, least: Floors) -> None:
    """Raise the bound by counts of devices per island."""
    search = hunt.search
    names, block = np.unique(costs.island, return_inverse=True)
    if len(names) < 2 or search.should_stop() or search.gap <= OPTIMAL_GAP:
        return
    until = search.seconds + min(ISLAND_SECONDS, 0.2 * search.seconds_left)

    def enough() -> bool:
        return search.seconds > until or search.should_stop()

    bound = threshold_bound(
        costs, least, hunt.objective_s, enough, BlockTest(search, block), hunt.bound_s, width=1e-4
    )
    hunt.raise_bound(bound, "narrowest links of routes, counts per island (HiGHS)")


def _anneal(hunt: Hunt, traffic: LinkTraffic) -> None:
    search, problem = hunt.search, hunt.problem
    best = search.best
    if not isinstance(best, ReplicaPlacement):
        return
    usable = problem.topology.usable
    sends_to = np.zeros(best.slots.shape, np.int64)
    turn = 0
    while not search.should_stop() and search.gap > OPTIMAL_GAP:
        if search.limits.nodes is not None and turn >= search.limits.nodes:
            search.stop_for("nodes")
            return
        assert isinstance(search.best, ReplicaPlacement)
        best = search.best
        slot = np.concatenate([best.slots.ravel(), np.setdiff1d(usable, best.slots)])
        sends_to[:-1] = best.sends_to
        for k in range(SLICES):
            seed = (search.limits.seed * 7919 + turn * SLICES + k) % 2**31
            descend(
                traffic.forward,
                traffic.backward,
                traffic.ring,
                traffic.previous,
                traffic.via,
                traffic.ends,
                1.0 / traffic.bytes_per_s,
                slot,
                sends_to,
                hunt.objective_s,
                SLICE,
                0.5 * (1 - k / SLICES) ** 2 / (1 + turn % 4),
                seed,
            )
            found = slot[: best.slots.size].reshape(best.slots.shape).copy()
            search.offer(ReplicaPlacement(hunt.stage, found, sends_to[:-1].copy()))
            if search.should_stop():
                return
        turn += 1
