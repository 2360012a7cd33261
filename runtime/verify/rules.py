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

#: Share of a memory that rounding in sums of sizes may need, and the most bytes: whole bytes, whose
#: sums are exact below 2^53, count exactly.
RELATIVE_SLACK, MOST_SLACK, EXACT = 1e-9, 0.5, 2.0**53


def usable_bytes(memory_bytes: float) -> float:
    """Return how many bytes a device may hold whose memory has so many.

    Examples
    --------
    >>> usable_bytes(3.0), usable_bytes(12e9), usable_bytes(math.inf)
    (3.000000003, 12000000000.5, inf)
    """
    slack = RELATIVE_SLACK * memory_bytes
    return memory_bytes + (min(slack, MOST_SLACK) if memory_bytes < EXACT else slack)


def usable_bytes_each(memory_bytes: Floats) -> Floats:
    """Return the same for each of several memories."""
    return np.array([usable_bytes(one) for one in memory_bytes.tolist()])


def unsupported(workload: Workload, cluster: Cluster, costs: Costs, where: list[int]) -> list[str]:
    """Nodes on devices that do not support them; `where` is the device of each node."""
    return [
        f"node {workload.ids[v]} is on {cluster.devices[d].name}, which does not support it"
        for v, d in enumerate(where)
        if math.isinf(costs.compute[costs.kind_of[d], v])
    ]


def divided_colours(workload: Workload, places: Sequence[str]) -> list[str]:
    """Colours whose nodes are in several places; `places` names the place of each node."""
    torn = []
    for colour, members in enumerate(workload.colour_classes):
        used = dict.fromkeys(places[v] for v in members)
        if len(used) > 1:
            names = ", ".join(used)
            torn.append(f"colour {workload.colour_labels[colour]} is spread over {names}")
    return torn


def over_memory(devices: Sequence[DeviceReport | StageReport]) -> list[str]:
    """Devices, or stages on each of their devices, that hold more bytes than they have."""
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

    Written apart from what solvers compute with, on purpose.
    """
    if isinstance(problem, DeviceMapping | Sharding) or not problem.placement_rules:
        return []
    place = places(cluster, pools=problem.name == "latency").tolist()
    where = [place[d] for d in solution.device.tolist()]  # what nodes must not share
    number, count = where, cluster.size  # what pins name, and nodes share
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
    """Return the nodes of each rule; a search asks for them again and again."""
    return (
        list(rules.numbered(workload)),
        list(rules.joined(workload)),
        list(rules.separated(workload)),
    )
