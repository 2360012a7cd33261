"""Main loop of the label DP for latency: expands states by calls, and by units on CPUs.

All data live in the arrays of `labels_kernel.py`, so that a slice can end anywhere: when its step
budget is used up, for the caller to poll the clock, or when an array is full, for the caller to
enlarge it. A call grows unit by unit, depth first, and each extension is undone. See `label_dp.py`
for the recurrence, and why it is exact.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel, uncounted
from . import labels_kernel as col
from .labels_kernel import find, insert, write_owners


@kernel
def run(g, s, w, single, budget):
    """Expand states until done, out of budget, or out of room in an array; return which.

    `single` keeps only the most promising label of each state and code: a fast heuristic.
    """
    units = len(g.memory)
    last = s.at[col.STEPS] + budget
    while True:
        if s.at[col.STEPS] >= last:
            return col.BUDGET
        if s.at[col.PHASE] == col.NEXT:
            while s.at[col.CARD] < units and s.by_card[s.at[col.CARD]] < 0:
                s.at[col.CARD] += 1
            if s.at[col.CARD] >= units:
                return col.DONE
            state = s.by_card[s.at[col.CARD]]
            if not _list_labels(s, w, state):
                return col.ACTIVE_FULL
            s.by_card[s.at[col.CARD]] = s.state[state, col.SIBLING]
            s.at[col.STATE] = state
            if s.at[col.ACTIVE] == 0:
                continue
            _unpack(g, s, w, state)
            s.at[col.PHASE] = col.CPU_STEPS
            s.at[col.READY_AT] = _first_aside(g, w)
        if s.at[col.PHASE] == col.CPU_STEPS:
            while s.at[col.READY_AT] < units:
                x = s.at[col.READY_AT]
                if s.at[col.STEPS] >= last:
                    return col.BUDGET
                if w.ready[x >> 6] >> np.uint64(x & 63) & np.uint64(1):
                    code = _has_room(g, s)
                    if code != col.DONE:
                        return code
                    cpu_step(g, s, w, x, single)
                    if g.unit[x, col.ASIDE]:
                        break
                s.at[col.READY_AT] += 1
            s.at[col.PHASE] = col.GROW
            s.at[col.DEPTH] = 0 if s.at[col.READY_AT] >= units else -1
            w.unit[0, col.CURSOR] = 0
        while s.at[col.DEPTH] >= 0:
            if s.at[col.STEPS] >= last:
                return col.BUDGET
            code = _has_room(g, s)
            if code != col.DONE:
                return code
            depth = s.at[col.DEPTH]
            x = _next_ready(w.ready, w.unit[depth, col.CURSOR])
            if x < 0:
                if depth > 0:
                    undo(g, w, depth)
                s.at[col.DEPTH] -= 1
                continue
            w.unit[depth, col.CURSOR] = x + 1
            s.at[col.STEPS] += 4 + s.at[col.ACTIVE]
            if extend_call(g, s, w, depth, x):
                if _best_with(g, w, depth, x):
                    w.unit[depth, col.CURSOR] = units
                s.at[col.DEPTH] += 1
                close_call(g, s, w, depth + 1, single)
        s.at[col.PHASE] = col.NEXT


@uncounted
def _first_aside(g, w):
    """Return the first ready unit set aside, which comes before everything else; 0 if none."""
    for x in range(len(g.memory)):
        if g.unit[x, col.ASIDE] and w.ready[x >> 6] >> np.uint64(x & 63) & np.uint64(1):
            return x
    return 0


@uncounted
def _has_room(g, s):
    """Return DONE if the arrays have room for one more call, otherwise which of them is full."""
    labels = s.at[col.ACTIVE] * max(len(g.capacity), 1)
    nodes = len(g.time)
    if s.at[col.N_STATES] + len(g.capacity) + 1 > len(s.state):
        return col.STATES_FULL
    if 2 * (s.at[col.N_STATES] + len(g.capacity) + 1) > len(s.table):
        return col.STATES_FULL
    if s.at[col.N_LABELS] + labels > len(s.label):
        return col.LABELS_FULL
    if s.at[col.N_VALUES] + labels * (nodes + 32) > len(s.values):
        return col.VALUES_FULL
    if s.at[col.N_BORDER] + nodes * (len(g.capacity) + 1) > len(s.border):
        return col.BORDER_FULL
    return col.DONE


@uncounted
def _next_ready(ready, at):
    """Return the first ready unit from `at` on; −1 if there is none."""
    word = at >> 6
    if word >= len(ready):
        return -1
    bits = ready[word] >> np.uint64(at & 63)
    while bits == 0:
        word += 1
        if word >= len(ready):
            return -1
        bits = ready[word]
        at = word << 6
    while not bits & np.uint64(1):
        if not bits & np.uint64(0xFF):
            bits >>= np.uint64(8)
            at += 8
        else:
            bits >>= np.uint64(1)
            at += 1
    return at


@uncounted
def _list_labels(s, w, state):
    """List the labels of a state that can still lead below the target; False if out of room."""
    active, label = 0, s.state[state, col.FIRST]
    target = s.target[0]  # it may have fallen since the labels were stored
    while label >= 0:
        s.at[col.STEPS] += 1
        at, begin = (
            s.label[label, col.VALUES_AT],
            s.state[s.label[label, col.OF_STATE], col.BORDER_AT],
        )
        good = s.label_end[label] < target
        for i in range(s.state[state, col.BORDER_SIZE]):
            good &= s.values[at + i] + s.border_tail[begin + i] < target
        if good:
            if active >= len(w.active):
                return False
            w.active[active] = label
            active += 1
        label = s.label[label, col.AFTER]
    s.at[col.ACTIVE] = active
    return True


@uncounted
def _unpack(g, s, w, state):
    """Unpack a state into the scratch arrays, and begin an empty call."""
    units = len(g.memory)
    s.at[col.STEPS] += units
    for u in range(len(w.node)):
        w.node[u, col.OUTSIDE] = g.node[u, col.CONSUMERS]
        w.node[u, col.ENTERED] = 0
    for i in range(len(w.group)):
        w.group[i, col.GROUP_DONE] = 0
        w.group[i, col.GROUP_IN] = 0
        w.group[i, col.HOLDER] = col.CPUS
    for i in range(len(w.ready)):
        w.ready[i] = 0
    for x in range(units):
        w.unit[x, col.MISSING] = g.unit[x, col.PREDS]
        w.unit[x, col.IN_CALL] = 0
        w.unit[x, col.INSIDE] = s.key[state, x >> 6] >> np.uint64(x & 63) & np.uint64(1)
    for p in range(len(g.place)):
        w.path_in[0, p] = 0
    for x in range(units):
        if not w.unit[x, col.INSIDE]:
            continue
        if g.unit[x, col.GROUP] >= 0:
            w.group[g.unit[x, col.GROUP], col.GROUP_DONE] += 1
        for i in range(g.unit[x, col.SUCC], g.unit[x + 1, col.SUCC]):
            w.unit[g.lists[i], col.MISSING] -= 1
        for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
            w.node[g.lists[i], col.OUTSIDE] -= 1
        for p in range(len(g.place)):
            if g.place[p, x] >= 0:
                w.path_in[0, p] += 1
    for x in range(units):
        if not w.unit[x, col.INSIDE] and w.unit[x, col.MISSING] == 0:
            w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(s.state[state, col.BORDER_SIZE]):
        w.node[s.border[s.state[state, col.BORDER_AT] + i], col.PLACE] = i
    if g.divided:
        _read_owners(g, s, w, state)
    w.unit[0, col.OPENED] = 0
    w.unit[0, col.INPUTS] = 0
    w.unit[0, col.OWNER] = col.CPUS
    w.unit[0, col.OWNED] = 0
    for i in range(w.load.shape[1]):
        for k in range(w.load.shape[2]):
            w.load[0, i, k] = 0.0
    w.room[0] = 0.0
    for j in range(s.at[col.ACTIVE]):
        w.start[0, j] = 0.0


@uncounted
def _read_owners(g, s, w, state):
    """Read the holder of each open colour from the key, one byte each, by increasing colour.

    A byte is 0 for the CPUs, or 1 + number · K + kind for the owner of that number and kind.
    """
    kinds = len(g.capacity)
    word = len(w.ready)
    for o in range(s.state[state, col.OWNERS]):
        w.owner[o, col.OWNER_LEFT] = 0
    count = 0
    for i in range(len(w.group)):
        done = w.group[i, col.GROUP_DONE]
        if done == 0 or done == g.group_size[i]:
            continue
        bits = s.key[state, word + (count >> 3)] >> np.uint64(8 * (count & 7))
        byte = np.int64(bits & np.uint64(0xFF))
        if byte > 0:
            owner = (byte - 1) // kinds
            w.group[i, col.HOLDER] = owner
            w.owner[owner, col.OWNER_KIND] = (byte - 1) % kinds
            w.owner[owner, col.OWNER_LEFT] += g.group_size[i] - done
        w.group[count, col.OPEN_LIST] = i
        count += 1
    s.at[col.OPEN_GROUPS] = count


@uncounted
def close_call(g, s, w, d, single):
    """Close the call of `d` units: extend every label of the state by it."""
    opened, owner = w.unit[d, col.OPENED], w.unit[d, col.OWNER]
    if opened > 0 and (not g.divided or owner != col.CPUS):
        return  # no call is left for the rest of a colour
    if owner != col.CPUS and w.unit[d, col.OWNED] < w.owner[owner, col.OWNER_LEFT]:
        return
    target, state = s.target[0], s.at[col.STATE]
    s.at[col.STEPS] += d >> 2
    earliest = np.inf
    for j in range(s.at[col.ACTIVE]):
        earliest = min(earliest, w.start[d, j])
    memory, rest = w.room[d], 0.0
    if opened > 0:
        rest = _rest_of_colours(g, w, d)
    deepest, border, owners, new, key_of = 0.0, -1, 0, -1, -1
    for k in range(len(g.capacity)):
        load = w.load[d, col.COMPUTE, k] + w.load[d, col.IN, k] + w.load[d, col.OUT, k]
        if rest > g.capacity[k] - memory or earliest + load >= target:
            continue
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
            if owners > 0 and not _carry_owners(
                g, s, w, at, border, owners, code, (finish, memory)
            ):
                continue
            shape = (s.at[col.CARD] + d, border, border + 2 * owners)
            end = max(finish, s.label_end[label])
            new = insert(g, s, w, new, shape, (code, label, k), end, single)


@uncounted
def _add_bits(s, w, d):
    """Write the ideal including the call into the new key, without owners."""
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
    """Return the bytes of the units that the second call of this accelerator must take."""
    rest = 0.0
    for i in range(d):
        x = w.unit[i, col.STACK]
        group = g.unit[x, col.GROUP]
        if group >= 0 and w.group[group, col.GROUP_IN] < g.group_size[group]:
            rest += g.group_bytes[group] / w.group[group, col.GROUP_IN] - g.memory[x]
    return rest * (1 - 1e-9)


@uncounted
def _carry_owners(g, s, w, at, border, owners, code, own):
    """Write finish and bytes of the owners into the new label; False if there are too few calls.

    `own` holds the finish and the bytes of the call being closed.
    """
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
        w.vector[border + 2 * r], w.vector[border + 2 * r + 1] = own
    return True


@uncounted
def _promising(g, s, w, d, at, finish, code):
    """Return whether the path bounds allow a latency below the target.

    `finish` is that of the call being closed; −1 for a unit on CPUs, whose nodes have their own.
    """
    left = g.rest.shape[2] - 1 - g.code[code, len(g.capacity)]
    for p in range(len(g.place)):
        i = w.path_in[d, p]
        begin = 0.0
        for e in range(g.gates[p, i], g.gates[p, i + 1]):
            u = g.lists[e]
            if not w.unit[g.node[u, col.UNIT], col.IN_CALL]:
                begin = max(begin, s.values[at + w.node[u, col.PLACE]])
            else:
                begin = max(begin, finish if finish >= 0 else w.finish[u])
        if begin + g.rest[p, i, left] >= s.target[0]:
            return False
    return True


@uncounted
def _border(g, s, w, state, d):
    """List, sorted, the nodes of ideal and call that feed a unit outside; return their number."""
    size, i, last = 0, s.state[state, col.BORDER_AT], 0
    last = i + s.state[state, col.BORDER_SIZE]
    for j in range(d + 1):
        begin, end = len(w.node), len(w.node)  # last: the rest of the ideal's border
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
    """Return the least time from the finish of `u` to the end, by successors not yet placed."""
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
    # handled like a call of one unit whose nodes have finishes of their own
    depth, nobody = np.int64(1), np.int64(col.CPUS)  # literals would be compiled as constants
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
    """Extend every label of the state by unit `x` on the CPUs, node by node."""
    target, new = s.target[0], find(s, w.new_key)
    depth, nobody = np.int64(1), np.int64(col.CPUS)  # literals would be compiled as constants
    first, last = g.unit[x, col.NODE], g.unit[x + 1, col.NODE]
    finish, on_cpus = w.finish, np.float64(-1.0)
    s.at[col.STEPS] += 2 * s.at[col.ACTIVE]
    for j in range(s.at[col.ACTIVE]):
        label = w.active[j]
        at, code, end = s.label[label, col.VALUES_AT], s.label[label, col.CODE], s.label_end[label]
        good = True
        for u in range(first, last):
            ready = 0.0
            for i in range(g.node[u, col.FEED], g.node[u + 1, col.FEED]):
                f = g.lists[i]
                ready = max(ready, finish[f] if f >= first else s.values[at + w.node[f, col.PLACE]])
            finish[u] = ready + g.time[u, col.CPU_TIME]
            end = max(end, finish[u])
            good &= finish[u] < target
        if not good or not _promising(g, s, w, depth, at, on_cpus, code):
            continue
        for i in range(border):
            u = w.node[i, col.BORDER]
            here = g.node[u, col.UNIT] == x
            w.vector[i] = finish[u] if here else s.values[at + w.node[u, col.PLACE]]
            good &= w.vector[i] + w.tail[i] < target
        if owners > 0:
            good &= _carry_owners(g, s, w, at, border, owners, code, (0.0, 0.0))
        if good:
            shape = (s.at[col.CARD] + 1, border, border + 2 * owners)
            new = insert(g, s, w, new, shape, (code, label, nobody), end, single)


@uncounted
def extend_call(g, s, w, depth, x):
    """Try to add unit `x` to the call; return whether any label survives."""
    kinds = len(g.capacity)
    d = depth + 1
    group = g.unit[x, col.GROUP]
    owner, owned = w.unit[depth, col.OWNER], w.unit[depth, col.OWNED]
    if group >= 0 and w.group[group, col.GROUP_DONE] > 0:
        holder = w.group[group, col.HOLDER]
        if holder == col.CPUS or owner not in (col.CPUS, holder):
            return False  # part of its colour is on CPUs or another accelerator
        owner = holder
        owned += 1
    if g.unit[x, col.ASIDE] and not _keeps_output(g, w, x):
        return False
    memory = w.room[depth] + g.memory[x]
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
    w.room[d] = memory
    if not _start(g, s, w, d, x):
        for i in range(w.unit[depth, col.INPUTS], w.unit[d, col.INPUTS]):
            w.node[w.node[i, col.INPUT_LIST], col.ENTERED] = 0
        return False
    _take(g, w, d, x)
    return True


@uncounted
def _keeps_output(g, w, x):
    """Return whether the call holds an input of `x` that only units set aside need outside."""
    for i in range(g.unit[x, col.INPUT], g.unit[x + 1, col.INPUT]):
        u = g.lists[i]
        inside = w.unit[g.node[u, col.UNIT], col.IN_CALL]
        if inside and w.node[u, col.OUTSIDE] <= g.node[u, col.SINKS]:
            return True
    return False


@uncounted
def _best_with(g, w, depth, x):
    """Return whether a call is no better without the sink `x`: it and all units after it fit."""
    alone = w.unit[depth, col.OPENED] == 0 and w.unit[depth, col.OWNER] == col.CPUS
    if not g.unit[x, col.ASIDE] or not alone:
        return False
    held = w.room[depth]
    for y in range(x, len(g.memory)):
        held += g.memory[y]
    for k in range(len(g.capacity)):
        if g.compute[k, x] != 0.0 or held > g.capacity[k]:
            return False
    return True


@uncounted
def _start(g, s, w, d, x):
    """Update transfers and starts by the inputs of `x`; return whether a label survives."""
    kinds, active, depth = len(g.capacity), s.at[col.ACTIVE], d - 1
    memory, owner = w.room[d], w.unit[d, col.OWNER]
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
    if owner != col.CPUS:  # after its owner's first call, and with it in memory
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
    """Put `x` into the call, and update the ready units and the call's transfers."""
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
            for k in range(kinds):
                w.load[d, col.OUT, k] -= g.transfer[k, u]
    for u in range(g.unit[x, col.NODE], g.unit[x + 1, col.NODE]):
        if w.node[u, col.OUTSIDE] > 0:
            for k in range(kinds):
                w.load[d, col.OUT, k] += g.transfer[k, u]
    w.unit[d, col.OPENED] = w.unit[d - 1, col.OPENED]
    if group >= 0:
        w.group[group, col.GROUP_IN] += 1
        if w.group[group, col.GROUP_DONE] == 0:
            if w.group[group, col.GROUP_IN] == 1:
                w.unit[d, col.OPENED] += 1
            if w.group[group, col.GROUP_IN] == g.group_size[group]:
                w.unit[d, col.OPENED] -= 1


@uncounted
def undo(g, w, d):
    """Remove the unit added last, at depth `d`."""
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
    if g.unit[x, col.GROUP] >= 0:
        w.group[g.unit[x, col.GROUP], col.GROUP_IN] -= 1
    w.unit[x, col.IN_CALL] = 0
