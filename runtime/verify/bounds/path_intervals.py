"""Intervals of a longest path: a proof that no contiguous split is below a target.

*Places.* Let s_0 … s_{L−1} be a path of blocks, each of which waits for the one before. Of block x
let f be the least number with x ≤ s_f, and g the greatest with s_g ≤ x; L and −1 where there is
none. The stage I ∖ I' of a chain of ideals has some interval s_i … s_{j−1} of the path. It holds
every x with i ≤ g and f < j, none with f < i, which is in I', and none with g ≥ j, which is not in
I. So on a device of kind k it takes at least

    load_k(i, j) = Σ { p_{k,x} : i ≤ g_x, f_x < j } + Σ { c_{k,e} : net e has such an x, and has a
                   pin with f < i or a pin with g ≥ j }.

*Stages.* Places 0 … L are nodes of a graph, with an arc from i to j of kind k where load_k(i, j) is
below the target and the bytes fit. Let 0 be the kind of the most devices, n_0 of them, and o count
the devices of the other kinds. The target is proved if no path leads from 0 to L with the devices
that there are, or if devices of kind 0 have more to do than n_0 targets:

    Σ_x p_{0,x} − V + (least Σ c over the arcs of kind 0 of a path)  ≥  n_0 · target

where V is what other devices can take over of Σ p_0, by a fractional knapsack. Times are whole
parts of the target, rounded downwards, so that sums are exact and never too high.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np

from ....instances import Costs, Throughput, Workload, without_links
from ....instances.common.arrays import Floats, Ints
from ....instances.model.contiguity import pipeline_edges
from .bound_check import too_much
from .max_load import ROUNDING, fitting, merged, net_costs, summed
from .stage_chains import PARTS, bytes_in_parts, parts

#: Nodes at most: sums of so many times stay below 2^63.
MOST_NODES = 1 << 18


@dataclass(frozen=True, eq=False)
class _Places:
    """Places of blocks and nets along the path; B blocks, E nets, P pins of them."""

    path: Ints  # (L,) its blocks
    # (B,) and (P,): blocks and pins by f, with f and g of each
    block: Ints
    block_f: Ints
    block_g: Ints
    net: Ints
    net_f: Ints
    net_g: Ints
    # (E,): least f and greatest g of each net's blocks
    first: Ints
    last: Ints

    def window(self, of: Ints, begin: int, end: int) -> slice:
        """Return which of the sorted numbers f are at least `begin` and below `end`."""
        low, high = np.searchsorted(of, [begin, end])
        return slice(int(low), int(high))


def no_intervals_below(
    workload: Workload, costs: Costs, problem: Throughput, target: float
) -> bool:
    """Prove that every contiguous split has an objective of `target` or more; False if not.

    Links between devices are left out, which makes no split dearer. O(L P) for a path of L blocks
    and P pairs of a net and its block; VerificationError if there are too many nodes.
    """
    if problem.overlap:
        return False
    if workload.n > MOST_NODES:
        raise too_much(f"there are more than {MOST_NODES} nodes")
    costs = without_links(costs, returning=False)
    used = np.flatnonzero(costs.count)
    order = np.argsort(-costs.count[used], kind="stable")
    block = merged(workload, pipeline_edges(workload))
    time = summed(block, parts(costs.compute[used], target)[order])
    memory = summed(block, bytes_in_parts(workload.memory_bytes, costs)[order])
    nets = net_costs(block, workload.successors, parts(costs.transfer[used], target)[order])
    weight = np.array([*nets.values()], np.int64).reshape(len(nets), len(used)).T
    places = _places(workload, block, np.minimum(time[0], PARTS), list(nets))
    return _refuted(places, (time, memory, weight), costs.count[used][order])


def _places(workload: Workload, block: Ints, work: Ints, nets: list[tuple[int, ...]]) -> _Places:
    """Return where all blocks and nets lie along the path of the most work."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(work)))
    pairs = ((int(block[u]), int(block[v])) for u, v in pipeline_edges(workload))
    order.add_edges_from((u, v, {"work": int(work[u])}) for u, v in pairs if u != v)
    path = np.array(nx.dag_longest_path(order, weight="work"), np.int64)
    f, g = np.full(len(work), len(path)), np.full(len(work), -1)
    f[path] = g[path] = np.arange(len(path))
    topological = list(nx.topological_sort(order))
    for u in topological:
        for v in order.successors(u):
            g[v] = max(g[v], g[u])
    for v in reversed(topological):
        for u in order.predecessors(v):
            f[u] = min(f[u], f[v])
    pins = np.array([b for net in nets for b in net], np.int64)
    of = np.repeat(np.arange(len(nets)), [len(net) for net in nets])
    first, last = np.full(len(nets), len(path)), np.full(len(nets), -1)
    np.minimum.at(first, of, f[pins])
    np.maximum.at(last, of, g[pins])
    by_f, pins_by_f = np.argsort(f, kind="stable"), np.argsort(f[pins], kind="stable")
    return _Places(
        path, by_f, f[by_f], g[by_f],
        of[pins_by_f], f[pins][pins_by_f], g[pins][pins_by_f], first, last,
    )  # fmt: skip


