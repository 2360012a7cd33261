"""A plan cut into stages: convex pieces of the graph, with times, data and devices.

A device's nodes need not be convex: work may leave a device and come back. They are cut into
pieces that can be executed one after the other, forward and backward apart. A *stage* is a forward
piece with the backward piece that undoes it; either may be missing.

Data moves directly to the pieces that need it, or it is relayed: the stages form a chain, and each
exchanges data with its neighbours only. That is how `torch.distributed.pipelining` runs a plan:
every piece passes on its *live set*, all outputs of itself and of pieces before it that a later one
needs; gradients return the same way. A value crosses every boundary between the piece that makes it
and the last one (backward: the first one) that needs it, and where two neighbours are on different
devices, both pay for it. A piece that only passes data on takes part in both passes. A plan for
relayed data (`Throughput.relayed`) gives the order of its devices; otherwise the pieces are in an
order in which they can be executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...instances import (
    Cluster,
    Costs,
    InputError,
    PipelinePlacement,
    Placement,
    Plan,
    ReplicaPlacement,
    Workload,
    is_iteration,
    price,
)
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.model.contiguity import representatives
from ...instances.model.workload import kept_bytes
from .stages import BACKWARD, FORWARD, StageGraph, edges_of, line_of

#: Nodes of a stage's forward and backward pass.
Passes = tuple[tuple[int, ...], tuple[int, ...]]


def cut(workload: Workload, cluster: Cluster, device: Sequence[int]) -> StageGraph:
    """Return the stages of a placement, one per convex piece.

    A contiguous placement gives one stage per device in use. Activations are
    `extra["activation_bytes"]`, else the outputs of the forward nodes where their bytes are known,
    else nothing; the rest of a node's memory is resident (`kept_bytes`). A backward piece
    waits for the forward piece that it undoes, even where the graph has no such edge, as in the
    published layer graphs. O(n + m) in the nodes and edges; InputError if a backward node feeds a
    forward node, or a node is on a device that does not support it.
    """
    stages, rank = convex_stages(workload, device)
    present = np.array([[bool(nodes) for nodes in passes] for passes in stages])
    return price_stages(workload, cluster, device, stages, present, rank)


def convex_stages(workload: Workload, device: Sequence[int]) -> tuple[list[Passes], Ints]:
    """Return the nodes of each stage's passes, and a topological position of each task.

    InputError if a backward node feeds a forward node.
    """
    backward = workload.backward.tolist()
    for u, v in workload.edges.tolist():
        if backward[u] and not backward[v]:
            raise InputError(
                f"{workload.name}: edge {workload.ids[u]} → {workload.ids[v]} leads from a "
                "backward node to a forward node; such a graph cannot be run in two passes"
            )
    forward_pieces = forward_pieces_of(workload, device)
    group = _backward_groups(workload, forward_pieces, device)
    backward_pieces = _pieces(workload, sorted(group), group)

    stages: list[Passes] = [(piece, ()) for piece in forward_pieces]
    rank_backward = dict.fromkeys(range(len(stages)), len(backward_pieces))
    for position, piece in reversed(list(enumerate(backward_pieces))):
        stage = group[piece[0]]
        if stage >= len(forward_pieces) or stages[stage][BACKWARD]:
            stage = len(stages)  # only the last backward piece of a group has a forward piece
            stages.append(((), ()))
        stages[stage] = stages[stage][FORWARD], piece
        rank_backward[stage] = position
    rank = np.zeros(2 * len(stages), dtype=np.int64)
    for stage in range(len(stages)):
        rank[2 * stage] = stage
        rank[2 * stage + 1] = len(stages) + rank_backward[stage]
    return stages, rank


def forward_pieces_of(
    workload: Workload, group: Sequence[int], order: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the convex pieces of the forward pass, in an order in which they can be executed.

    A piece is of one group: a device, or a group of `groups_of`. An `order` of the groups, of one
    piece each, replaces the order in which pieces are found. O(n + m) in the nodes and edges.
    """
    pieces = _pieces(workload, np.flatnonzero(~workload.backward).tolist(), group)
    if order:
        pieces.sort(key=lambda piece: list(order).index(group[piece[0]]))
    return pieces


def groups_of(plan: Plan) -> tuple[list[int], tuple[int, ...]]:
    """Return the group of each node by which pieces are cut, and the order of groups in the plan.

    The group is the node's stage in a chain of stages of an iteration or mapping, else its device;
    the order is of groups of one piece each, () if the plan has none. InputError if it is not one
    of the devices in use.
    """
    if isinstance(plan.solution, ReplicaPlacement):
        return plan.solution.stage.tolist(), tuple(range(len(plan.solution.slots)))
    chain = is_iteration(plan.problem) and plan.problem.split == "contiguous"
    if isinstance(plan.solution, PipelinePlacement) and chain:
        return plan.solution.stage.tolist(), tuple(range(len(plan.solution.devices)))
    device = plan.placement.tolist()
    order = plan.solution.order if isinstance(plan.solution, Placement) else ()
    if order and sorted(order) != sorted(set(device)):
        raise InputError("plan: the order of its stages does not name each device in use once")
    return device, order


