"""DeviceMapping stages × replicas to a topology, with a bound, within a time limit."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ..core.search import OPTIMAL_GAP, Search
from .annealing.descents import descents
from .annealing.targets import anneal, start_strategies
from .exact.exact import exact
from .parameters import EARLY_ROUNDS, EXACT_ROUNDS, MAX_EXACT_DEVICES
from .programs.messages import messages_first
from .programs.rings import rings_first
from .search import MappingSearch


def auto(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Partition the workload into stages and map them: layouts, bound, then programs or annealing.

    The partition is that of `balanced_partition`, with messages priced at the bandwidth of the
    fastest link where the mode counts them, or that of the plan to start from. The bound is for
    the mapping of these stages: another partition may have a better one.
    """
    mapping = MappingSearch(task, search)
    with mapping.step("layouts"):
        mapping.layouts()
        mapping.bound_stages()
    if not isinstance(search.best, ReplicaPlacement) or search.should_stop():
        return
    if mapping.costs.size > MAX_EXACT_DEVICES:
        with mapping.step("rings"):
            rings_first(mapping)
    starts = start_strategies(mapping)
    if mapping.costs.size > 2 * MAX_EXACT_DEVICES:
        with mapping.step("annealing"):
            anneal(mapping, starts, rounds=EARLY_ROUNDS)
    mapping.bound_thresholds()
    if mapping.costs.size > MAX_EXACT_DEVICES:
        with mapping.step("messages"):
            messages_first(mapping)
    if mapping.costs.size <= MAX_EXACT_DEVICES and search.gap > OPTIMAL_GAP:
        with mapping.step("annealing"):
            anneal(mapping, starts, rounds=EXACT_ROUNDS)
        with mapping.step("exact"):
            _exact(mapping)
    if mapping.rings_only:
        with mapping.step("annealing"):
            anneal(mapping, starts)
    else:
        descents(mapping, starts)


def layouts_only(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Partition the workload into stages and take the best construction; bound as in `auto`."""
    mapping = MappingSearch(task, search)
    mapping.layouts()
    mapping.bound_stages()
    mapping.bound_thresholds()


def _exact(mapping: MappingSearch) -> None:
    """Search to the end over sets of devices."""
    search = mapping.search
    with search.phase("exact"):
        bound, found, finished = exact(
            mapping.costs, mapping.lower_bounds, mapping.bound_s, mapping.objective_s, search
        )
        for slots, sends_to in found:
            mapping.offer(slots, sends_to)
        if finished and mapping.rings_only:
            bound = mapping.objective_s
        mapping.raise_bound(bound, "all sets of devices")
