"""Where the nodes of a graph are drawn: in layers, edges between them led past other nodes.

Backward passes stand beside their forward passes and run upwards, so that an edge from a node to
its own backward pass is short.

References
----------
K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Transactions on Systems, Man, and Cybernetics 11, 1981.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx

#: Room of a node and of an edge that passes a layer, in widths of a node.
NODE, PASSING = 1.0, 0.16
#: Between forward and backward passes.
BESIDE = 0.5
SWEEPS = 12

Spot = tuple[float, float]


class Layout(NamedTuple):
    """Places; x in widths of a node, y in layers, downwards.

    Parameters
    ----------
    spots
        Of each node.
    ways
        Of each edge: the points that it passes, ends included.
    """

    spots: dict[int, Spot]
    ways: dict[tuple[int, int], list[Spot]]


def layers(graph: nx.DiGraph[int]) -> Layout:
    """Return where the nodes of an acyclic graph are drawn.

    Parameters
    ----------
    graph
        Nodes may have the attribute ``backward``.
    """
    backward = [v for v, late in graph.nodes(data="backward") if late]
    forward = [v for v in graph if v not in set(backward)]
    spots, ways = _one_pass(graph.subgraph(forward), upwards=False)
    if backward and forward:
        later, more = _one_pass(graph.subgraph(backward), upwards=True)
        every = [*spots.values(), *(spot for way in ways.values() for spot in way)]
        right = max(x for x, _ in every) + NODE + BESIDE
        left = min(x for x, _ in (*later.values(), *(s for way in more.values() for s in way)))
        shift = right - left
        spots |= {v: (x + shift, y) for v, (x, y) in later.items()}
        ways |= {edge: [(x + shift, y) for x, y in way] for edge, way in more.items()}
    elif backward:
        spots, ways = _one_pass(graph, upwards=True)
    for u, v in graph.edges:
        ways.setdefault((u, v), [spots[u], spots[v]])
    return Layout(spots, ways)


def _one_pass(
    graph: nx.DiGraph[int], *, upwards: bool
) -> tuple[dict[int, Spot], dict[tuple[int, int], list[Spot]]]:
    """Place one pass; an edge over several layers has a point in each of those between."""
    ordered = graph.reverse() if upwards else graph
    number = {
        v: i for i, row in enumerate(nx.topological_generations(ordered)) for v in sorted(row)
    }
    rows: list[list[object]] = [[] for _ in range(1 + max(number.values(), default=-1))]
    linked: nx.Graph[object] = nx.Graph()
    for v in sorted(number, key=lambda v: (number[v], v)):
        rows[number[v]].append(v)
        linked.add_node(v)
    chains: dict[tuple[int, int], list[object]] = {}
    for u, v in ordered.edges:
        chain: list[object] = [u, *((u, v, i) for i in range(number[u] + 1, number[v])), v]
        for i, point in enumerate(chain[1:-1], number[u] + 1):
            rows[i].append(point)
        nx.add_path(linked, chain)
        chains[(v, u) if upwards else (u, v)] = chain[::-1] if upwards else chain
    x = _places(rows, linked, number)
    spots = {v: (x[v], float(number[v])) for v in number}
    ways = {
        edge: [(x[p], float(p[2] if isinstance(p, tuple) else number[p])) for p in chain]  # type: ignore[index]
        for edge, chain in chains.items()
    }
    return spots, ways


def _places(
    rows: list[list[object]], linked: nx.Graph[object], number: dict[int, int]
) -> dict[object, float]:
    """Order each layer by the mean place of neighbours, down and up again; then straighten."""
    layer = {point: i for i, row in enumerate(rows) for point in row}
    x: dict[object, float] = {}
    for row in rows:
        _spread(row, {p: float(k) for k, p in enumerate(row)}, number, x)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for i in range(len(rows)) if down else reversed(range(len(rows))):
            wanted = {}
            for point in rows[i]:
                near = [x[p] for p in linked[point] if (layer[p] < i) == down and layer[p] != i]
                wanted[point] = sum(near) / len(near) if near else x[point]
            rows[i].sort(key=wanted.__getitem__)
            _spread(rows[i], wanted, number, x)
    return x


def _spread(
    row: list[object], wanted: dict[object, float], number: dict[int, int], x: dict[object, float]
) -> None:
    """Place a layer in its order, near what is wanted, with room for each point.

    Points that want the same place share a block, centred on the mean of what they want.
    """
    room = [NODE if point in number else PASSING for point in row]
    blocks: list[tuple[float, float, list[object]]] = []  # sum of wanted lefts, width, points
    offset: dict[object, float] = {}
    for point, wide in zip(row, room, strict=True):
        total, width, points = wanted[point] - wide / 2, 0.0, [point]
        offset[point] = wide / 2
        width = wide
        while blocks and blocks[-1][0] / len(blocks[-1][2]) + blocks[-1][1] > total / len(points):
            before, wide_before, first = blocks.pop()
            for later in points:
                offset[later] += wide_before
            total = before + total - wide_before * len(points)
            width, points = wide_before + width, [*first, *points]
        blocks.append((total, width, points))
    for total, _, points in blocks:
        for point in points:
            x[point] = total / len(points) + offset[point]
