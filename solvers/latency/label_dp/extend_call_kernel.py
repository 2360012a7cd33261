"""Extending a call of the latency label DP by one unit, and undoing that."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import uncounted
from . import arrays as col


@uncounted
def extend_call(g, s, w, depth, x):
    """Try to add unit `x` to the call; return whether any label survives it."""
    kinds = len(g.capacity)
    d = depth + 1
    group = g.unit[x, col.GROUP]
    owner, owned = w.unit[depth, col.OWNER], w.unit[depth, col.OWNED]
    if group >= 0 and w.group[group, col.GROUP_DONE] > 0:
        holder = w.group[group, col.HOLDER]
        if holder == col.CPUS or owner not in (col.CPUS, holder):
            return False  # a part of its colour is on CPUs, or on another accelerator
        owner = holder
        owned += 1
    memory = w.room[depth, 0] + g.memory[x]
    fits = False
    for k in range(kinds):
        for part in range(w.load.shape[1]):
            w.load[d, part, k] = w.load[depth, part, k]
        compute = w.load[depth, col.COMPUTE, k] + g.compute[k, x]
        if owner != col.CPUS and w.owner[owner, col.OWNER_KIND] != k:
            compute = np.inf
        w.load[d, col.COMPUTE, k] = compute
        fits |= memory <= g.capacity[k] and compute < np.inf
    if not fits:
        return False
    w.unit[d, col.OWNER] = owner
    w.unit[d, col.OWNED] = owned
    w.room[d, 0] = memory
    w.room[d, 1] = w.room[depth, 1]
    if not _start(g, s, w, d, x):
        for i in range(w.unit[depth, col.INPUTS], w.unit[d, col.INPUTS]):
            w.node[w.node[i, col.INPUT_LIST], col.ENTERED] = 0
        return False
    _take(g, w, d, x)
    return True


@uncounted
def _start(g, s, w, d, x):
    """Inputs of `x` from the ideal: transfers in, and starts. Whether a label survives."""
    kinds, active, depth = len(g.capacity), s.at[col.ACTIVE], d - 1
    memory, owner = w.room[d, 0], w.unit[d, col.OWNER]
    w.unit[d, col.INPUTS] = w.unit[depth, col.INPUTS]
    for j in range(active):
        w.start[d, j] = w.start[depth, j]
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        u = g.lists[i]
        if w.unit[g.node[u, col.UNIT], col.IN_CALL] or w.node[u, col.ENTERED]:
            continue
        w.node[u, col.ENTERED] = 1
        w.node[w.unit[d, col.INPUTS], col.INPUT_LIST] = u
        w.unit[d, col.INPUTS] += 1
        for k in range(kinds):
            w.load[d, col.IN, k] += g.transfer[k, u]
        for j in range(active):
            value = s.values[s.label[w.active[j], col.VALUES_AT] + w.node[u, col.PLACE]]
            w.start[d, j] = max(w.start[d, j], value)
    if owner != col.CPUS:  # after the first call of its owner, and beside it in the memory
        at = s.state[s.at[col.STATE], col.BORDER_SIZE] + 2 * owner
        room = g.capacity[w.owner[owner, col.OWNER_KIND]] - memory
        for j in range(active):
            here = s.label[w.active[j], col.VALUES_AT] + at
            w.start[d, j] = max(w.start[d, j], s.values[here])
            if s.values[here + 1] > room:
                w.start[d, j] = np.inf
    least = np.inf
    for k in range(kinds):
        if memory <= g.capacity[k]:
            least = min(least, w.load[d, col.COMPUTE, k] + w.load[d, col.IN, k])
    target = s.target[0]
    for p in range(len(g.place)):
        w.path_in[d, p] = w.path_in[depth, p]
        if g.place[p, x] >= 0:
            w.path_in[d, p] = g.place[p, x] + 1
    alive = False
    for j in range(active):
        if w.start[d, j] == np.inf:
            continue
        code = s.label[w.active[j], col.CODE]
        left = 0
        for k in range(kinds):
            left += g.code[code, k]
        good = left > 0 and w.start[d, j] + least < target
        for p in range(len(g.place)):
            if good and w.path_in[d, p] > w.path_in[0, p]:
                after = g.onward[p, w.path_in[0, p], w.path_in[d, p] - 1, left]
                good = w.start[d, j] + after < target
        if good:
            alive = True
        else:
            w.start[d, j] = np.inf
    return alive


@uncounted
def _take(g, w, d, x):
    """Put `x` into the call; update what waits for it and the transfers that the call makes."""
    kinds, group = len(g.capacity), g.unit[x, col.GROUP]
    w.unit[d - 1, col.STACK] = x
    w.unit[x, col.IN_CALL] = 1
    w.unit[d, col.CURSOR] = x + 1
    w.ready[x >> 6] &= ~(np.uint64(1) << np.uint64(x & 63))
    for i in range(g.unit[x, col.SUCC], g.unit[x + 1, col.SUCC]):
        y = g.lists[i]
        w.unit[y, col.MISSING] -= 1
        if w.unit[y, col.MISSING] == 0:
            w.ready[y >> 6] |= np.uint64(1) << np.uint64(y & 63)
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        u = g.lists[i]
        w.node[u, col.OUTSIDE] -= 1
        if w.node[u, col.OUTSIDE] == 0 and w.unit[g.node[u, col.UNIT], col.IN_CALL]:
            if g.node[u, col.SINKS] == 0:
                for k in range(kinds):
                    w.load[d, col.OUT, k] -= g.transfer[k, u]
            else:
                _offer_sinks(g, w, d, u)
    for u in range(g.unit[x, col.NODE], g.unit[x + 1, col.NODE]):
        if w.node[u, col.OUTSIDE] > 0 or g.node[u, col.SINKS] > 0:
            for k in range(kinds):
                w.load[d, col.OUT, k] += g.transfer[k, u]
            if w.node[u, col.OUTSIDE] == 0:
                _offer_sinks(g, w, d, u)
    for i in range(g.unit[x, col.SOURCE], g.unit[x + 1, col.SOURCE]):
        t = g.lists[i]
        w.touched[t] += 1
        for k in range(kinds):
            if w.touched[t] == 1:
                w.load[d, col.LEAVES, k] += g.source[t, col.MOVED + k]
            if w.touched[t] == g.source[t, col.FEEDS]:
                w.load[d, col.SAVING, k] += g.source[t, col.MOVED + k]
        if w.touched[t] == g.source[t, col.FEEDS]:
            w.room[d, 1] += g.source[t, col.BYTES]
    w.unit[d, col.OPENED] = w.unit[d - 1, col.OPENED]
    if group >= 0:
        w.group[group, col.GROUP_IN] += 1
        if w.group[group, col.GROUP_DONE] == 0:
            if w.group[group, col.GROUP_IN] == 1:
                w.unit[d, col.OPENED] += 1
            if w.group[group, col.GROUP_IN] == g.group_size[group]:
                w.unit[d, col.OPENED] -= 1


@uncounted
def _offer_sinks(g, w, d, u):
    """If the call took the free sinks of `u`, its output would not leave."""
    if g.node[u, col.SINKS] == 1:
        w.room[d, 1] += g.time[u, col.SINK_BYTES]
        for k in range(len(g.capacity)):
            w.load[d, col.SAVING, k] += g.transfer[k, u]


@uncounted
def undo(g, w, d):
    """Remove the unit that was added last, at depth `d`."""
    x = w.unit[d - 1, col.STACK]
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        w.node[g.lists[i], col.OUTSIDE] += 1
    for i in range(w.unit[d - 1, col.INPUTS], w.unit[d, col.INPUTS]):
        w.node[w.node[i, col.INPUT_LIST], col.ENTERED] = 0
    for i in range(g.unit[x, col.SUCC], g.unit[x + 1, col.SUCC]):
        y = g.lists[i]
        if w.unit[y, col.MISSING] == 0:
            w.ready[y >> 6] &= ~(np.uint64(1) << np.uint64(y & 63))
        w.unit[y, col.MISSING] += 1
    w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(g.unit[x, col.SOURCE], g.unit[x + 1, col.SOURCE]):
        w.touched[g.lists[i]] -= 1
    if g.unit[x, col.GROUP] >= 0:
        w.group[g.unit[x, col.GROUP], col.GROUP_IN] -= 1
    w.unit[x, col.IN_CALL] = 0
