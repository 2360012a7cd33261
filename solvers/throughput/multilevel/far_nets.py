"""Units far from each other: no stage of a contiguous split can hold them together."""

from __future__ import annotations

import networkx as nx
import numpy as np

from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.hypergraph import Hypergraph
from ....instances.common.arrays import Bools, Floats, Ints


def far_pins(graph: Hypergraph, work: Floats, limit: float) -> Ints:
    """Return two pins of each net that are in no convex set of at most so much work; shape (E, 2).

    Both are −1 where there are none.

    A heaviest path through the units is their *spine* s_0, s_1, …. From unit x, let s_f(x) be the
    first unit of the spine that is x or comes after it, and s_g(x) the last that is x or comes
    before it. A convex set that holds a and b holds all x with g(x) ≥ f(a) and f(x) ≤ g(b), as
    a ≤ s_f(a) ≤ s_g(x) ≤ x ≤ s_f(x) ≤ s_g(b) ≤ b; their work is at least

        Σ_x p_x − Σ_{x: g(x) < f(a)} p_x − Σ_{x: f(x) > g(b)} p_x,

    where g is −1 if nothing of the spine comes before, and f its length if nothing comes after.
    Of a net the pins of least f and of greatest g are looked at.

    Parameters
    ----------
    work
        Shape (U,): of each unit.
    """
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(graph.size))
    order.add_edges_from(graph.edges.tolist())
    topological = list(nx.topological_sort(order))
    best, came = work.copy(), np.full(graph.size, -1)
    for v in topological:
        for u in order.predecessors(v):
            if best[u] + work[v] > best[v]:
                best[v], came[v] = best[u] + work[v], u
    spine = [int(best.argmax())] if graph.size else []
    while spine and came[spine[-1]] >= 0:
        spine.append(int(came[spine[-1]]))
    length = len(spine)
    before, after = np.full(graph.size, -1), np.full(graph.size, length)
    before[spine] = after[spine] = np.arange(length)[::-1]
    for v in topological:
        before[v] = max([before[v], *(before[u] for u in order.predecessors(v))])
    for v in reversed(topological):
        after[v] = min([after[v], *(after[w] for w in order.successors(v))])
    lower = np.concatenate([[0.0], np.cumsum(np.bincount(before + 1, work, length + 1))])
    upper = np.concatenate([[0.0], np.cumsum(np.bincount(after, work, length + 1))])
    found = np.full((len(graph.pins), 2), -1)
    for e, pins in enumerate(graph.pins):
        net = np.array(pins)
        a, b = int(net[after[net].argmin()]), int(net[before[net].argmax()])
        if a != b and after[a] <= before[b]:
            inside = upper[-1] - lower[after[a] + 1] - (upper[-1] - upper[before[b] + 1])
            if inside > limit * (1 + PROOF_MARGIN) + PROOF_MARGIN * float(upper[-1]):
                found[e] = a, b
    return found


def with_far_nets(
    graph: Hypergraph, work: Floats, weight: Floats, limit: float
) -> tuple[Floats, Bools]:
    """Return the work with what two devices pay for each net of far pins; and which nets these are.

    What is paid counts as work in finding more of them.

    Parameters
    ----------
    work
        Shape (U,): of each unit on a kind of device.
    weight
        Shape (E,): of each net there.
    limit
        Of the load of a device.

    Returns
    -------
    array of shape (U,), array of shape (E,)
    """
    dearer, outside = work, np.zeros(len(weight), np.bool_)
    while True:
        pins = far_pins(graph, dearer, limit)
        more = ~outside & (pins[:, 0] >= 0)
        if not more.any():
            return dearer, outside
        paid = np.repeat(weight[more], 2)
        dearer = dearer + np.bincount(pins[more].ravel(), paid, graph.size)
        outside |= more
