"""Growing a call of the latency label DP unit by unit, and taking units back."""

from __future__ import annotations

import numpy as np

from ....formulations.compiled import inner
from .arrays import (
    ACTIVE,
    BORDER_SIZE,
    BYTES,
    CODE,
    COMPUTE,
    CPUS,
    CURSOR,
    ENTERED,
    FEEDS,
    GROUP,
    GROUP_DONE,
    GROUP_IN,
    HOLDER,
    IN,
    IN_CALL,
    INPUT,
    INPUT_LIST,
    INPUTS,
    MISSING,
    MOVED,
    NODE,
    OPENED,
    OUT,
    OUTSIDE,
    OWNED,
    OWNER,
    OWNER_KIND,
    PLACE,
    SATELLITES,
    SAVING,
    SINK_BYTES,
    SINKS,
    SOURCE,
    STACK,
    STATE,
    SUCC,
    UNIT,
    VALUES_AT,
)  # fmt: skip


@inner
def grow(g, s, w, depth, x):  # type: ignore[no-untyped-def]
    """Try to add unit `x` to the call; return whether any label survives it."""
    kinds = len(g.capacity)
    d = depth + 1
    group = g.unit[x, GROUP]
    owner, owned = w.unit[depth, OWNER], w.unit[depth, OWNED]
    if group >= 0 and w.group[group, GROUP_DONE] > 0:
        holder = w.group[group, HOLDER]
        if holder == CPUS or owner not in (CPUS, holder):
            return False  # a part of its colour is on CPUs, or on another accelerator
        owner = holder
        owned += 1
    memory = w.room[depth, 0] + g.memory[x]
    fits = False
    for k in range(kinds):
        for part in range(w.load.shape[1]):
            w.load[d, part, k] = w.load[depth, part, k]
        compute = w.load[depth, COMPUTE, k] + g.compute[k, x]
        if owner != CPUS and w.owner[owner, OWNER_KIND] != k:
            compute = np.inf
        w.load[d, COMPUTE, k] = compute
        fits |= memory <= g.capacity[k] and compute < np.inf
    if not fits:
        return False
    w.unit[d, OWNER] = owner
    w.unit[d, OWNED] = owned
    w.room[d, 0] = memory
    w.room[d, 1] = w.room[depth, 1]
    if not _start(g, s, w, d, x):
        for i in range(w.unit[depth, INPUTS], w.unit[d, INPUTS]):
            w.node[w.node[i, INPUT_LIST], ENTERED] = 0
        return False
    _take(g, w, d, x)
    return True


@inner
def _start(g, s, w, d, x):  # type: ignore[no-untyped-def]
    """Inputs of `x` from the downset: transfers in, and starts. Whether a label survives."""
    kinds, active, depth = len(g.capacity), s.at[ACTIVE], d - 1
    memory, owner = w.room[d, 0], w.unit[d, OWNER]
    w.unit[d, INPUTS] = w.unit[depth, INPUTS]
    for j in range(active):
        w.start[d, j] = w.start[depth, j]
    for i in range(g.unit[x, INPUT], g.unit[x + 1, INPUT]):
        u = g.lists[i]
        if w.unit[g.node[u, UNIT], IN_CALL] or w.node[u, ENTERED]:
            continue
        w.node[u, ENTERED] = 1
        w.node[w.unit[d, INPUTS], INPUT_LIST] = u
        w.unit[d, INPUTS] += 1
        for k in range(kinds):
            w.load[d, IN, k] += g.transfer[k, u]
        for j in range(active):
            value = s.values[s.label[w.active[j], VALUES_AT] + w.node[u, PLACE]]
            w.start[d, j] = max(w.start[d, j], value)
    if owner != CPUS:  # after the first call of its owner, and beside it in the memory
        at = s.state[s.at[STATE], BORDER_SIZE] + 2 * owner
        room = g.capacity[w.owner[owner, OWNER_KIND]] - memory
        for j in range(active):
            here = s.label[w.active[j], VALUES_AT] + at
            w.start[d, j] = max(w.start[d, j], s.values[here])
            if s.values[here + 1] > room:
                w.start[d, j] = np.inf
    least = np.inf
    for k in range(kinds):
        if memory <= g.capacity[k]:
            least = min(least, w.load[d, COMPUTE, k] + w.load[d, IN, k])
    target = s.target[0]
    for p in range(len(g.place)):
        w.path_in[d, p] = w.path_in[depth, p]
        if g.place[p, x] >= 0:
            w.path_in[d, p] = g.place[p, x] + 1
    alive = False
    for j in range(active):
        if w.start[d, j] == np.inf:
            continue
        code = s.label[w.active[j], CODE]
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


