"""The main loop of the latency label DP, in numba, run in slices.

Everything lives in arrays (`arrays.py`), so that a slice can end anywhere: when its step
budget is used up, so that the caller can look at the clock, or when an array is full, so that the
caller can enlarge it. See `dp.py` for what is computed, and why it is exact.
"""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel, uncounted
from . import arrays as col
from .extend_call_kernel import extend_call, undo
from .steps_kernel import close_call, cpu_step


@kernel
def run(g, s, w, single, budget):
    """Work until done, out of budget, or out of room in an array; return which.

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
            s.at[col.READY_AT] = 0
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
                s.at[col.READY_AT] += 1
            s.at[col.PHASE] = col.GROW
            s.at[col.DEPTH] = 0
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
                s.at[col.DEPTH] += 1
                close_call(g, s, w, depth + 1, single)
        s.at[col.PHASE] = col.NEXT


@uncounted
def _has_room(g, s):
    """Whether the arrays can take what one call may add; DONE, or which of them is full."""
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
    """First ready unit from `at` on, −1 if there is none."""
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
    target = s.target[0]  # it may have come down since they were stored
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
    for t in range(len(w.touched)):
        w.touched[t] = 0
    w.unit[0, col.OPENED] = 0
    w.unit[0, col.INPUTS] = 0
    w.unit[0, col.OWNER] = col.CPUS
    w.unit[0, col.OWNED] = 0
    for i in range(w.load.shape[1]):
        for k in range(w.load.shape[2]):
            w.load[0, i, k] = 0.0
    w.room[0, 0] = 0.0
    w.room[0, 1] = 0.0
    for j in range(s.at[col.ACTIVE]):
        w.start[0, j] = 0.0


@uncounted
def _read_owners(g, s, w, state):
    """Read from the key who holds each open colour: a byte each, by increasing colour.

    0: the CPUs; 1 + number · K + kind: the owner of that number, an accelerator of that kind.
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
