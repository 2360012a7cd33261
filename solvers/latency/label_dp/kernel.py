"""The main loop of the latency label DP, in numba, run in slices.

Everything lives in arrays (`arrays.py`), so that a slice can end anywhere: when its step
budget is used up, so that the caller can look at the clock, or when an array is full, so that the
caller can enlarge it. See `dp.py` for what is computed, and why it is exact.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ....formulations.compiled import inner
from .arrays import (
    ACTIVE,
    ACTIVE_FULL,
    AFTER,
    BORDER_AT,
    BORDER_FULL,
    BORDER_SIZE,
    BUDGET,
    CARD,
    CONSUMERS,
    CPU_STEPS,
    CPUS,
    CURSOR,
    DEPTH,
    DONE,
    ENTERED,
    FIRST,
    GROUP,
    GROUP_DONE,
    GROUP_IN,
    GROW,
    HOLDER,
    IN_CALL,
    INPUT,
    INPUTS,
    INSIDE,
    LABELS_FULL,
    MISSING,
    N_BORDER,
    N_LABELS,
    N_STATES,
    N_VALUES,
    NEXT,
    OF_STATE,
    OPEN_GROUPS,
    OPEN_LIST,
    OPENED,
    OUTSIDE,
    OWNED,
    OWNER,
    OWNER_KIND,
    OWNER_LEFT,
    OWNERS,
    PHASE,
    PLACE,
    PREDS,
    READY_AT,
    SIBLING,
    STATE,
    STATES_FULL,
    STEPS,
    SUCC,
    VALUES_AT,
    VALUES_FULL,
)  # fmt: skip
from .grow import grow, take_back
from .steps import cpu_step, emit


@njit(cache=True, nogil=True)
def run(g, s, w, single, budget):  # type: ignore[no-untyped-def]
    """Work until done, out of budget, or out of room in an array; return which.

    `single` keeps only the most promising label of each state and code: a fast heuristic.
    """
    units = len(g.memory)
    last = s.at[STEPS] + budget
    while True:
        if s.at[STEPS] >= last:
            return BUDGET
        if s.at[PHASE] == NEXT:
            while s.at[CARD] < units and s.by_card[s.at[CARD]] < 0:
                s.at[CARD] += 1
            if s.at[CARD] >= units:
                return DONE
            state = s.by_card[s.at[CARD]]
            if not _list_labels(s, w, state):
                return ACTIVE_FULL
            s.by_card[s.at[CARD]] = s.state[state, SIBLING]
            s.at[STATE] = state
            if s.at[ACTIVE] == 0:
                continue
            _unpack(g, s, w, state)
            s.at[PHASE] = CPU_STEPS
            s.at[READY_AT] = 0
        if s.at[PHASE] == CPU_STEPS:
            while s.at[READY_AT] < units:
                x = s.at[READY_AT]
                if s.at[STEPS] >= last:
                    return BUDGET
                if w.ready[x >> 6] >> np.uint64(x & 63) & np.uint64(1):
                    code = _has_room(g, s)
                    if code != DONE:
                        return code
                    cpu_step(g, s, w, x, single)
                s.at[READY_AT] += 1
            s.at[PHASE] = GROW
            s.at[DEPTH] = 0
            w.unit[0, CURSOR] = 0
        while s.at[DEPTH] >= 0:
            if s.at[STEPS] >= last:
                return BUDGET
            code = _has_room(g, s)
            if code != DONE:
                return code
            depth = s.at[DEPTH]
            x = _next_ready(w.ready, w.unit[depth, CURSOR])
            if x < 0:
                if depth > 0:
                    take_back(g, w, depth)
                s.at[DEPTH] -= 1
                continue
            w.unit[depth, CURSOR] = x + 1
            s.at[STEPS] += 4 + s.at[ACTIVE]
            if grow(g, s, w, depth, x):
                s.at[DEPTH] += 1
                emit(g, s, w, depth + 1, single)
        s.at[PHASE] = NEXT


@inner
def _has_room(g, s):  # type: ignore[no-untyped-def]
    """Whether the arrays can take what one emission may add."""
    labels = s.at[ACTIVE] * max(len(g.capacity), 1)
    nodes = len(g.time)
    if s.at[N_STATES] + len(g.capacity) + 1 > len(s.state):
        return STATES_FULL
    if 2 * (s.at[N_STATES] + len(g.capacity) + 1) > len(s.table):
        return STATES_FULL
    if s.at[N_LABELS] + labels > len(s.label):
        return LABELS_FULL
    if s.at[N_VALUES] + labels * (nodes + 32) > len(s.values):
        return VALUES_FULL
    if s.at[N_BORDER] + nodes * (len(g.capacity) + 1) > len(s.border):
        return BORDER_FULL
    return DONE


@inner
def _next_ready(ready, at):  # type: ignore[no-untyped-def]
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


@inner
def _list_labels(s, w, state):  # type: ignore[no-untyped-def]
    """List the labels of a state that can still lead below the target; False if out of room."""
    active, label = 0, s.state[state, FIRST]
    target = s.target[0]  # it may have come down since they were stored
    while label >= 0:
        s.at[STEPS] += 1
        at, begin = s.label[label, VALUES_AT], s.state[s.label[label, OF_STATE], BORDER_AT]
        good = s.label_end[label] < target
        for i in range(s.state[state, BORDER_SIZE]):
            good &= s.values[at + i] + s.border_tail[begin + i] < target
        if good:
            if active >= len(w.active):
                return False
            w.active[active] = label
            active += 1
        label = s.label[label, AFTER]
    s.at[ACTIVE] = active
    return True


@inner
def _unpack(g, s, w, state):  # type: ignore[no-untyped-def]
    """Write down what a state holds, and begin an empty call."""
    units = len(g.memory)
    s.at[STEPS] += units
    for u in range(len(w.node)):
        w.node[u, OUTSIDE] = g.node[u, CONSUMERS]
        w.node[u, ENTERED] = 0
    for i in range(len(w.group)):
        w.group[i, GROUP_DONE] = 0
        w.group[i, GROUP_IN] = 0
        w.group[i, HOLDER] = CPUS
    for i in range(len(w.ready)):
        w.ready[i] = 0
    for x in range(units):
        w.unit[x, MISSING] = g.unit[x, PREDS]
        w.unit[x, IN_CALL] = 0
        w.unit[x, INSIDE] = s.key[state, x >> 6] >> np.uint64(x & 63) & np.uint64(1)
    for p in range(len(g.place)):
        w.path_in[0, p] = 0
    for x in range(units):
        if not w.unit[x, INSIDE]:
            continue
        if g.unit[x, GROUP] >= 0:
            w.group[g.unit[x, GROUP], GROUP_DONE] += 1
        for i in range(g.unit[x, SUCC], g.unit[x + 1, SUCC]):
            w.unit[g.lists[i], MISSING] -= 1
        for i in range(g.unit[x, INPUT], g.unit[x + 1, INPUT]):
            w.node[g.lists[i], OUTSIDE] -= 1
        for p in range(len(g.place)):
            if g.place[p, x] >= 0:
                w.path_in[0, p] += 1
    for x in range(units):
        if not w.unit[x, INSIDE] and w.unit[x, MISSING] == 0:
            w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(s.state[state, BORDER_SIZE]):
        w.node[s.border[s.state[state, BORDER_AT] + i], PLACE] = i
    if g.divided:
        _read_owners(g, s, w, state)
    for t in range(len(w.touched)):
        w.touched[t] = 0
    w.unit[0, OPENED] = 0
    w.unit[0, INPUTS] = 0
    w.unit[0, OWNER] = CPUS
    w.unit[0, OWNED] = 0
    for i in range(w.load.shape[1]):
        for k in range(w.load.shape[2]):
            w.load[0, i, k] = 0.0
    w.room[0, 0] = 0.0
    w.room[0, 1] = 0.0
    for j in range(s.at[ACTIVE]):
        w.start[0, j] = 0.0


@inner
def _read_owners(g, s, w, state):  # type: ignore[no-untyped-def]
    """Read from the key who holds each open colour: a byte each, by increasing colour.

    0: the CPUs; 1 + number · K + kind: the owner of that number, an accelerator of that kind.
    """
    kinds = len(g.capacity)
    word = len(w.ready)
    for o in range(s.state[state, OWNERS]):
        w.owner[o, OWNER_LEFT] = 0
    count = 0
    for i in range(len(w.group)):
        done = w.group[i, GROUP_DONE]
        if done == 0 or done == g.group_size[i]:
            continue
        bits = s.key[state, word + (count >> 3)] >> np.uint64(8 * (count & 7))
        byte = np.int64(bits & np.uint64(0xFF))
        if byte > 0:
            owner = (byte - 1) // kinds
            w.group[i, HOLDER] = owner
            w.owner[owner, OWNER_KIND] = (byte - 1) % kinds
            w.owner[owner, OWNER_LEFT] += g.group_size[i] - done
        w.group[count, OPEN_LIST] = i
        count += 1
    s.at[OPEN_GROUPS] = count
