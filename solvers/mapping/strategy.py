"""Mapping stages × replicas to a topology, with a bound, within a time limit."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import ReplicaPlacement, Solution
from ..core.search import OPTIMAL_GAP, Search
from .annealing.descents import descents
from .annealing.targets import anneal, first_arms
from .exact.exact import MAX_DEVICES, exact
from .hunt import Hunt
from .programs.messages import messages_first
from .programs.rings import rings_first


def auto(task: Task, search: Search[Solution]) -> None:
    """Partition the workload into stages and map them: layouts, bound, then programs or annealing.

    The partition is that of `balanced_partition`, with messages priced at the bandwidth of the
    fastest link where the mode counts them, or that of the plan to start from. The bound is for
    the mapping of these stages: another partition may have a better one.
    """
    hunt = Hunt(task, search)
    with hunt.step("layouts"):
        hunt.layouts()
        hunt.bound_stages()
    if not isinstance(search.best, ReplicaPlacement) or search.should_stop():
        return
    if hunt.costs.size > MAX_DEVICES:
        with hunt.step("rings"):
            rings_first(hunt)
    arms = first_arms(hunt)
    if hunt.costs.size > 2 * MAX_DEVICES:
        with hunt.step("annealing"):
            anneal(hunt, arms, rounds=2)
    hunt.bound_thresholds()
    if hunt.costs.size > MAX_DEVICES:
        with hunt.step("messages"):
            messages_first(hunt)
    if hunt.costs.size <= MAX_DEVICES and search.gap > OPTIMAL_GAP:
        with hunt.step("annealing"):
            anneal(hunt, arms, rounds=8)
        with hunt.step("exact"):
            _exact(hunt)
    if hunt.rings_only:
        with hunt.step("annealing"):
            anneal(hunt, arms)
    else:
        descents(hunt, arms)


def layouts_only(task: Task, search: Search[Solution]) -> None:
    """Partition the workload into stages and take the best construction; bound as in `auto`."""
    hunt = Hunt(task, search)
    hunt.layouts()
    hunt.bound_stages()
    hunt.bound_thresholds()


def _exact(hunt: Hunt) -> None:
    """Search to the end over sets of devices."""
    search = hunt.search
    with search.phase("exact"):
        bound, found, finished = exact(
            hunt.costs, hunt.least, hunt.bound_s, hunt.objective_s, search
        )
        for mapping in found:
            hunt.offer(*mapping)
        if finished and hunt.rings_only:
            bound = hunt.objective_s
        hunt.raise_bound(bound, "all sets of devices")