def weight_share_of(plan: Plan) -> float:
    """Return the share of a backward pass that computes gradients of weights, as planned."""
    return plan.problem.weight_share if is_iteration(plan.problem) else 0.5


def _pieces(
    workload: Workload, nodes: Sequence[int], group: Sequence[int] | Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Cut `nodes` into pieces of one group each, in an order in which they can be executed.

    The next piece is of a group that can finish, else of the one with most nodes ready. Groups
    whose quotient graph is acyclic give one piece each.
    """
    inside = set(nodes)
    waits = {v: sum(u in inside for u in workload.predecessors[v]) for v in nodes}
    left: dict[int, int] = {}
    ready: dict[int, list[int]] = {}
    for v in nodes:
        left[group[v]] = left.get(group[v], 0) + 1
        ready.setdefault(group[v], [])

    def arrive(start: int) -> None:
        stack = [start]
        while stack:
            u = stack.pop()
            ready[group[u]].append(u)
            for w in workload.successors[u]:
                if w in inside and group[w] == group[u]:
                    waits[w] -= 1
                    if not waits[w]:
                        stack.append(w)

    for v in nodes:
        if not any(u in inside for u in workload.predecessors[v]):
            arrive(v)
    pieces = []
    while left:
        finishing = [g for g in left if len(ready[g]) == left[g]]
        chosen = finishing[0] if finishing else max(left, key=lambda g: (len(ready[g]), -g))
        piece, ready[chosen] = ready[chosen], []
        left[chosen] -= len(piece)
        if not left[chosen]:
            del left[chosen]
        for u in piece:
            for w in workload.successors[u]:
                if w in inside and group[w] != chosen:
                    waits[w] -= 1
                    if not waits[w]:
                        arrive(w)
        pieces.append(tuple(sorted(piece)))
    return pieces


def _backward_groups(
    workload: Workload, forward_pieces: list[tuple[int, ...]], where: Sequence[int]
) -> dict[int, int]:
    """Return for each backward node the forward piece that it undoes.

    Backward nodes without one go to the last piece on their device; if there is none, to a group of
    their own, numbered beyond the pieces.
    """
    piece_of = {v: p for p, piece in enumerate(forward_pieces) for v in piece}
    last = {where[piece[0]]: p for p, piece in enumerate(forward_pieces)}
    stands_for = representatives(workload).tolist()
    group = {}
    for v in np.flatnonzero(workload.backward).tolist():
        own = piece_of.get(stands_for[v])
        if own is None or where[forward_pieces[own][0]] != where[v]:
            own = last.get(where[v], len(forward_pieces) + where[v])
        group[v] = own
    return group


def price_stages(
    workload: Workload,
    cluster: Cluster,
    device: Sequence[int],
    stages: Sequence[Passes],
    present: Bools,
    rank: Ints,
    waits: Iterable[tuple[int, int]] = (),
) -> StageGraph:
    """Return the stages of a placement whose data moves directly to the stages that need it.

    `present`, (P, 2), says whether the stage has the pass; `rank`, (2P,), is a topological position
    of each task; `waits` are pairs of tasks of which the second waits for the first even without
    data.
    """
    costs = price(workload, cluster)
    task_of = np.zeros(workload.n, dtype=np.int64)
    for s, passes in enumerate(stages):
        for side, nodes in enumerate(passes):
            task_of[list(nodes)] = 2 * s + side
    receive, send = (np.zeros((len(stages), 2)) for _ in range(2))
    out_bytes = workload.output_bytes
    moved: dict[tuple[int, int], float] = dict.fromkeys(waits, 0.0)
    for u, successors in enumerate(workload.successors):
        own = int(task_of[u])
        users: dict[int, set[int]] = {}
        for v in successors:
            users.setdefault(device[v], set()).add(int(task_of[v]))
        for d, tasks in users.items():
            first, *others = sorted(tasks, key=lambda t: int(rank[t]))
            if d == device[u]:
                for t in tasks - {own}:
                    moved.setdefault((own, t), 0.0)
                continue
            receive[first // 2, first % 2] += costs.received(u, device[u], d)
            size = 0.0 if out_bytes is None else float(out_bytes[u])
            moved[own, first] = moved.get((own, first), 0.0) + size
            for t in others:
                moved.setdefault((first, t), 0.0)
        send[own // 2, own % 2] += costs.sent(u, device[u], users.keys() - {device[u]})
    for s in np.flatnonzero(present.all(axis=1)).tolist():
        moved.setdefault((2 * s, 2 * s + 1), 0.0)  # its own forward pass, even without an edge
    graph = PassGraph(stages, present, rank, receive, send, moved)
    return stage_graph(workload, cluster, costs, device, graph)


@dataclass(frozen=True, eq=False)
class PassGraph:
    """Forward and backward passes of P stages, and the data between them."""

    stages: Sequence[Passes]  # nodes of each stage's passes
    present: Bools  # (P, 2): whether the stage has the pass
    rank: Ints  # (2P,): a topological position of each pass (2 · stage + side)
    receive: Floats  # receive, send: (P, 2): time of each pass for transfers in and out
    send: Floats
    bytes: Mapping[tuple[int, int], float]  # along each edge between passes


def stage_graph(
    workload: Workload,
    cluster: Cluster,
    costs: Costs,
    device: Sequence[int],
    passes: PassGraph,
) -> StageGraph:
    """Return the stages of a placement with compute and memory, given their passes.

    InputError if a stage has no node, or a node is on a device that does not support it.
    """
    stages = passes.stages
    everything = [[*a, *b] for a, b in stages]
    if not all(everything):
        raise InputError("plan: a stage has no node; verify the plan")
    own = [int(device[nodes[0]]) for nodes in everything]
    compute = np.zeros((len(stages), 2))
    for s, both in enumerate(stages):
        for side, nodes in enumerate(both):
            compute[s, side] = costs.compute[costs.kind_of[own[s]], list(nodes)].sum()
    if not np.isfinite(compute).all():
        raise InputError("plan: a node is on a device that does not support it; verify the plan")
    edges, payload_bytes = edges_of(passes.bytes)
    weight, resident, activation = kept_bytes(workload)
    return StageGraph(
        devices=tuple(d.name for d in cluster.devices),
        replicas=tuple((d,) for d in own),
        compute=compute,
        present=passes.present,
        receive=passes.receive,
        send=passes.send,
        edges=edges,
        payload_bytes=payload_bytes,
        rank=passes.rank,
        weight_bytes=np.array([weight[nodes].sum() for nodes in everything]),
        activation_bytes=np.array([activation[list(a)].sum() for a, _ in stages]),
        resident_bytes=np.array([resident[nodes].sum() for nodes in everything]),
        nodes=tuple(stages),
        capacity_bytes=costs.capacity_bytes[costs.kind_of],
        time_unit=workload.time_unit,
    )


def cut_relayed(workload: Workload, plan: Plan) -> StageGraph:
    """Return the stages of a placement as a chain with relayed data.

    InputError if data would have to go against the chain. O(n + m + values · stages).
    """
    device = plan.placement.tolist()
    passes, rank = convex_stages(workload, device)
    _, order = groups_of(plan)
    stages = _by_device(workload, device, order) if order else _in_line(workload, passes, rank)
    return relay_line(workload, plan.cluster, device, stages)


def relay_line(
    workload: Workload,
    cluster: Cluster,
    device: Sequence[int],
    stages: list[Passes],
) -> StageGraph:
    """Return a chain of stages that exchange data with their neighbours only.

    InputError if data would have to go against the chain.
    """
    count = len(stages)
    costs = price(workload, cluster)
    own_device = [device[(a or b)[0]] for a, b in stages]
    place = np.zeros(workload.n, np.int64)
    for s, both in enumerate(stages):
        place[[*both[FORWARD], *both[BACKWARD]]] = s
    check_chain(workload, place, "relayed: simulate without")
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
    return stage_graph(workload, cluster, costs, device, graph)


def _by_device(workload: Workload, device: Sequence[int], order: tuple[int, ...]) -> list[Passes]:
    """Return a stage per device, in the order of the plan."""
    nodes: dict[int, tuple[list[int], list[int]]] = {d: ([], []) for d in order}
    for v, d in enumerate(device):
        nodes[d][int(workload.backward[v])].append(v)
    return [(tuple(a), tuple(b)) for a, b in nodes.values()]


def _in_line(workload: Workload, stages: list[Passes], rank: Ints) -> list[Passes]:
    """Return the stages in an order that is that of forward, and the reverse of backward passes."""
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


def check_chain(workload: Workload, stage: Ints, remedy: str) -> None:
    """Refuse a chain, by the stage of each node, in which a node needs one of a later stage."""
    u, v = workload.edges.T
    back = workload.backward
    later = np.where(back[u], stage[u] < stage[v], stage[u] > stage[v]) & (back[u] == back[v])
    if later.any():
        k = int(later.argmax())
        raise InputError(
            f"plan: node {workload.ids[v[k]]} needs node {workload.ids[u[k]]}, whose piece comes "
            f"later in the chain of stages; {remedy}"
        )
