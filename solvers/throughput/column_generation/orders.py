"""Orders of the units with a small frontier (few open nets), by depth-first search and folding.

For graphs of thousands of units, `narrow_order` takes near-linear time. The size of a frontier
depends on *groups* of open nets: nets of which only the same one unit is placed count as one. The
demand order places a unit when the first that needs it is placed, so that whatever can wait does,
such as the keys of cross-attention. Long skips, as in a U-Net, stay open along the whole order;
folding brings their ends together, by ordering stretches of it by their distance, in nets, from its
beginning.
The frontiers of Reverse Cuthill-McKee orders are folds by distance, too (A. George, J. W. Liu,
"Computer Solution of Large Sparse Positive Definite Systems", 1981).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ....formulations.digraph import demand_order
from ....formulations.throughput.hypergraph import Hypergraph, Incidence
from ....instances.common.arrays import Floats, Ints

#: Units, within 50 %, of a stretch that folding moves as a whole; stretches of twice as many, too.
STRETCH = 16

#: Pins of a net, and nets of a unit, beyond which distances ignore them, as all is near them.
HUB = 16


def greedy_order(shape: Incidence, start: int, noise: Floats) -> tuple[Ints, float]:
    """Return an order of the units and its cost, the sum over layers of 2 ** (open nets).

    The next unit is the one that opens the fewest nets and closes the most; `noise`, shape (U,),
    breaks ties.
    """
    nets = [shape.unit_nets[a:b].tolist() for a, b in pairwise(shape.unit_ptr)]
    pins = [shape.net_pins[a:b] for a, b in pairwise(shape.net_ptr)]
    full = np.diff(shape.net_ptr).tolist()
    left = list(full)
    score = noise + [len(own) - sum(full[e] == 1 for e in own) for own in nets]
    near = score + 1e6  # while nets are open, units of untouched nets come last
    order: list[int] = []
    cost, now_open, v = 0.0, 0, start
    while len(order) < len(nets):
        if order:
            v = int(np.argmin(near if now_open else score))
        order.append(v)
        score[v] = near[v] = np.inf
        for e in nets[v]:
            left[e] -= 1
            opens, lone = left[e] == full[e] - 1, left[e] == 1
            now_open += opens - (left[e] == 0)
            if opens or lone:
                score[pins[e]] -= float(opens) + float(lone)
                near[pins[e]] = score[pins[e]]
        cost += 2.0 ** min(now_open, 1000)
    return np.array(order), cost


def narrow_order(graph: Hypergraph) -> Ints:
    """Return an order of the units, shape (U,), not always topological, with few open groups.

    It is the best of the demand order and its folds, by Σ 2 ** groups over positions.
    """
    nets = _nets_of(graph)
    demand = demand_order(graph.size, graph.edges)
    folds = [
        _folded(graph, nets, demand, size)
        for size in (STRETCH, 2 * STRETCH)
        if graph.size > 2 * size
    ]
    best = min([demand, *folds], key=lambda order: states(groups(graph.pins, nets, order)))
    return np.array(best, np.int64)


def order_width(graph: Hypergraph, order: Ints) -> float:
    """Return Σ 2 ** groups over the positions of an order, as a base-2 logarithm."""
    return states(groups(graph.pins, _nets_of(graph), order.tolist()))


def states(open_groups: Ints) -> float:
    """Return Σ 2 ** groups, as a base-2 logarithm."""
    top = int(open_groups.max(initial=0))
    return top + float(np.log2(np.exp2(open_groups - top).sum()))


def _nets_of(graph: Hypergraph) -> list[list[int]]:
    _, _, ptr, nets = graph.incidence
    return [nets[a:b].tolist() for a, b in pairwise(ptr)]


def groups(
    pins: Sequence[Sequence[int]],
    nets: Sequence[Sequence[int]],
    order: Sequence[int],
) -> Ints:
    """Return the number of groups of nets that are open after each unit of an order, same shape."""
    placed: dict[int, int] = {}  # number of placed pins of each net
    sole: dict[int, int] = {}  # the only one of them
    count: dict[int, int] = {}  # number of nets of which a unit is the only placed pin
    width, found = 0, []
    for v in order:
        for e in nets[v]:
            here = placed[e] = placed.get(e, 0) + 1
            if here == 1:
                sole[e] = v
                count[v] = count.get(v, 0) + 1
                width += count[v] == 1
                continue
            if here == 2:
                count[sole[e]] -= 1
                width += 1 - (count[sole[e]] == 0)
            width -= here == len(pins[e])
        found.append(width)
    return np.array(found, np.int64)


def _folded(graph: Hypergraph, nets: list[list[int]], order: Sequence[int], size: int) -> list[int]:
    """Return the order with its stretches sorted by their distance from the first."""
    stretch = _stretches(groups(graph.pins, nets, order), size)
    of_unit = np.empty(graph.size, np.int64)
    of_unit[list(order)] = stretch
    hub = np.array([len(own) > HUB for own in nets])
    near: list[set[int]] = [set() for _ in range(int(stretch[-1]) + 1)]
    for net in graph.pins:
        ends = set(of_unit[list(net)].tolist())
        if len(net) <= HUB and len(ends) > 1 and not hub[list(net)].any():
            for end in ends:
                near[end] |= ends
    distance = np.full(len(near), -1)
    for begin in range(len(near)):
        if distance[begin] >= 0:
            continue
        distance[begin] = now = distance.max() + 1
        layer = [begin]
        while layer:
            now += 1
            layer = sorted({b for a in layer for b in near[a] if distance[b] < 0})
            distance[layer] = now
    return [order[i] for i in np.argsort(distance[stretch], kind="stable").tolist()]


def _stretches(open_groups: Ints, size: int) -> Ints:
    """Return the stretch of each position: some `size` units, ended where few groups are open."""
    ends = [0]
    while ends[-1] + 3 * size // 2 < len(open_groups):
        first = ends[-1] + size // 2
        ends.append(first + int(open_groups[first - 1 : first + size - 1].argmin()))
    found: Ints = np.searchsorted(ends, np.arange(len(open_groups)), side="right") - 1
    return found
