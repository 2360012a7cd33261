"""Topological order by demand, and heaviest path; up to ties, no node number matters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..instances.common.arrays import Floats, Ints


def demand_order(size: int, edges: Ints) -> list[int]:
    """Return an order in which units come just before they are needed, deepest chains first.

    It is topological unless the edges have cycles.
    """
    before: list[list[int]] = [[] for _ in range(size)]
    after: list[list[int]] = [[] for _ in range(size)]
    for a, b in edges.tolist():
        before[b].append(a)
        after[a].append(b)
    depth = _depths(before, after)
    for units in before:
        units.sort(key=depth.__getitem__)
    done = [False] * size
    order: list[int] = []
    ends = sorted((v for v in range(size) if not after[v]), key=lambda v: -depth[v])
    for last in (*ends, *range(size)):
        stack = [last]
        while stack:
            v = stack[-1]
            while before[v] and done[before[v][-1]]:
                before[v].pop()
            if before[v]:
                stack.append(before[v].pop())
                continue
            stack.pop()
            if not done[v]:
                done[v] = True
                order.append(v)
    return order


def _depths(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of edges on the longest path to each unit."""
    waits = [len(units) for units in before]
    ready = [v for v, count in enumerate(waits) if not count]
    depth = [0] * len(waits)
    while ready:
        v = ready.pop()
        for w in after[v]:
            depth[w] = max(depth[w], depth[v] + 1)
            waits[w] -= 1
            if not waits[w]:
                ready.append(w)
    return depth


def heaviest_path(
    order: Sequence[int], successors: Sequence[Sequence[int]], weight: Floats
) -> Ints:
    """Return the path of greatest weight from a source to a sink, given a topological order."""
    total, towards = weight.copy(), np.full(len(weight), -1)
    source = np.ones(len(weight), np.bool_)
    for u in reversed(order):
        for v in successors[u]:
            source[v] = False
            if towards[u] < 0 or weight[u] + total[v] > total[u]:
                total[u], towards[u] = weight[u] + total[v], v
    path = [int(np.where(source, total, -1.0).argmax())]
    while towards[path[-1]] >= 0:
        path.append(int(towards[path[-1]]))
    return np.array(path)
