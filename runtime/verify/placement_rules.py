"""Whether a plan keeps the rules that a user gave: pins, together, apart, how many stages."""

from __future__ import annotations

from functools import lru_cache

from ...instances import (
    Cluster,
    DeviceMapping,
    PipelinePlacement,
    PlacementRules,
    Problem,
    Sharding,
    Solution,
    StagePlacement,
    Workload,
)
from ...instances.model.placement_rules import places
from ...instances.model.problem import names_stages


def broken_rules(
    workload: Workload, cluster: Cluster, problem: Problem, solution: Solution
) -> list[str]:
    """Return what a plan breaks of the problem's rules for placements, a line for each.

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
    for said, nodes, wanted in numbered:
        to = wanted + count if wanted < 0 else wanted
        to = place[to] if things == "devices" and 0 <= to < count else to
        wrong = [v for v in nodes if number[v] != to]
        if wrong:
            broken.append(
                f"{said}: node {ids[wrong[0]]} is in {things[:-1]} {number[wrong[0]]} of {count}"
            )
    for said, nodes in joined:
        wrong = [v for v in nodes if number[v] != number[nodes[0]]]
        if wrong:
            broken.append(f"{said}: nodes {ids[nodes[0]]} and {ids[wrong[0]]} are not together")
    for said, groups in separated:
        first: dict[int, tuple[int, int]] = {}  # place: group and node that has it
        for g, nodes in enumerate(groups):
            for v in nodes:
                other, u = first.setdefault(where[v], (g, v))
                if other != g:
                    broken.append(f"{said}: nodes {ids[u]} and {ids[v]} are not apart")
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
