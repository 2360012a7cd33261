"""Minimum cuts: the least load of a call that must contain some units and must not contain others.

Without convexity and memory, a load is the sum of the compute times and of the weights of the cut
nets (`hypergraph`). It is submodular, and its minimum is a minimum cut: units of the call are on
the source's side, p_v is an arc from v to the sink, and a net of weight w becomes two vertices with
an arc of capacity w between them. Decided units are contracted, and of undecided ones only those
that nets connect with the call are included, so networks stay small. For the path-interval bound, a
call with an interval of a path also contains what lies between the interval's ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import inner, kernel

UNDECIDED, INSIDE, OUTSIDE = 0, 1, 2


class CutData(NamedTuple):
    """Units, nets and memories for minimum cuts: K kinds of devices, U units, E nets."""

    compute: Floats  # (K, U)
    weight: Floats  # (K, E)
    pin_start: Ints  # units of each net, as compressed rows
    pins: Ints
    net_start: Ints  # nets of each unit, as compressed rows
    nets: Ints
    memory: Floats  # (U,) bytes
    capacity: Floats  # (K,) bytes of one device
    tie: Ints  # (U,) colour; −1 for none
    tie_memory: Floats  # bytes of each colour


class CutScratch(NamedTuple):
    """Working arrays of `least_of_interval`; their contents before a call do not matter.

    Vertices are source, sink, undecided units, and two for each net; arcs come in pairs.
    """

    side: NDArray[np.int8]  # side of each unit: UNDECIDED, INSIDE or OUTSIDE
    counted: Bools  # whether the bytes of each colour are counted

    vertex: Ints  # vertex of each unit
    seen_net: Bools
    touched: Ints  # nets
    queue: Ints  # queue, first, level, at, path: an entry per vertex
    first: Ints
    level: Ints
    at: Ints
    path: Ints
    following: Ints  # following, to, room: an entry per arc
    to: Ints
    room: Floats


def new_scratch(data: CutData) -> CutScratch:
    """Return working arrays for the cuts of a graph."""
    units, nets = len(data.memory), len(data.pin_start) - 1
    vertices = 2 + units + 2 * nets
    arcs = 2 * (units + nets + 2 * int(data.pin_start[-1])) + 2
    queue, first, level, at, path = np.empty((5, vertices), np.int64)
    return CutScratch(
        np.zeros(units, np.int8), np.zeros(len(data.tie_memory), np.bool_),
        np.empty(units, np.int64), np.empty(nets, np.bool_), np.empty(nets, np.int64),
        queue, first, level, at, path,
        np.empty(arcs, np.int64), np.empty(arcs, np.int64), np.empty(arcs),
    )  # fmt: skip


@inner
def least_load(data, k, scratch):
    """Return a lower bound on the load of a call, equal to the least load up to rounding.

    Any feasible flow bounds the cut from below, so rounding in the flow is harmless. `side` in the
    scratch says which units are in the call.
    """
    compute, weight = data.compute[k], data.weight[k]
    pin_start, pins, net_start, nets = data.pin_start, data.pins, data.net_start, data.nets
    side, vertex, seen_net = scratch.side, scratch.vertex, scratch.seen_net
    touched, queue, first = scratch.touched, scratch.queue, scratch.first
    units = len(side)
    total = 0.0
    vertex[:] = -1
    seen_net[:] = False
    tail = 0
    for v in range(units):
        if side[v] == INSIDE:
            total += compute[v]
            queue[tail] = v
            tail += 1
    head = 0
    size = 2  # vertex 0 is the source, 1 the sink
    n_touched = 0
    while head < tail:
        v = queue[head]
        head += 1
        for at in range(net_start[v], net_start[v + 1]):
            e = nets[at]
            if seen_net[e]:
                continue
            seen_net[e] = True
            inside, outside, free = False, False, 0
            for j in range(pin_start[e], pin_start[e + 1]):
                u = pins[j]
                inside |= side[u] == INSIDE
                outside |= side[u] == OUTSIDE or compute[u] == np.inf
                free += side[u] == UNDECIDED and compute[u] < np.inf
            if inside and outside:
                total += weight[e]
                continue
            if free == 0 or weight[e] <= 0.0:
                continue
            touched[n_touched] = e
            n_touched += 1
            for j in range(pin_start[e], pin_start[e + 1]):
                u = pins[j]
                if side[u] == UNDECIDED and compute[u] < np.inf and vertex[u] < 0:
                    vertex[u] = size
                    size += 1
                    queue[tail] = u
                    tail += 1
    if n_touched == 0:
        return total

    size += 2 * n_touched
    first[:size] = -1
    m = np.int64(0)
    source, sink = np.int64(0), np.int64(1)  # literals would be compiled as constants
    helper = size - 2 * n_touched
    for u in range(units):
        if vertex[u] >= 0 and compute[u] > 0.0:
            m = _arc(scratch, m, vertex[u], sink, compute[u], 0.0)
    for i in range(n_touched):
        e = touched[i]
        inside, outside, free = False, False, 0
        for j in range(pin_start[e], pin_start[e + 1]):
            u = pins[j]
            inside |= side[u] == INSIDE
            outside |= side[u] == OUTSIDE or compute[u] == np.inf
            free += vertex[u] >= 0
        w = weight[e]
        a, b = np.int64(helper), np.int64(helper + 1)
        helper += 2
        if inside:
            a = source
        if outside:
            b = sink
        if free == 1:
            for j in range(pin_start[e], pin_start[e + 1]):
                u = vertex[pins[j]]
                if u >= 0 and inside:
                    m = _arc(scratch, m, source, u, w, 0.0)
                elif u >= 0 and outside:
                    m = _arc(scratch, m, u, sink, w, 0.0)
            continue
        if free == 2 and not inside and not outside:
            x, y = source, source
            for j in range(pin_start[e], pin_start[e + 1]):
                u = vertex[pins[j]]
                if u >= 0:
                    x, y = y, u
            m = _arc(scratch, m, x, y, w, w)
            continue
        m = _arc(scratch, m, a, b, w, 0.0)
        for j in range(pin_start[e], pin_start[e + 1]):
            u = vertex[pins[j]]
            if u >= 0:
                if not inside:
                    m = _arc(scratch, m, u, a, np.inf, 0.0)
                if not outside:
                    m = _arc(scratch, m, b, u, np.inf, 0.0)
    return total + _max_flow(size, m, scratch)


@inner
def _arc(scratch, m, a, b, forth, back):
    """Add an arc a → b of capacity `forth` and its reverse of `back`; return the next free number.

    `first` (vertices,) and `following` (arcs,) chain the arcs that leave a vertex; `to` and `room`
    (arcs,) are their heads and residual capacities.
    """
    first, following, to, room = scratch.first, scratch.following, scratch.to, scratch.room
    to[m], room[m], following[m] = b, forth, first[a]
    first[a] = m
    to[m + 1], room[m + 1], following[m + 1] = a, back, first[b]
    first[b] = m + 1
    return m + 2


@inner
def _max_flow(size, arcs, scratch):
    """Return the maximum flow from vertex 0 to vertex 1 (Dinic); arcs 2i and 2i+1 are reverses."""
    queue, first, level, at = scratch.queue, scratch.first, scratch.level, scratch.at
    path, following, to, room = scratch.path, scratch.following, scratch.to, scratch.room
    largest = 0.0
    for e in range(arcs):
        if room[e] < np.inf:
            largest = max(largest, room[e])
    eps = 1e-12 * largest
    flow = 0.0
    while True:
        level[:size] = -1
        level[0] = 0
        queue[0] = 0
        head, tail = 0, 1
        while head < tail and level[1] < 0:
            v = queue[head]
            head += 1
            e = first[v]
            while e >= 0:
                if room[e] > eps and level[to[e]] < 0:
                    level[to[e]] = level[v] + 1
                    queue[tail] = to[e]
                    tail += 1
                e = following[e]
        if level[1] < 0:
            return flow
        for v in range(size):  # a slice takes seconds to compile
            at[v] = first[v]
        depth, v = 0, 0
        while True:
            if v == 1:
                push = np.inf
                for i in range(depth):
                    push = min(push, room[path[i]])
                flow += push
                back = depth
                for i in range(depth - 1, -1, -1):
                    room[path[i]] -= push
                    room[path[i] ^ 1] += push
                    if room[path[i]] <= eps:
                        back = i
                depth = back
                v = to[path[depth] ^ 1]
                continue
            e = at[v]
            while e >= 0 and not (room[e] > eps and level[to[e]] == level[v] + 1):
                e = following[e]
            at[v] = e
            if e >= 0:
                path[depth] = e
                depth += 1
                v = to[e]
            elif v == 0:
                break
            else:
                level[v] = -1
                depth -= 1
                v = to[path[depth] ^ 1]


@kernel
def least_of_interval(a, b, path, reach, data, scratch):
    """Return L(a, b): the least load, over all kinds, of a call with v_a … v_b of the path.

    `reach`, (U, U), says whether a path leads from the first unit to the second, or they are equal.
    """
    kinds, units = data.compute.shape
    side = scratch.side
    size = len(path)
    need = 0.0
    scratch.counted[:] = False
    side[:] = UNDECIDED
    for u in range(units):
        if reach[path[a], u] and reach[u, path[b]]:
            side[u] = INSIDE
            need += _bytes(u, data, scratch.counted)
        elif (a > 0 and reach[u, path[a - 1]]) or (b < size - 1 and reach[path[b + 1], u]):
            side[u] = OUTSIDE
    least = np.inf
    for k in range(kinds):
        if need <= data.capacity[k]:
            least = min(least, least_load(data, k, scratch))
    return least


@inner
def _bytes(u, data, counted):
    """Return the bytes that unit `u` adds: its own, or those of its whole colour the first time."""
    colour = data.tie[u]
    if colour < 0:
        return data.memory[u]
    if counted[colour]:
        return 0.0
    counted[colour] = True
    return data.tie_memory[colour]
