"""The routes of some pairs of nodes, by breadth-first searches that go on side by side.

In NumPy alone, so that the first mapping waits neither for a compiler nor for all pairs.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.arrays import Floats, Ints

#: Nodes on a route, both ends included; sum of its latencies in seconds, least bandwidth.
Found = tuple[list[int], float, float]
#: Nodes times pairs searched side by side.
TOGETHER = 2**26
#: Links looked at in all; beyond this the table of all pairs is faster.
MOST_LINKS = 4_000_000


def fewest_hops_between(
    start: Ints, target: Ints, latency: Floats, bandwidth: Floats, pairs: Ints
) -> list[Found] | None:
    """Return the route of each pair.

    The route of fewest hops, of those the widest, of those the fastest, of those the one found
    first, as `routing.Routes` finds it in a search of its first node's whole row.

    Parameters
    ----------
    start, target, latency, bandwidth
        The links, as in `routing.Routes`.
    pairs
        Shape (M, 2): nodes that are joined.

    Returns
    -------
    list or None
        None if the pairs are so far apart that `MOST_LINKS` are looked at.
    """
    if not len(target):
        return [([a], 0.0, math.inf) for a, _ in pairs.tolist()]
    nodes, degree = len(start) - 1, np.diff(start)
    low, high = pairs.T
    # devices on one link each, all alike, behind one switch: one search serves them all
    known = _direct(start, target, pairs)
    only = np.append(target, -1)[np.minimum(start[:-1], len(target))]
    leaves = (degree[low] == 1) & (only[low] != high)
    begins = np.where(leaves, only[low], low)
    leaf_ends = (degree[high] == 1) & (begins != high)
    ends = np.where(leaf_ends, only[high], high)
    wide = np.where(leaves, bandwidth[start[low] * leaves], np.inf)
    far = np.where(leaves, latency[start[low] * leaves], 0.0)
    ends = np.where(known < 0, ends, begins)  # nothing to search
    kinds, which = np.unique(np.stack([begins, ends, wide, far]), axis=1, return_inverse=True)
    sought = kinds[:2].T.astype(np.int64)
    found: list[Found] = []
    looked = 0
    step = max(1, TOGETHER // nodes)
    for at in range(0, len(sought), step):
        some = slice(at, at + step)
        paths, more = _side_by_side(
            start, target, latency, bandwidth, sought[some], kinds[2, some], kinds[3, some],
            MOST_LINKS - looked,
        )  # fmt: skip
        looked += more
        if paths is None:
            return None
        found += paths
    result = []
    for k, ((a, b), kind) in enumerate(zip(pairs.tolist(), which.ravel().tolist(), strict=True)):
        if (link := int(known[k])) >= 0:
            result.append(([a, b], float(latency[link]), float(bandwidth[link])))
            continue
        path, length, width = found[kind]
        if leaf_ends[k]:
            last = start[b]
            length, width = length + float(latency[last]), min(width, float(bandwidth[last]))
        path = [a] * bool(leaves[k]) + path + [b] * bool(leaf_ends[k])
        result.append((path, length, width))
    return result


def _direct(start: Ints, target: Ints, pairs: Ints) -> Ints:
    """Return the link between the nodes of each pair, −1 without: no route has fewer hops."""
    nodes = len(start) - 1
    key = np.repeat(np.arange(nodes), np.diff(start)) * nodes + target  # increasing
    wanted = pairs[:, 0] * nodes + pairs[:, 1]
    at = np.searchsorted(key, wanted).clip(max=len(key) - 1)
    return np.where(key[at] == wanted, at, -1)


def _side_by_side(
    start: Ints,
    target: Ints,
    latency: Floats,
    bandwidth: Floats,
    pairs: Ints,
    wide: Floats,
    far: Floats,
    most: int,
) -> tuple[list[Found] | None, int]:
    """Return the routes, None if more than `most` links are looked at; and how many were.

    Searches begin with a least bandwidth and a latency that are given.
    """  # fmt: skip
    count, nodes = len(pairs), len(start) - 1
    seen = np.zeros((count, nodes), np.bool_)
    pair, node = np.arange(count), pairs[:, 0].copy()
    seen[pair, node] = True
    levels: list[tuple[Ints, Ints]] = []  # nodes, and places of their parents a level before
    paths: list[Found] = [([end], 0.0, np.inf) for end in pairs[:, 0].tolist()]
    parent = np.full(count, -1)
    looked = 0
    while True:
        levels.append((node, parent))
        arrived = node == pairs[pair, 1]
        for place in np.flatnonzero(arrived).tolist():
            path = _back(levels, place)
            paths[int(pair[place])] = path, float(far[place]), float(wide[place])
        done = np.zeros(count, np.bool_)
        done[pair[arrived]] = True
        going = np.flatnonzero(~done[pair])
        if not len(going):
            return paths, looked
        degree = start[node[going] + 1] - start[node[going]]
        looked += int(degree.sum())
        if looked > most:
            return None, looked
        old = np.repeat(going, degree)
        within = np.arange(len(old)) - np.repeat(np.cumsum(degree) - degree, degree)
        link = start[node[old]] + within
        fresh = ~seen[pair[old], target[link]]
        old, link = old[fresh], link[fresh]
        width = np.minimum(wide[old], bandwidth[link])
        length = far[old] + latency[link]
        key = pair[old] * nodes + target[link]
        order = np.lexsort((length, -width, key))  # stable: of equals the one found first
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        best = order[first]
        # a search goes on in the order in which it has met the nodes, as a queue would
        best = best[np.argsort(np.minimum.reduceat(order, first))] if len(first) else best
        pair, node, parent = pair[old[best]], target[link[best]], old[best]
        wide, far = width[best], length[best]
        seen[pair, node] = True


def _back(levels: list[tuple[Ints, Ints]], place: int) -> list[int]:
    path = []
    for node, parent in reversed(levels):
        path.append(int(node[place]))
        place = int(parent[place])
    return path[::-1]
