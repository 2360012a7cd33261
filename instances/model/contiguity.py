"""Contiguity: the edges that order the pieces of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..common.arrays import Ints
from .workload import Workload


def representatives(workload: Workload) -> Ints:
    """Return the representative of each node's colour, shape (n,).

    That is the lowest forward node of the colour. If the colour has no forward node (its backward
    nodes are *orphaned*), it is the lowest node, which then stands for an artificial forward node
    of zero cost. A node without colour represents itself.
    """
    stands_for = np.arange(workload.n)
    coloured = np.flatnonzero(workload.colours >= 0)
    colours = workload.colours[coloured]
    chosen = np.lexsort((coloured, workload.backward[coloured], colours))
    _, first, of = np.unique(colours[chosen], return_index=True, return_inverse=True)
    stands_for[coloured[chosen]] = coloured[chosen][first][of]
    return stands_for


def pipeline_edges(workload: Workload) -> list[tuple[int, int]]:
    """Return the edges by which contiguity is defined, as pairs of node numbers.

    They are the edges between forward nodes and, for each edge u → v between backward nodes of
    which one is orphaned, the mirrored edge between those that stand for v and u: an orphan is
    placed where an artificial forward node of its own would be. Tarnawski et al., "Efficient
    Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, and the authors'
    published program.
    """
    return [(u, v) for u, v in pipeline_edge_array(workload).tolist()]


def pipeline_edge_array(workload: Workload) -> Ints:
    """Return `pipeline_edges` as an array of shape (m, 2)."""
    edges, backward = workload.edges, workload.backward
    forward = ~backward[edges].any(axis=1)
    turned = representatives(workload)[edges[backward[edges].all(axis=1)][:, ::-1]]
    orphaned = (turned[:, 0] != turned[:, 1]) & backward[turned].any(axis=1)
    return np.unique(np.concatenate([edges[forward], turned[orphaned]]), axis=0)


def quotient_cycle(edges: Iterable[tuple[int, int]], part: Ints) -> list[int] | None:
    """Return a cycle of parts in the quotient graph, or None if it is acyclic."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((int(part[u]), int(part[v])) for u, v in edges if part[u] != part[v])
    try:
        return [int(a) for a, _ in nx.find_cycle(graph)]
    except nx.NetworkXNoCycle:
        return None


def leads_to(
    after: Mapping[int, Iterable[int]] | Sequence[Iterable[int]],
    starts: Iterable[int],
    targets: set[int],
) -> bool:
    """Return whether a path with at least one edge leads from `starts` into `targets`.

    `after` are the successors of each node. O(n + m).

    Examples
    --------
    >>> leads_to([[1], [2], []], {0}, {2})
    True
    >>> leads_to([[1], [2], []], {2}, {2})
    False
    """
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        for v in after[waiting.pop()]:
            if v in targets:
                return True
            if v not in seen:
                seen.add(v)
                waiting.append(v)
    return False