def _refuted(places: _Places, costs: tuple[Ints, Ints, Ints], count: Ints) -> bool:
    """Return whether no stages below the target make up the path, or do all the work."""
    time, memory, weight = costs
    length, many, others = len(places.path), int(count[0]), int(count[1:].sum())
    fewest = np.full((others + 1, length + 1), many + 1)  # devices of kind 0, by o and place
    least = np.full((others + 1, length + 1), np.inf)  # what their stages pay for nets
    fewest[0, 0], least[0, 0] = 0, 0.0
    for i in range(length):
        for k in range(len(count)):
            reached = np.flatnonzero(fewest[:, i] < many + (k > 0))
            if k > 0:
                reached = reached[reached < others]
            if not len(reached):
                continue
            ends, paid = _stages(places, i, time[k], memory[k], weight[k])
            for o in reached.tolist():
                then, more = (o, 1) if k == 0 else (o + 1, 0)
                fewest[then, ends] = np.minimum(fewest[then, ends], fewest[o, i] + more)
                least[then, ends] = np.minimum(least[then, ends], least[o, i] + paid * more)
    if fewest[:, -1].min() > many:
        return True
    value, room = time[0].astype(np.float64), float(PARTS)
    taken = sum(
        int(n) * fitting(value, np.where(own < PARTS, own, np.inf), room)
        for n, own in zip(count[1:], time[1:].astype(np.float64), strict=True)
    )
    total = float(value.sum()) * (1 - ROUNDING) - taken
    return total + float(least[:, -1].min()) * (1 - ROUNDING) >= many * room


def _stages(places: _Places, i: int, time: Ints, memory: Ints, weight: Ints) -> tuple[Ints, Floats]:
    """Return the ends j of stages from i below the target, and what each pays for nets."""
    along = np.cumsum(time[places.path[i:]])
    end = i + int(np.searchsorted(along, PARTS)) + 1  # no stage ends there or later
    end = min(end, len(places.path) + 1)
    inner = places.window(places.block_f, i, end)
    held = places.block_g[inner] >= i
    at, block = places.block_f[inner][held] - i + 1, places.block[inner][held]
    load, used = np.zeros((2, end - i + 1), np.int64)
    np.add.at(load, at, time[block])
    np.add.at(used, at, memory[block])
    inner = places.window(places.net_f, i, end)
    held = places.net_g[inner] >= i
    at, net = places.net_f[inner][held] - i + 1, places.net[inner][held]
    pin = np.zeros(len(places.first), np.int64)
    pin[net[::-1]] = np.arange(len(net))[::-1]  # the one of the least f is written last
    at, net = at[pin[net] == np.arange(len(net))], net[pin[net] == np.arange(len(net))]
    paid = np.zeros(end - i + 1, np.int64)
    np.add.at(paid, at, weight[net])
    inside = places.first[net] >= i
    over = np.clip(places.last[net] - i + 1, at, end - i)[inside]
    np.add.at(paid, over, -weight[net][inside])
    load, used, paid = np.cumsum(load), np.cumsum(used), np.cumsum(paid)
    fits = (load + paid < PARTS) & (used <= PARTS // 2)
    fits[[0, -1]] = False
    ends = np.flatnonzero(fits)
    return ends + i, paid[ends].astype(np.float64)
