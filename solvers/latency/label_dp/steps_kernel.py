"""The steps of the latency label DP: a call that ends here, and a unit on the CPUs."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import uncounted
from . import arrays as col
from .knapsack_kernel import best_saving
from .labels_kernel import find, insert, write_owners


@uncounted
def close_call(g, s, w, d, single):
    """Close the call with `d` units: extend every label of the state by it."""
    opened, owner = w.unit[d, col.OPENED], w.unit[d, col.OWNER]
    if opened > 0 and (not g.divided or owner != col.CPUS):
        return  # the rest of a colour would have no call to be in
    if owner != col.CPUS and w.unit[d, col.OWNED] < w.owner[owner, col.OWNER_LEFT]:
        return
    target, state = s.target[0], s.at[col.STATE]
    s.at[col.STEPS] += d >> 2
    earliest = np.inf
    for j in range(s.at[col.ACTIVE]):
        earliest = min(earliest, w.start[d, j])
    memory, rest = w.room[d, 0], 0.0
    if opened > 0:
        rest = _rest_of_colours(g, w, d)
    deepest, border, owners, new, key_of = 0.0, -1, 0, -1, -1
    for k in range(len(g.capacity)):
        load = w.load[d, col.COMPUTE, k] + w.load[d, col.IN, k]
        load += w.load[d, col.LEAVES, k] + w.load[d, col.OUT, k]
        free = g.capacity[k] - memory
        if rest > free or earliest + load - w.load[d, col.SAVING, k] >= target:
            continue
        load -= w.load[d, col.SAVING, k] if w.room[d, 1] <= free else best_saving(g, w, d, k, free)
        if border < 0:
            for i in range(d):
                x = w.unit[i, col.STACK]
                for u in range(g.unit[x, col.NODE], g.unit[x + 1, col.NODE]):
                    if w.node[u, col.OUTSIDE] > 0:
                        deepest = max(deepest, _tail(g, w, u))
        for j in range(s.at[col.ACTIVE]):
            finish, label = w.start[d, j] + load, w.active[j]
            if not finish + deepest < target or g.code[s.label[label, col.CODE], k] == 0:
                continue
            code = s.label[label, col.CODE] + g.step[k]
            if border < 0:
                _add_bits(s, w, d)
                border = _border(g, s, w, state, d)
            if key_of < 0 or (g.divided and key_of != k):
                if g.divided:
                    owners = write_owners(g, s, w, d, k)
                    if owners < 0:
                        s.at[col.LEFT_OUT] = 1
                        return
                new, key_of = find(s, w.new_key), k
            s.at[col.STEPS] += border
            at = s.label[label, col.VALUES_AT]
            for i in range(border):
                u = w.node[i, col.BORDER]
                here = w.unit[g.node[u, col.UNIT], col.IN_CALL]
                w.vector[i] = finish if here else s.values[at + w.node[u, col.PLACE]]
            if not _promising(g, s, w, d, at, finish, code):
                continue
            if owners > 0 and not _carry_owners(g, s, w, at, border, owners, code, finish, memory):
                continue
            shape = (s.at[col.CARD] + d, border, border + 2 * owners)
            end = max(finish, s.label_end[label])
            new = insert(g, s, w, new, shape, (code, label, k), end, single)


@uncounted
def _add_bits(s, w, d):
    """Write the ideal with the call into the new key; no owners yet."""
    state = s.at[col.STATE]
    for i in range(len(w.new_key)):
        w.new_key[i] = 0
    for i in range(len(w.ready)):
        w.new_key[i] = s.key[state, i]
    for i in range(d):
        x = w.unit[i, col.STACK]
        w.new_key[x >> 6] |= np.uint64(1) << np.uint64(x & 63)


@uncounted
def _rest_of_colours(g, w, d):
    """Bytes of the units that the second call of this accelerator must take."""
    rest = 0.0
    for i in range(d):
        x = w.unit[i, col.STACK]
        group = g.unit[x, col.GROUP]
        if group >= 0 and w.group[group, col.GROUP_IN] < g.group_size[group]:
            rest += g.group_bytes[group] / w.group[group, col.GROUP_IN] - g.memory[x]
    return rest * (1 - 1e-9)


@uncounted
def _carry_owners(g, s, w, at, border, owners, code, finish, memory):
    """Write finish and bytes of the owners into the new label; False if calls are missing."""
    left = 0
    for k in range(len(g.capacity)):
        left += g.code[code, k]
    if left < owners:
        return False
    state = s.at[col.STATE]
    for o in range(s.state[state, col.OWNERS]):
        r = w.owner[o, col.RENAMED]
        if r >= 0:
            old = at + s.state[state, col.BORDER_SIZE] + 2 * o
            w.vector[border + 2 * r] = s.values[old]
            w.vector[border + 2 * r + 1] = s.values[old + 1]
    r = w.owner[col.MOST_OPEN, col.RENAMED]
    if r >= 0:
        w.vector[border + 2 * r] = finish
        w.vector[border + 2 * r + 1] = memory
    return True


@uncounted
def _promising(g, s, w, d, at, finish, code):
    """Whether the paths allow a label below the target."""
    left = g.rest.shape[2] - 1 - g.code[code, len(g.capacity)]
    for p in range(len(g.place)):
        i = w.path_in[d, p]
        begin = 0.0
        for e in range(g.gates[p, i], g.gates[p, i + 1]):
            u = g.lists[e]
            here = w.unit[g.node[u, col.UNIT], col.IN_CALL]
            begin = max(begin, finish if here else s.values[at + w.node[u, col.PLACE]])
        if begin + g.rest[p, i, left] >= s.target[0]:
            return False
    return True


@uncounted
def _border(g, s, w, state, d):
    """List the nodes of ideal and call that feed a unit outside; both parts come sorted."""
    size, i, last = 0, s.state[state, col.BORDER_AT], 0
    last = i + s.state[state, col.BORDER_SIZE]
    for j in range(d + 1):
        begin, end = len(w.node), len(w.node)  # in the end, what is left of the ideal's border
        if j < d:
            begin, end = (
                g.unit[w.unit[j, col.STACK], col.NODE],
                g.unit[w.unit[j, col.STACK] + 1, col.NODE],
            )
        while i < last and s.border[i] < begin:
            if w.node[s.border[i], col.OUTSIDE] > 0:
                w.node[size, col.BORDER] = s.border[i]
                size += 1
            i += 1
        for u in range(begin, end):
            if w.node[u, col.OUTSIDE] > 0:
                w.node[size, col.BORDER] = u
                size += 1
    for j in range(size):
        w.tail[j] = _tail(g, w, w.node[j, col.BORDER])
    return size


@uncounted
def _tail(g, w, u):
    """Least time from the finish of `u` to the end: through successors not in ideal or call."""
    tail = 0.0
    for i in range(g.node[u, col.FOLLOWING], g.node[u + 1, col.FOLLOWING]):
        y = g.lists[i]
        unit = g.node[y, col.UNIT]
        if not w.unit[unit, col.INSIDE] and not w.unit[unit, col.IN_CALL]:
            tail = max(tail, g.time[y, col.DEPTH_TIME])
    return tail


@uncounted
def cpu_step(g, s, w, x, single):
    """Put the ready unit `x` on the CPUs."""
    group = g.unit[x, col.GROUP]
    if group >= 0 and w.group[group, col.GROUP_DONE] > 0 and w.group[group, col.HOLDER] != col.CPUS:
        return
    for u in range(g.unit[x, col.NODE], g.unit[x + 1, col.NODE]):
        if g.time[u, col.CPU_TIME] == np.inf:
            return
    # treat it as a call of one unit with finishes of its own
    depth, nobody = np.int64(1), np.int64(col.CPUS)  # constants would be compiled for as such
    w.unit[0, col.STACK] = x
    w.unit[x, col.IN_CALL] = 1
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        w.node[g.lists[i], col.OUTSIDE] -= 1
    for p in range(len(g.place)):
        w.path_in[1, p] = w.path_in[0, p] + (g.place[p, x] >= 0)
    if group >= 0:
        w.group[group, col.GROUP_IN] += 1
    _add_bits(s, w, depth)
    border = _border(g, s, w, s.at[col.STATE], depth)
    owners = write_owners(g, s, w, depth, nobody) if g.divided else 0
    if owners >= 0:
        _extend_by_unit(g, s, w, x, border, owners, single)
    else:
        s.at[col.LEFT_OUT] = 1
    if group >= 0:
        w.group[group, col.GROUP_IN] -= 1
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        w.node[g.lists[i], col.OUTSIDE] += 1
    w.unit[x, col.IN_CALL] = 0


@uncounted
def _extend_by_unit(g, s, w, x, border, owners, single):
    """Extend every label of the state by unit `x` on the CPUs, its nodes one by one."""
    target, new, nobody = s.target[0], find(s, w.new_key), np.int64(col.CPUS)
    first, last = g.unit[x, col.NODE], g.unit[x + 1, col.NODE]
    finish = w.finish
    s.at[col.STEPS] += 2 * s.at[col.ACTIVE]
    for j in range(s.at[col.ACTIVE]):
        label = w.active[j]
        at, code, end = s.label[label, col.VALUES_AT], s.label[label, col.CODE], s.label_end[label]
        good = True
        for u in range(first, last):
            ready = 0.0
            for i in range(g.node[u, col.FEED], g.node[u + 1, col.FEED]):
                f = g.lists[i]
                here = finish[f - first] if f >= first else s.values[at + w.node[f, col.PLACE]]
                ready = max(ready, here)
            finish[u - first] = ready + g.time[u, col.CPU_TIME]
            end = max(end, finish[u - first])
            good &= finish[u - first] < target
        left = g.rest.shape[2] - 1 - g.code[code, len(g.capacity)]
        for p in range(len(g.place)):
            i = w.path_in[1, p]
            begin = 0.0
            for e in range(g.gates[p, i], g.gates[p, i + 1]):
                u = g.lists[e]
                here = finish[u - first] if g.node[u, col.UNIT] == x else 0.0
                if g.node[u, col.UNIT] != x:
                    here = s.values[at + w.node[u, col.PLACE]]
                begin = max(begin, here)
            good &= begin + g.rest[p, i, left] < target
        if not good:
            continue
        for i in range(border):
            u = w.node[i, col.BORDER]
            if g.node[u, col.UNIT] == x:
                w.vector[i] = finish[u - first]
            else:
                w.vector[i] = s.values[at + w.node[u, col.PLACE]]
            good &= w.vector[i] + w.tail[i] < target
        if owners > 0:
            good &= _carry_owners(g, s, w, at, border, owners, code, 0.0, 0.0)
        if good:
            shape = (s.at[col.CARD] + 1, border, border + 2 * owners)
            new = insert(g, s, w, new, shape, (code, label, nobody), end, single)
