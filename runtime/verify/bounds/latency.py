"""Lower bounds on the latency: work, the critical path, intervals of paths.

1. Without CPUs n accelerators share the work: T ≥ Σ_v p_v / n, p_v the least time of node v.
2. The nodes of a path P run one after the other: T ≥ Σ_{v∈P} p_v.
3. *Intervals of a path.* Let P = v_1 … v_L be a path of blocks. A call meets it in an interval, as
   a block between two of its own would run both before and after it, and the path goes on after
   the call has ended. Let L(a, b) be a lower bound on the load of any call that meets P in v_a …
   v_b, and q_i one on the time from the path's entering block v_i to its leaving it on CPUs. With x
   calls left the rest of the path takes

       D[i][x] ≥ min( q_i + D[i+1][x],  min_{b ≥ i} L(i, b) + D[b+1][x−1] ),   D[L+1][x] = 0,

   and T ≥ D[1][all calls].

   L(a, b) is at first the compute of the blocks on paths from v_a to v_b, all of which are in the
   call, and the transfers along P at its ends. Where the minimum uses an interval, a minimum cut
   takes its place: a call S costs Σ p over S and c_u for each u of which some, not all, of u and
   its readers are in S; the rest of P, all that leads to v_{a−1} and all that v_{b+1} leads to are
   outside.

*Blocks.* With one call per accelerator the nodes of a colour are in one call or all on CPUs. A
colour is one block if each of its entries leads to each of its exits; then contracting it makes no
cycle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from ....instances import Costs, Workload
from ....instances.common.arrays import Bools, Floats, Ints
from ..rules import usable_bytes_each
from .max_load import ROUNDING, Nets, least_cut, nets_of, summed

#: Most blocks for bounds by paths: the table of which leads to which takes their square in bytes.
MOST_BLOCKS = 10_000

#: Paths that are tried, the last by times on CPUs, and the factor of a path's weights for the next.
PATHS, AGAIN = 4, 0.1

#: Minimum cuts for one path.
CUTS = 2_000

#: Relative rounding allowance.
INTERVAL_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class _OrderedBlocks:
    """Blocks in topological order, B of them; K kinds of accelerators."""

    members: list[list[int]]  # nodes of each block, in topological order
    order: nx.DiGraph[int]
    of: Ints  # (n,): block of each node
    leads: Bools  # (B, B): whether a path leads from the first to the second, or they are equal
    compute: Floats  # (K, B)
    # memory, colour: (B,): bytes; the colour of which a block is a part, else −1
    memory: Floats
    colour: Ints
    capacity: Floats  # (K,): bytes of one accelerator
    transfer: Floats  # (K, n)
    cpu: Floats  # (n,): `inf` where there are no CPUs


def latency_bound(workload: Workload, costs: Costs, calls: int, target: float) -> float:
    """Return the best lower bound on the latency, or the first one that reaches the target."""
    there = costs.count > 0
    least = costs.compute[there].min(axis=0, initial=np.inf)
    if not workload.n or np.isinf(least).any():
        return 0.0
    best = _critical_path(workload, least) * (1 - ROUNDING)
    if not (there & costs.host).any():
        work = math.fsum(least.tolist()) / int(costs.count.sum())
        best = max(best, work * (1 - ROUNDING))
    if best < target:
        best = max(best, path_interval_bound(workload, costs, calls, target))
    return best


def _critical_path(workload: Workload, least: Floats) -> float:
    """Return the length of the longest path, by the least time of each node."""
    until = np.zeros(workload.n)
    for v in workload.order:
        until[v] = max((until[u] for u in workload.predecessors[v]), default=0.0) + least[v]
    return float(until.max())


def path_interval_bound(workload: Workload, costs: Costs, calls: int, target: float) -> float:
    """Return the best bound 3 of some paths, or the first one that reaches the target."""
    own = np.flatnonzero((costs.count > 0) & ~costs.host)
    if not len(own):
        return 0.0
    blocks = _blocks(workload, costs, calls == 1)
    if blocks is None:
        return 0.0
    most = min(calls * int(costs.count[own].sum()), len(blocks.members))
    best = 0.0
    for path in _paths(blocks):
        best = max(best, _bound_along(workload, blocks, path, most, target))
        if best >= target:
            break
    return best


def _blocks(workload: Workload, costs: Costs, whole: bool) -> _OrderedBlocks | None:
    """Return the blocks; None if there are too many."""
    leader = np.arange(workload.n)
    for nodes in workload.colour_classes if whole else ():
        if len(nodes) > 1 and _is_contractible(workload, nodes):
            leader[list(nodes)] = min(nodes)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(np.unique(leader).tolist())
    joined = leader[workload.edges].reshape(-1, 2)
    graph.add_edges_from((u, v) for u, v in joined.tolist() if u != v)
    number = {block: i for i, block in enumerate(nx.topological_sort(graph))}
    graph, size = nx.relabel_nodes(graph, number), len(number)
    if size > MOST_BLOCKS:
        return None
    of = np.array([number[block] for block in leader.tolist()])
    members: list[list[int]] = [[] for _ in range(size)]
    for v in workload.order:
        members[of[v]].append(v)
    leads = np.eye(size, dtype=np.bool_)
    for block in range(size - 1, -1, -1):
        for after in graph.successors(block):
            leads[block] |= leads[after]
    own = (costs.count > 0) & ~costs.host
    hosts = (costs.count > 0) & costs.host
    colour: Ints = np.full(size, -1)
    for c, nodes in enumerate(workload.colour_classes):
        if len(set(of[list(nodes)].tolist())) > 1:
            colour[of[list(nodes)]] = c
    return _OrderedBlocks(
        members=members,
        order=graph,
        of=of,
        leads=leads,
        compute=summed(of, costs.compute[own]),
        memory=summed(of, costs.memory_bytes),
        colour=colour,
        capacity=usable_bytes_each(costs.capacity_bytes[own]),
        transfer=np.array(costs.transfer[own]),
        cpu=costs.compute[hosts].min(axis=0, initial=np.inf),
    )


def _is_contractible(workload: Workload, colour: Sequence[int]) -> bool:
    """Return whether each entry of a colour reaches each of its exits."""
    inside = set(colour)
    exits = {v for v in colour if not inside.issuperset(workload.successors[v])}
    for entry in colour:
        if inside.issuperset(workload.predecessors[entry]):
            continue
        seen, todo = {entry}, [entry]
        while todo:
            for v in workload.successors[todo.pop()]:
                if v not in seen:
                    seen.add(v)
                    todo.append(v)
        if not exits <= seen:
            return False
    return True


def _paths(blocks: _OrderedBlocks) -> list[list[int]]:
    """Return heavy paths by compute and transfers, the last by time on CPUs."""
    least = blocks.compute.min(axis=0)
    cpu = summed(blocks.of, np.where(np.isinf(blocks.cpu), 0.0, blocks.cpu))
    moved = summed(blocks.of, blocks.transfer.min(axis=0) / 2)
    weight = np.where(np.isinf(least), cpu, least) + moved
    found: list[list[int]] = []
    for i in range(PATHS):
        if i == PATHS - 1:
            weight = cpu if np.isfinite(blocks.cpu).all() else weight
        path = _heaviest(blocks, weight)
        if path not in found:
            found.append(path)
        weight = weight.copy()
        weight[path] *= AGAIN
    return found


def _heaviest(blocks: _OrderedBlocks, weight: Floats) -> list[int]:
    """Return the heaviest path, from a block without predecessors."""
    # a source before all of those, so that the first block counts
    first = ((-1, b) for b, count in blocks.order.in_degree() if not count)
    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_weighted_edges_from((a, b, weight[b]) for a, b in (*first, *blocks.order.edges))
    return nx.dag_longest_path(edges)[1:]


def _bound_along(
    workload: Workload, blocks: _OrderedBlocks, path: list[int], calls: int, target: float
) -> float:
    """Return D[1][calls] of one path, with minimum cuts for the intervals that attain it."""
    size = len(path)
    cpu = np.array([_passage(workload, blocks, path, i) for i in range(size)])
    load = _weak_loads(workload, blocks, path)
    nets = nets_of(workload, blocks.of, blocks.transfer)
    exact: set[tuple[int, int]] = set()
    while True:
        value, used = _shortest_rest(load, cpu, calls)
        rough = [interval for interval in used if interval not in exact]
        if value * (1 - INTERVAL_ROUNDING) >= target or not rough or len(exact) > CUTS:
            return value * (1 - INTERVAL_ROUNDING)
        for a, b in rough:
            load[a, b] = max(load[a, b], _least_load(blocks, nets, path, a, b))
            exact.add((a, b))


def _shortest_rest(load: Floats, cpu: Floats, calls: int) -> tuple[float, list[tuple[int, int]]]:
    """Return D[1][calls], and the intervals that attain it."""
    size = len(cpu)
    rest = np.zeros((size + 1, calls + 1))
    end = np.full((size, calls + 1), -1)
    for i in range(size - 1, -1, -1):
        rest[i] = cpu[i] + rest[i + 1]
        offers = load[i, i:, None] + rest[i + 1 :, :-1]
        best = offers.argmin(axis=0)
        least = offers[best, np.arange(calls)]
        less = np.flatnonzero(least < rest[i, 1:])
        rest[i, less + 1], end[i, less + 1] = least[less], i + best[less]
    used, i, x = [], 0, calls
    while i < size:
        b = int(end[i, x])
        if b < 0:
            i += 1
        else:
            used.append((i, b))
            i, x = b + 1, x - 1
    return float(rest[0, calls]), used


def _passage(workload: Workload, blocks: _OrderedBlocks, path: list[int], i: int) -> float:
    """Return the least time on CPUs from entering block i of the path to leaving it.

    That is the least over entries and exits of the longest chain between the two.
    """
    nodes = blocks.members[path[i]]
    if len(nodes) == 1:
        return float(blocks.cpu[nodes[0]])
    inside = set(nodes)
    before = path[i - 1] if i else -1
    after = path[i + 1] if i + 1 < len(path) else -1
    fed = {v: workload.predecessors[v] for v in nodes}
    feeds = {v: workload.successors[v] for v in nodes}
    entries = [v for v in nodes if any(blocks.of[u] == before for u in fed[v])]
    exits = [v for v in nodes if any(blocks.of[w] == after for w in feeds[v])]
    entries = entries or [v for v in nodes if inside.isdisjoint(fed[v])]
    exits = exits or [v for v in nodes if inside.isdisjoint(feeds[v])]
    least = np.inf
    for entry in entries:
        ends: dict[int, float] = {}
        for v in nodes:
            ready = [ends[u] for u in fed[v] if u in ends]
            if v == entry or ready:
                ends[v] = max(ready, default=0.0) + float(blocks.cpu[v])
        least = min([least, *(ends[v] for v in exits if v in ends)])
    return least if np.isfinite(least) or np.isinf(blocks.cpu[nodes]).any() else 0.0


def _weak_loads(workload: Workload, blocks: _OrderedBlocks, path: list[int]) -> Floats:
    """Return L(a, b) without cuts, shape (L, L); `inf` where no call is possible."""
    size, kinds = len(path), len(blocks.capacity)
    paid = np.zeros((kinds, size + 1))  # where the path is cut before each block
    for i in range(1, size):
        sources = [
            u
            for u in blocks.members[path[i - 1]]
            if any(blocks.of[v] == path[i] for v in workload.successors[u])
        ]
        paid[:, i] = blocks.transfer[:, sources].sum(axis=1)
    whole = np.zeros(int(blocks.colour.max(initial=-1)) + 2)
    for b in np.flatnonzero(blocks.colour >= 0).tolist():
        whole[blocks.colour[b]] += blocks.memory[b]
    able = np.isfinite(blocks.compute)
    compute = np.where(able, blocks.compute, 0.0)
    load = np.full((size, size), np.inf)
    for a in range(size):
        among = np.flatnonzero(blocks.leads[path[a]])
        inside = blocks.leads[among][:, path[a:]]
        tied = blocks.colour[among]
        coloured = np.zeros((len(whole), size - a), np.bool_)
        np.logical_or.at(coloured, tied[tied >= 0], inside[tied >= 0])
        need = blocks.memory[among[tied < 0]] @ inside[tied < 0] + whole @ coloured
        time = compute[:, among] @ inside + paid[:, a, None] + paid[:, a + 1 :]
        time[(~able[:, among] @ inside) | (need > blocks.capacity[:, None])] = np.inf
        load[a, a:] = time.min(axis=0)
    return load


def _least_load(blocks: _OrderedBlocks, nets: Nets, path: list[int], a: int, b: int) -> float:
    """Return the least load of a call that meets the path in blocks a … b, on the best kind."""
    size = len(blocks.memory)
    inside = blocks.leads[path[a]] & blocks.leads[:, path[b]]
    outside = np.zeros(size, np.bool_)
    outside[[*path[:a], *path[b + 1 :]]] = True
    if a > 0:
        outside |= blocks.leads[:, path[a - 1]]
    if b + 1 < len(path):
        outside |= blocks.leads[path[b + 1]]
    side = np.where(inside, 1, np.where(outside, -1, 0))
    return min(
        least_cut(side, blocks.compute[k], nets.cost[k], nets) for k in range(len(blocks.capacity))
    )
