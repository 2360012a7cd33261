"""Shardings in pictures: the marks of their timelines, and the graph by property."""

from __future__ import annotations

import networkx as nx

from ...instances import InputError, Plan, Role, Sharding, TensorSharding, Workload, program_of
from ...instances.common.escape import plain
from ...instances.model.sharding.placement import operator_groups
from ..simulate.sharded import ShardedTimeline
from .marks import Bar, Marks
from .style import COLLECTIVES


def sharded_marks(timeline: ShardedTimeline) -> Marks:
    """Return the marks of a sharding: a lane for computing and one for each axis of the mesh.

    For each group of devices that works beside others.
    """
    lanes = ("compute", *(f"axis {d}: {p}" for d, p in enumerate(timeline.mesh)))
    several = timeline.groups > 1
    return Marks(
        lanes=tuple(
            f"group {j} {lane}" if several else lane
            for j in range(timeline.groups)
            for lane in lanes
        ),
        devices=timeline.groups * len(lanes),
        bars=tuple(
            Bar(
                j * len(lanes) + e.axis + 1,
                e.kind if e.kind in COLLECTIVES else "rooted",
                plain(e.name),
                e.start,
                e.end,
                bytes=e.bytes,
            )
            for e in sorted(timeline.events, key=lambda e: (e.axis, e.start))
            for j in (range(timeline.groups) if e.group is None else (e.group,))
        ),
        span=timeline.makespan,
        time_unit=timeline.time_unit,
    )


def graph_by_property(
    workload: Workload, plan: Plan, most: int
) -> tuple[nx.DiGraph[int], list[str]]:
    """Return the graph of a sharding, each node with the number of its property, and their texts.

    Of more than `most` operators those that only look at a tensor are left out, and of more than
    that all but the first ones.
    """
    program, solution = program_of(workload), plan.solution
    assert isinstance(solution, TensorSharding)
    kept = [
        v
        for v, o in enumerate(program.operators)
        if len(program.operators) <= most or not (o.view or o.role is not Role.OPERATOR)
    ][:most]
    if not kept:
        raise InputError(f"plot: {workload.name} has nothing to draw")
    texts: list[str] = []
    assert isinstance(plan.problem, Sharding)
    groups = operator_groups(program, plan.problem.placement)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for v in kept:
        operator = program.operators[v]
        signatures = [operator.signatures[k] for k in solution.signature[v].tolist()]
        how = "x".join(s.text.split("->")[1].split(",")[0] for s in signatures)
        how = how if groups[v] is None else f"{how} on group {groups[v]}"
        if how not in texts:
            texts.append(how)
        name = plain(str(operator.name))
        graph.add_node(
            v,
            label=name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}",
            device=texts.index(how),
            backward=operator.backward,
        )
    inside = set(kept)
    for v in kept:
        waiting = list(program.operators[v].inputs)
        while waiting:
            u = program.maker[waiting.pop()]
            if u in inside:
                graph.add_edge(u, v)
            elif program.operators[u].view:
                waiting += program.operators[u].inputs
    return graph, texts
