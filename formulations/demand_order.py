"""Topological order of a graph by demand; up to ties it does not depend on the node numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..instances.common.arrays import Ints


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
