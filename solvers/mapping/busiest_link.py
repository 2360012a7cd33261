"""Strategy for the objective `busiest-link`: constructions, bounds, annealing of the link loads.

On up to 16 devices an integer program runs before the annealing, and proves optima.
"""

from __future__ import annotations

import numpy as np

from ...formulations.mapping.bound import stage_lower_bounds, threshold_bound
from ...formulations.mapping.busiest_link import (
    LinkTraffic,
    device_bound,
    link_traffic,
    route_costs,
)
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ...instances.common.arrays import Ints
from ..core.milp_driver import IntegerProgram, solve_program
from ..core.search import Search
from .annealing.anneal_kernel import anneal as anneal_state
from .annealing.anneal_kernel import new_state
from .annealing.link_loads_kernel import LinkLoads
from .parameters import (
    ISLAND_SECONDS,
    ISLAND_SHARE,
    LINK_PROGRAM_SHARE,
    LINK_SLICE_STEPS,
    LINK_SLICES,
    MAX_EXACT_DEVICES,
)
from .state import MappingState


def busiest_link(
    task: Task[DeviceMapping], search: Search[Solution], *, anneal: bool = True
) -> None:
    """Partition the workload into stages, and map them so that the busiest link is least busy.

    The partition is that of `auto.stage_times`, and the bound holds for its stages.
    """
    mapping = MappingState(task, search)
    with mapping.step("layouts"):
        mapping.layouts()
    if search.should_stop() or search.best is None:
        return
    with search.phase("routes"):
        traffic = link_traffic(mapping.stages, mapping.problem)
    with search.phase("bound"):
        _bound(mapping, traffic)
    if not anneal:
        return
    few = mapping.costs.size <= MAX_EXACT_DEVICES
    if few and not search.is_over():
        _prove(mapping, traffic)
    with search.phase("annealing"), mapping.step("annealing"):
        _anneal(mapping, traffic)


def _prove(mapping: MappingState, traffic: LinkTraffic) -> None:
    """Solve the integer program of the mapping in a share of the time."""
    # with Pyomo, which takes a second to import
    from .milp import map_by_program

    with mapping.step("milp"):
        seconds = LINK_PROGRAM_SHARE * mapping.search.seconds_left
        map_by_program(mapping, traffic, seconds=seconds)


def _bound(mapping: MappingState, traffic: LinkTraffic) -> None:
    """Raise the bound by the links of devices, the narrowest links of routes, and islands."""
    search = mapping.search
    mapping.raise_bound(device_bound(mapping.problem, traffic), "links of each device")
    for rings in (False, True):
        if search.should_stop():
            return
        costs = route_costs(mapping.costs, traffic, rings=rings)
        if not (costs.ring.any() if rings else costs.boundary.any()):
            continue
        lower_bounds = stage_lower_bounds(costs, search.should_stop)
        alone = float((lower_bounds.transfer + lower_bounds.allreduce).max())
        mapping.raise_bound(alone, "narrowest links of routes")
        if search.should_stop():
            return
        bound = threshold_bound(
            costs, lower_bounds, mapping.objective_s, search.should_stop, lower=mapping.bound_s
        )
        mapping.raise_bound(bound, "narrowest links of routes")
    topology = mapping.problem.topology
    names = np.unique(topology.island[topology.usable])
    if len(names) >= 2 and not search.is_over():
        _bound_by_islands(mapping, traffic, names)


def _bound_by_islands(mapping: MappingState, traffic: LinkTraffic, names: Ints) -> None:
    """Raise the bound by the traffic between the islands `names`, a relaxation."""
    # with Pyomo, which takes a second to import
    from ...formulations.mapping.busiest_link import island_milp
    from ..core.compiled_model import compile_model

    per_s = mapping.program_units_per_s

    def state() -> IntegerProgram[Solution]:
        return IntegerProgram(
            compiled=compile_model(island_milp(mapping.problem, traffic, names, per_s)),
            read=None,
            scale=1 / (per_s * mapping.unit),
            origin="traffic between islands, stages given",
            infeasible="",
        )

    seconds = min(ISLAND_SECONDS, ISLAND_SHARE * mapping.search.seconds_left)
    solve_program(state, mapping.search, seconds=seconds, gap=0.0)


def _anneal(mapping: MappingState, traffic: LinkTraffic) -> None:
    """Anneal from the incumbent until a limit, from four temperatures in turn."""
    search, problem = mapping.search, mapping.problem
    if not isinstance(search.best, ReplicaPlacement):
        return
    usable = problem.topology.usable
    turn = 0
    while not search.is_over():
        if search.out_of_nodes(turn):
            return
        assert isinstance(search.best, ReplicaPlacement)
        state = new_state(usable, search.best.slots, search.best.sends_to)
        for k in range(LINK_SLICES):
            cost = _loads(traffic, mapping.objective_s, problem.replicas)
            seed = (search.limits.seed * 7919 + turn * LINK_SLICES + k) % 2**31
            heat = 0.5 * (1 - k / LINK_SLICES) ** 2 / (1 + turn % 4)
            anneal_state(cost, state, LINK_SLICE_STEPS, seed, heat, heat)
            found = ReplicaPlacement(mapping.stage, state.slots(), state.sends_to[:-1].copy())
            search.offer(found)
            if search.should_stop():
                return
        turn += 1


def _loads(traffic: LinkTraffic, scale: float, replicas: int) -> LinkLoads:
    """Return the loads of the links as a cost for the annealing; `scale` is in seconds."""
    return LinkLoads(
        traffic.forward,
        traffic.backward,
        traffic.ring,
        traffic.previous,
        traffic.via,
        traffic.ends,
        1.0 / traffic.bytes_per_s / scale,
        np.zeros(2 * len(traffic.ends)),
        np.zeros(max(16, replicas + 1), np.int64),
    )
