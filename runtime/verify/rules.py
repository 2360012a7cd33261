"""Rules that hold for every problem: support, colours, memory, and the user's placement rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...instances import (
    Cluster,
    Costs,
    DeviceMapping,
    PipelinePlacement,
    PlacementRules,
    Problem,
    Sharding,
    Solution,
    StagePlacement,
    Workload,
)
from ...instances.common.arrays import Floats
from ...instances.common.units import show_bytes
from ...instances.model.placement_rules import places
from ...instances.model.problem import names_stages
from .report import DeviceReport, StageReport

#: Rounding allowance of sums of sizes: a share of the memory, but less than a byte below 2^53
#: bytes, where sums of whole bytes are exact.
RELATIVE_SLACK, MOST_SLACK, EXACT = 1e-9, 0.5, 2.0**53


def usable_bytes(memory_bytes: float) -> float:
    """Return the bytes that a device of this memory may hold, rounding allowed for.

    Examples
    --------
    >>> usable_bytes(3.0), usable_bytes(12e9), usable_bytes(math.inf)
    (3.000000003, 12000000000.5, inf)
    """
    slack = RELATIVE_SLACK * memory_bytes
    return memory_bytes + (min(slack, MOST_SLACK) if memory_bytes < EXACT else slack)


def usable_bytes_each(memory_bytes: Floats) -> Floats:
    """Return `usable_bytes` of each of several memories."""
    return np.array([usable_bytes(one) for one in memory_bytes.tolist()])


def unsupported(workload: Workload, cluster: Cluster, costs: Costs, where: list[int]) -> list[str]:
    """Return messages on nodes whose device, in `where`, does not support them."""
    return [
        f"node {workload.ids[v]} is on {cluster.devices[d].name}, which does not support it"
        for v, d in enumerate(where)
        if math.isinf(costs.compute[costs.kind_of[d], v])
    ]


def divided_colours(workload: Workload, places: Sequence[str]) -> list[str]:
    """Return messages on colours whose nodes are in several places, by the place of each node."""
    torn = []
    for colour, members in enumerate(workload.colour_classes):
        used = dict.fromkeys(places[v] for v in members)
        if len(used) > 1:
            names = ", ".join(used)
            torn.append(f"colour {workload.colour_labels[colour]} is spread over {names}")
    return torn


def over_memory(devices: Sequence[DeviceReport | StageReport]) -> list[str]:
    """Return messages on devices, or devices of stages, that need more memory than they have."""
    return [
        f"{d.name} holds {show_bytes(d.memory_bytes)}, "
        f"{show_bytes(d.memory_bytes - d.capacity_bytes)} more than its "
        f"{show_bytes(d.capacity_bytes)}"
        for d in devices
        if d.memory_bytes > usable_bytes(d.capacity_bytes)
    ]


def broken_rules(
    workload: Workload, cluster: Cluster, problem: Problem, solution: Solution
) -> list[str]:
    """Return the violated placement rules of a problem, a line for each.

    Independent of the solvers' own reading of the rules on purpose.
    """
    if isinstance(problem, DeviceMapping | Sharding) or not problem.placement_rules:
        return []
    place = places(cluster, pools=problem.name == "latency").tolist()
    where = [place[d] for d in solution.device.tolist()]  # places that nodes apart must not share
    number, count = where, cluster.size  # places that pins name, and nodes together share
    used, things = len(set(where)), "devices"
    if isinstance(solution, StagePlacement):
        number = [0] * workload.n
        for i, stage in enumerate(solution.stages):
            for v in stage.nodes:
                number[v] = i
        where, count = number, len(solution.stages)
    elif isinstance(solution, PipelinePlacement) and names_stages(problem):
        number, count = solution.stage.tolist(), len(solution.devices)
    if names_stages(problem):
        used, things = count, "stages"
    rules, ids = problem.placement_rules, workload.ids
    numbered, joined, separated = _resolved(rules, workload)
    broken = []
    for rule, nodes, wanted in numbered:
        to = wanted + count if wanted < 0 else wanted
        to = place[to] if things == "devices" and 0 <= to < count else to
        wrong = [v for v in nodes if number[v] != to]
        if wrong:
            broken.append(
                f"{rule}: node {ids[wrong[0]]} is in {things[:-1]} {number[wrong[0]]} of {count}"
            )
    for rule, nodes in joined:
        wrong = [v for v in nodes if number[v] != number[nodes[0]]]
        if wrong:
            broken.append(f"{rule}: nodes {ids[nodes[0]]} and {ids[wrong[0]]} are not together")
    for rule, groups in separated:
        first: dict[int, tuple[int, int]] = {}  # place: group and node that has it
        for g, nodes in enumerate(groups):
            for v in nodes:
                other, u = first.setdefault(where[v], (g, v))
                if other != g:
                    broken.append(f"{rule}: nodes {ids[u]} and {ids[v]} are not apart")
    if rules.max_stages is not None and used > rules.max_stages:
        broken.append(f"{used} {things}, {used - rules.max_stages} more than allowed")
    return broken


@lru_cache(maxsize=4)
def _resolved(
    rules: PlacementRules, workload: Workload
) -> tuple[
    list[tuple[str, list[int], int]],
    list[tuple[str, list[int]]],
    list[tuple[str, list[list[int]]]],
]:
    """Return the nodes of each rule; cached, as a search evaluates many solutions."""
    return (
        list(rules.numbered(workload)),
        list(rules.joined(workload)),
        list(rules.separated(workload)),
    )