@inner
def _take(g, w, d, x):  # type: ignore[no-untyped-def]
    """Now `x` is in: what it feeds, and what it completes."""
    kinds, group = len(g.capacity), g.unit[x, GROUP]
    w.unit[d - 1, STACK] = x
    w.unit[x, IN_CALL] = 1
    w.unit[d, CURSOR] = x + 1
    w.ready[x >> 6] &= ~(np.uint64(1) << np.uint64(x & 63))
    for i in range(g.unit[x, SUCC], g.unit[x + 1, SUCC]):
        y = g.lists[i]
        w.unit[y, MISSING] -= 1
        if w.unit[y, MISSING] == 0:
            w.ready[y >> 6] |= np.uint64(1) << np.uint64(y & 63)
    for i in range(g.unit[x, INPUT], g.unit[x + 1, INPUT]):
        u = g.lists[i]
        w.node[u, OUTSIDE] -= 1
        if w.node[u, OUTSIDE] == 0 and w.unit[g.node[u, UNIT], IN_CALL]:
            if g.node[u, SINKS] == 0:
                for k in range(kinds):
                    w.load[d, OUT, k] -= g.transfer[k, u]
            else:
                _offer_sinks(g, w, d, u)
    for u in range(g.unit[x, NODE], g.unit[x + 1, NODE]):
        if w.node[u, OUTSIDE] > 0 or g.node[u, SINKS] > 0:
            for k in range(kinds):
                w.load[d, OUT, k] += g.transfer[k, u]
            if w.node[u, OUTSIDE] == 0:
                _offer_sinks(g, w, d, u)
    for i in range(g.unit[x, SOURCE], g.unit[x + 1, SOURCE]):
        t = g.lists[i]
        w.touched[t] += 1
        for k in range(kinds):
            if w.touched[t] == 1:
                w.load[d, SATELLITES, k] += g.source[t, MOVED + k]
            if w.touched[t] == g.source[t, FEEDS]:
                w.load[d, SAVING, k] += g.source[t, MOVED + k]
        if w.touched[t] == g.source[t, FEEDS]:
            w.room[d, 1] += g.source[t, BYTES]
    w.unit[d, OPENED] = w.unit[d - 1, OPENED]
    if group >= 0:
        w.group[group, GROUP_IN] += 1
        if w.group[group, GROUP_DONE] == 0:
            if w.group[group, GROUP_IN] == 1:
                w.unit[d, OPENED] += 1
            if w.group[group, GROUP_IN] == g.group_size[group]:
                w.unit[d, OPENED] -= 1


@inner
def _offer_sinks(g, w, d, u):  # type: ignore[no-untyped-def]
    """If the call took the sink satellites of `u`, its output would not leave."""
    if g.node[u, SINKS] == 1:
        w.room[d, 1] += g.time[u, SINK_BYTES]
        for k in range(len(g.capacity)):
            w.load[d, SAVING, k] += g.transfer[k, u]


@inner
def take_back(g, w, d):  # type: ignore[no-untyped-def]
    """Remove the unit that was added last, at depth `d`."""
    x = w.unit[d - 1, STACK]
    for i in range(g.unit[x, INPUT], g.unit[x + 1, INPUT]):
        w.node[g.lists[i], OUTSIDE] += 1
    for i in range(w.unit[d - 1, INPUTS], w.unit[d, INPUTS]):
        w.node[w.node[i, INPUT_LIST], ENTERED] = 0
    for i in range(g.unit[x, SUCC], g.unit[x + 1, SUCC]):
        y = g.lists[i]
        if w.unit[y, MISSING] == 0:
            w.ready[y >> 6] &= ~(np.uint64(1) << np.uint64(y & 63))
        w.unit[y, MISSING] += 1
    w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(g.unit[x, SOURCE], g.unit[x + 1, SOURCE]):
        w.touched[g.lists[i]] -= 1
    if g.unit[x, GROUP] >= 0:
        w.group[g.unit[x, GROUP], GROUP_IN] -= 1
    w.unit[x, IN_CALL] = 0
