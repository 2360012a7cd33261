"""A placement as stages in one line, each of which talks to its neighbours only.

That is how `torch.distributed.pipelining` runs a plan: every piece hands on its *live set*, all
that it or a piece before it has made and a later one needs; gradients go back the same way. A value
crosses every boundary between the piece that makes it and the last (for what goes back: the first)
that needs it, and where two neighbours are on different devices, both pay for it. A piece that only
passes things on takes part in both passes.

A plan for relayed data (`Throughput.relayed`) names the order of its devices; of others, the pieces
stand in the order in which they can be executed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...instances import Cluster, InputError, Plan, Workload, price
from ...instances.common.arrays import Ints
from .pieces import Passes, PassGraph, convex_stages, groups_of, stage_graph
from .stages import BACKWARD, FORWARD, StageGraph, line_of


def cut_relayed(workload: Workload, plan: Plan, *, weight_share: float = 0.5) -> StageGraph:
    """Return the stages of a placement, in a line.

    InputError if data would have to go against it.

    O(n + m + values · stages).
    """
    device = plan.placement.tolist()
    passes, rank = convex_stages(workload, device)
    _, order = groups_of(plan)
    stages = _by_device(workload, device, order) if order else _in_line(workload, passes, rank)
    return relay_line(workload, plan.cluster, device, stages, weight_share=weight_share)


def relay_line(
    workload: Workload,
    cluster: Cluster,
    device: Sequence[int],
    stages: list[Passes],
    *,
    weight_share: float,
) -> StageGraph:
    """Return a chain of stages that talk to their neighbours only.

    InputError if data would have to go against the line.
    """
    count = len(stages)
    costs = price(workload, cluster)
    own_device = [device[(a or b)[0]] for a, b in stages]
    place = np.zeros(workload.n, np.int64)
    for s, both in enumerate(stages):
        place[[*both[FORWARD], *both[BACKWARD]]] = s
    _check_line(workload, place)
    waits, present, rank = line_of(count, bool(workload.backward.any()))
    receive, send = np.zeros((count, 2)), np.zeros((count, 2))
    moved = dict.fromkeys(waits, 0.0)
    for u, successors in enumerate(workload.successors):
        own = int(place[u])
        users = [int(place[v]) for v in successors]
        up = [(b, b + 1, FORWARD) for b in range(own, max([own, *users]))]
        down = [(b, b - 1, BACKWARD) for b in range(own, min([own, *users]), -1)]
        for a, b, side in up + down:
            source, target = own_device[a], own_device[b]
            if source == target:
                continue
            send[a, side] += costs.sent(u, source, (target,))
            receive[b, side] += costs.received(u, source, target)
            if workload.output_bytes is not None:
                moved[2 * a + side, 2 * b + side] += float(workload.output_bytes[u])
    graph = PassGraph(stages, present, rank, receive, send, moved)
    return stage_graph(workload, cluster, costs, device, graph, weight_share)


def _by_device(workload: Workload, device: Sequence[int], order: tuple[int, ...]) -> list[Passes]:
    """Return a stage per device, in the order that the plan names."""
    nodes: dict[int, tuple[list[int], list[int]]] = {d: ([], []) for d in order}
    for v, d in enumerate(device):
        nodes[d][int(workload.backward[v])].append(v)
    return [(tuple(a), tuple(b)) for a, b in nodes.values()]


def _in_line(workload: Workload, stages: list[Passes], rank: Ints) -> list[Passes]:
    """Return the stages so that forward passes go up the line and backward passes down."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(stages)))
    for side, direction in ((FORWARD, 1), (BACKWARD, -1)):
        own = [s for s in range(len(stages)) if stages[s][side]]
        own.sort(key=lambda s: direction * int(rank[2 * s + side]))
        nx.add_path(graph, own)
    try:
        return [stages[s] for s in nx.lexicographical_topological_sort(graph)]
    except nx.NetworkXUnfeasible:
        raise InputError(
            f"relayed: the backward pieces of {workload.name} do not come in the opposite order "
            "of its forward pieces, so no line of stages can pass data on; simulate without"
        ) from None


def _check_line(workload: Workload, place: Ints) -> None:
    for u, v in workload.edges.tolist():
        back = bool(workload.backward[u]), bool(workload.backward[v])
        if (back == (False, False) and place[u] > place[v]) or (
            back == (True, True) and place[u] < place[v]
        ):
            raise InputError(
                f"relayed: node {workload.ids[v]} needs node {workload.ids[u]}, whose piece comes "
                "later in the line of stages; simulate without"
            )
