"""The inner loops of the latency label DP, in numba, run in slices.

Everything lives in arrays (`Graph`, `Store`, `Work`), so that a slice can end anywhere: when its
step budget is used up, so that the caller can look at the clock, or when an array is full, so
that the caller can enlarge it. See `latency_dp` for what is computed, and why it is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

# What a slice ends with.
DONE, BUDGET, STATES_FULL, LABELS_FULL, VALUES_FULL, BORDER_FULL, ACTIVE_FULL = range(7)

# Places in `Store.at`: where the run stands.
(
    N_STATES, N_LABELS, N_VALUES, N_BORDER, PHASE, CARD, STATE, DEPTH, ACTIVE, READY_AT,
    BEST_LABEL, STEPS,
) = range(12)  # fmt: skip

# Values of PHASE.
NEXT, CPU_STEPS, GROW = range(3)

Array = Any  # numpy arrays; numba infers their types


class Graph(NamedTuple):
    """The reduced problem; C units in topological order, N nodes sorted by unit, K kinds."""

    words: int
    succ_start: Array
    succ: Array
    pred_count: Array
    node_start: Array  # (C+1,) nodes of a unit are consecutive, in topological order
    feed_start: Array  # (N+1,) predecessors of each node
    feed: Array
    input_start: Array  # (C+1,) nodes outside each unit that feed it
    inputs: Array
    unit_of: Array  # (N,)
    consumers: Array  # (N,) how many other units it feeds
    compute: Array  # (K, C)
    memory: Array  # (C,)
    cpu: Array  # (N,)
    transfer: Array  # (K, N)
    next_start: Array  # (N+1,) successors of each node
    next: Array
    depth: Array  # (N,) least time from its start to the end
    group: Array  # (C,) colour of which the unit is a part, −1
    group_size: Array
    sink_bytes: Array  # (N,) memory of its sink satellites
    sinks: Array  # (N,) 0: none, 1: an accelerator may take them, 2: it may not
    source_start: Array  # (C+1,) source satellites that feed each unit
    source_list: Array
    source_feeds: Array  # (T,) how many units each feeds; more than there are if never taken
    source_bytes: Array
    source_transfer: Array  # (K, T)
    capacity: Array  # (K,)
    code_left: Array  # (codes, K) calls left
    code_used: Array  # (codes,) calls used in all
    code_step: Array  # (K,)
    code_leq: Array  # (codes, codes) whether the first uses no more calls of any kind
    path_place: Array  # (P, C) place of each unit on the path, −1 off it
    path_length: Array  # (P,)
    path_feed_start: Array  # (P, L+1) nodes of unit i−1 on the path that feed unit i
    path_feed: Array
    path_rest: Array  # (P, L+1, X+1)
    path_from: Array  # (P, L, L, X+1): min over j' ≥ j of L(i, j') + D[j'+1][x−1]


class Store(NamedTuple):
    """States (downsets) and their labels."""

    at: Array
    target: Array  # (1,) only plans better than this matter
    table: Array  # hash table of states
    key: Array  # (states, words)
    border_at: Array
    border_size: Array
    first_label: Array
    next_state: Array  # of the same size
    by_card: Array  # (C+1,) first state of each size
    border: Array
    border_tail: Array  # least time from the node's finish to the end
    label_state: Array
    label_code: Array
    label_parent: Array
    label_kind: Array  # −1 for a CPU step
    label_next: Array
    label_value_at: Array
    label_end: Array  # last finish so far
    values: Array  # finish times on the border


class Work(NamedTuple):
    """The state being expanded, and the call being grown."""

    inside: Array  # (C,) in the downset
    ready: Array  # (words,) bits
    missing: Array  # (C,) predecessors outside downset and call
    outside: Array  # (N,) units fed that lie outside downset and call
    place: Array  # (N,) position on the border
    active: Array  # (A,) labels
    start: Array  # (C+1, A)
    stack: Array  # (C,)
    cursor: Array  # (C+1,)
    in_call: Array  # (C,)
    entered: Array  # (N,) inputs counted
    touched: Array  # (T,) units of the call that a source satellite feeds
    group_in: Array  # (G,) units of the call
    group_done: Array  # (G,) units of the downset
    open_groups: Array  # (C+1,)
    load: Array  # (C+1, 4, K): compute, in, satellites in, out
    room: Array  # (C+1, 2): bytes of the call, bytes of satellites that could be taken
    saving: Array  # (C+1, K)
    path_at: Array  # (P,) first place outside the downset
    path_in: Array  # (C+1, P) first place outside downset and call
    new_key: Array
    new_border: Array
    new_tail: Array
    vector: Array
    entered_list: Array  # (N,) inputs in the order counted
    entered_size: Array  # (C+1,)


@njit(cache=True, nogil=True)
def run(g, s, w, single, budget):  # type: ignore[no-untyped-def]
    """Work until done, out of budget, or out of room in an array; return which.

    `single` keeps only the most promising label of each state and code: a fast heuristic.
    """
    units = len(g.pred_count)
    kinds = len(g.capacity)
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
            code = _open(g, s, w, state)
            if code != DONE:
                return code
            s.by_card[s.at[CARD]] = s.next_state[state]
            s.at[STATE] = state
            if s.at[ACTIVE] == 0:
                continue
            s.at[PHASE] = CPU_STEPS
            s.at[READY_AT] = 0
        if s.at[PHASE] == CPU_STEPS:
            while s.at[READY_AT] < units:
                x = s.at[READY_AT]
                if s.at[STEPS] >= last:
                    return BUDGET
                if w.ready[x >> 6] >> np.uint64(x & 63) & np.uint64(1):
                    code = _has_room(g, s, 1)
                    if code != DONE:
                        return code
                    _cpu_step(g, s, w, x, single)
                s.at[READY_AT] += 1
            s.at[PHASE] = GROW
            s.at[DEPTH] = 0
            w.cursor[0] = 0
        while s.at[DEPTH] >= 0:
            if s.at[STEPS] >= last:
                return BUDGET
            code = _has_room(g, s, kinds)
            if code != DONE:
                return code
            depth = s.at[DEPTH]
            x = _next_ready(w.ready, w.cursor[depth])
            if x < 0:
                if depth > 0:
                    _take_back(g, w, depth)
                s.at[DEPTH] -= 1
                continue
            w.cursor[depth] = x + 1
            s.at[STEPS] += 4 + s.at[ACTIVE]
            if _grow(g, s, w, depth, x):
                s.at[DEPTH] += 1
                if w.open_groups[depth + 1] == 0:
                    _emit(g, s, w, depth + 1, single)
        s.at[PHASE] = NEXT


@njit(cache=True, nogil=True)
def _has_room(g, s, kinds):  # type: ignore[no-untyped-def]
    """Whether the arrays can take what one emission may add."""
    labels = s.at[ACTIVE] * kinds
    nodes = len(g.depth)
    if s.at[N_STATES] + 1 > len(s.first_label) or 2 * s.at[N_STATES] + 2 > len(s.table):
        return STATES_FULL
    if s.at[N_LABELS] + labels > len(s.label_state):
        return LABELS_FULL
    if s.at[N_VALUES] + labels * nodes > len(s.values):
        return VALUES_FULL
    if s.at[N_BORDER] + nodes > len(s.border):
        return BORDER_FULL
    return DONE


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _open(g, s, w, state):  # type: ignore[no-untyped-def]
    """Unpack a state into `w`."""
    units = len(g.pred_count)
    active, label = 0, s.first_label[state]
    while label >= 0:
        s.at[STEPS] += 1
        if _worth(s, label):
            if active >= len(w.active):
                return ACTIVE_FULL
            w.active[active] = label
            active += 1
        label = s.label_next[label]
    s.at[ACTIVE] = active
    if active == 0:
        return DONE
    s.at[STEPS] += units
    w.missing[:] = g.pred_count
    w.outside[:] = g.consumers
    w.group_done[:] = 0
    w.ready[:] = 0
    for x in range(units):
        w.inside[x] = s.key[state, x >> 6] >> np.uint64(x & 63) & np.uint64(1)
        w.in_call[x] = False
        if w.inside[x]:
            if g.group[x] >= 0:
                w.group_done[g.group[x]] += 1
            for i in range(g.succ_start[x], g.succ_start[x + 1]):
                w.missing[g.succ[i]] -= 1
            for i in range(g.input_start[x], g.input_start[x + 1]):
                w.outside[g.inputs[i]] -= 1
    for x in range(units):
        if not w.inside[x] and w.missing[x] == 0:
            w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(s.border_size[state]):
        w.place[s.border[s.border_at[state] + i]] = i
    for p in range(len(g.path_length)):
        w.path_at[p] = _first_outside(g, w, p)
        w.path_in[0, p] = w.path_at[p]
    w.entered[:] = False
    w.touched[:] = 0
    w.group_in[:] = 0
    w.open_groups[0] = 0
    w.load[0] = 0.0
    w.room[0] = 0.0
    w.saving[0] = 0.0
    w.entered_size[0] = 0
    w.start[0, :active] = 0.0
    return DONE


@njit(cache=True, nogil=True)
def _first_outside(g, w, p):  # type: ignore[no-untyped-def]
    count = 0
    for x in range(len(g.pred_count)):
        if g.path_place[p, x] >= 0 and w.inside[x]:
            count += 1
    return count


@njit(cache=True, nogil=True)
def _worth(s, label):  # type: ignore[no-untyped-def]
    """Whether a stored label can still lead below the target, which may have come down since."""
    target = s.target[0]
    if s.label_end[label] >= target:
        return False
    state, at = s.label_state[label], s.label_value_at[label]
    for i in range(s.border_size[state]):
        if s.values[at + i] + s.border_tail[s.border_at[state] + i] >= target:
            return False
    return True


@njit(cache=True, nogil=True)
def _grow(g, s, w, depth, x):  # type: ignore[no-untyped-def]
    """Try to add unit `x` to the call; return whether any label survives it."""
    kinds = len(g.capacity)
    d = depth + 1
    group = g.group[x]
    if group >= 0 and w.group_done[group] > 0:
        return False  # a part of its colour is on CPUs already
    memory = w.room[depth, 0] + g.memory[x]
    fits = False
    for k in range(kinds):
        compute = w.load[depth, 0, k] + g.compute[k, x]
        w.load[d, 0, k] = compute
        w.load[d, 1, k] = w.load[depth, 1, k]
        w.load[d, 2, k] = w.load[depth, 2, k]
        w.load[d, 3, k] = w.load[depth, 3, k]
        w.saving[d, k] = w.saving[depth, k]
        fits |= memory <= g.capacity[k] and compute < np.inf
    if not fits:
        return False
    w.room[d, 0] = memory
    w.room[d, 1] = w.room[depth, 1]
    w.entered_size[d] = w.entered_size[depth]

    # inputs from the downset: transfers in, and starts
    active = s.at[ACTIVE]
    for i in range(active):
        w.start[d, i] = w.start[depth, i]
    for i in range(g.input_start[x], g.input_start[x + 1]):
        u = g.inputs[i]
        if w.in_call[g.unit_of[u]] or w.entered[u]:
            continue
        w.entered[u] = True
        w.entered_list[w.entered_size[d]] = u
        w.entered_size[d] += 1
        for k in range(kinds):
            w.load[d, 1, k] += g.transfer[k, u]
        for j in range(active):
            value = s.values[s.label_value_at[w.active[j]] + w.place[u]]
            w.start[d, j] = max(w.start[d, j], value)
    least = np.inf
    for k in range(kinds):
        if memory <= g.capacity[k]:
            least = min(least, w.load[d, 0, k] + w.load[d, 1, k])
    target = s.target[0]
    for p in range(len(g.path_length)):
        w.path_in[d, p] = w.path_in[depth, p]
        if g.path_place[p, x] >= 0:
            w.path_in[d, p] = g.path_place[p, x] + 1
    alive = False
    for j in range(active):
        if w.start[d, j] == np.inf:
            continue
        label = w.active[j]
        code = s.label_code[label]
        left = g.code_left[code].sum()
        good = left > 0 and w.start[d, j] + least < target
        for p in range(len(g.path_length)):
            if good and w.path_in[d, p] > w.path_at[p]:
                after = g.path_from[p, w.path_at[p], w.path_in[d, p] - 1, left]
                good = w.start[d, j] + after < target
        if good:
            alive = True
        else:
            w.start[d, j] = np.inf
    if not alive:
        for i in range(w.entered_size[depth], w.entered_size[d]):
            w.entered[w.entered_list[i]] = False
        return False

    # now it is in: what it feeds, and what it completes
    w.stack[depth] = x
    w.in_call[x] = True
    w.cursor[d] = x + 1
    w.ready[x >> 6] &= ~(np.uint64(1) << np.uint64(x & 63))
    for i in range(g.succ_start[x], g.succ_start[x + 1]):
        y = g.succ[i]
        w.missing[y] -= 1
        if w.missing[y] == 0:
            w.ready[y >> 6] |= np.uint64(1) << np.uint64(y & 63)
    for i in range(g.input_start[x], g.input_start[x + 1]):
        u = g.inputs[i]
        w.outside[u] -= 1
        if w.outside[u] == 0 and w.in_call[g.unit_of[u]]:
            _complete(g, w, d, u)
    for u in range(g.node_start[x], g.node_start[x + 1]):
        if w.outside[u] > 0 or g.sinks[u] > 0:
            for k in range(kinds):
                w.load[d, 3, k] += g.transfer[k, u]
            if w.outside[u] == 0:
                _offer_sinks(g, w, d, u)
    for i in range(g.source_start[x], g.source_start[x + 1]):
        t = g.source_list[i]
        w.touched[t] += 1
        for k in range(kinds):
            if w.touched[t] == 1:
                w.load[d, 2, k] += g.source_transfer[k, t]
            if w.touched[t] == g.source_feeds[t]:
                w.saving[d, k] += g.source_transfer[k, t]
        if w.touched[t] == g.source_feeds[t]:
            w.room[d, 1] += g.source_bytes[t]
    w.open_groups[d] = w.open_groups[depth]
    if group >= 0:
        w.group_in[group] += 1
        if w.group_in[group] == 1:
            w.open_groups[d] += 1
        if w.group_in[group] == g.group_size[group]:
            w.open_groups[d] -= 1
    return True


@njit(cache=True, nogil=True)
def _complete(g, w, d, u):  # type: ignore[no-untyped-def]
    """Node `u` of the call feeds no unit outside any more."""
    if g.sinks[u] == 0:
        for k in range(len(g.capacity)):
            w.load[d, 3, k] -= g.transfer[k, u]
    else:
        _offer_sinks(g, w, d, u)


@njit(cache=True, nogil=True)
def _offer_sinks(g, w, d, u):  # type: ignore[no-untyped-def]
    """If the call took the sink satellites of `u`, its output would not leave."""
    if g.sinks[u] == 1:
        w.room[d, 1] += g.sink_bytes[u]
        for k in range(len(g.capacity)):
            w.saving[d, k] += g.transfer[k, u]


@njit(cache=True, nogil=True)
def _take_back(g, w, d):  # type: ignore[no-untyped-def]
    """Remove the unit that was added last, at depth `d`."""
    x = w.stack[d - 1]
    for i in range(g.input_start[x], g.input_start[x + 1]):
        w.outside[g.inputs[i]] += 1
    for i in range(w.entered_size[d - 1], w.entered_size[d]):
        w.entered[w.entered_list[i]] = False
    for i in range(g.succ_start[x], g.succ_start[x + 1]):
        y = g.succ[i]
        if w.missing[y] == 0:
            w.ready[y >> 6] &= ~(np.uint64(1) << np.uint64(y & 63))
        w.missing[y] += 1
    w.ready[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    for i in range(g.source_start[x], g.source_start[x + 1]):
        w.touched[g.source_list[i]] -= 1
    if g.group[x] >= 0:
        w.group_in[g.group[x]] -= 1
    w.in_call[x] = False


@njit(cache=True, nogil=True)
def _emit(g, s, w, d, single):  # type: ignore[no-untyped-def]
    """The call may end here: extend every label that survives it."""
    kinds = len(g.capacity)
    target = s.target[0]
    state = s.at[STATE]
    card = s.at[CARD] + d
    s.at[STEPS] += d >> 2
    earliest = np.inf
    for j in range(s.at[ACTIVE]):
        earliest = min(earliest, w.start[d, j])
    border = -1  # not known yet
    new = -1
    deepest = 0.0
    for k in range(kinds):
        memory = w.room[d, 0]
        load = w.load[d, 0, k] + w.load[d, 1, k] + w.load[d, 2, k] + w.load[d, 3, k]
        if memory > g.capacity[k] or earliest + load - w.saving[d, k] >= target:
            continue
        free = g.capacity[k] - memory
        if w.room[d, 1] <= free:
            load -= w.saving[d, k]
        else:
            load -= _best_saving(g, w, d, k, free)
        if border < 0:
            for x in w.stack[:d]:
                for u in range(g.node_start[x], g.node_start[x + 1]):
                    if w.outside[u] > 0:
                        deepest = max(deepest, _tail(g, w, u))
        for j in range(s.at[ACTIVE]):
            finish = w.start[d, j] + load
            label = w.active[j]
            if not finish + deepest < target or g.code_left[s.label_code[label], k] == 0:
                continue
            code = s.label_code[label] + g.code_step[k]
            end = max(finish, s.label_end[label])
            if border < 0:
                w.new_key[:] = s.key[state]
                for x in w.stack[:d]:
                    w.new_key[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
                new = _find(s, w.new_key)
                border = _border(g, s, w, state, d)
            s.at[STEPS] += border
            at = s.label_value_at[label]
            for i in range(border):
                u = w.new_border[i]
                w.vector[i] = finish if w.in_call[g.unit_of[u]] else s.values[at + w.place[u]]
            if not _promising(g, s, w, d, at, finish, code):
                continue
            new = _insert(g, s, w, new, card, border, code, end, label, k, single)


@njit(cache=True, nogil=True)
def _promising(g, s, w, d, at, finish, code):  # type: ignore[no-untyped-def]
    """Whether the paths allow a label below the target."""
    calls = g.path_rest.shape[2] - 1
    left = calls - g.code_used[code]
    for p in range(len(g.path_length)):
        i = w.path_in[d, p]
        rest = g.path_rest[p, i, left]
        begin = 0.0
        for e in range(g.path_feed_start[p, i], g.path_feed_start[p, i + 1]):
            u = g.path_feed[e]
            value = finish if w.in_call[g.unit_of[u]] else s.values[at + w.place[u]]
            begin = max(begin, value)
        if begin + rest >= s.target[0]:
            return False
    return True


@njit(cache=True, nogil=True)
def _border(g, s, w, state, d):  # type: ignore[no-untyped-def]
    """List the nodes of downset and call that feed a unit outside; both parts come sorted."""
    size, i, last = 0, 0, s.border_size[state]
    base = s.border_at[state]
    for x in w.stack[:d]:
        for u in range(g.node_start[x], g.node_start[x + 1]):
            if w.outside[u] == 0:
                continue
            while i < last and s.border[base + i] < u:
                if w.outside[s.border[base + i]] > 0:
                    w.new_border[size] = s.border[base + i]
                    size += 1
                i += 1
            w.new_border[size] = u
            size += 1
    while i < last:
        if w.outside[s.border[base + i]] > 0:
            w.new_border[size] = s.border[base + i]
            size += 1
        i += 1
    for i in range(size):
        w.new_tail[i] = _tail(g, w, w.new_border[i])
    return size


@njit(cache=True, nogil=True)
def _tail(g, w, u):  # type: ignore[no-untyped-def]
    """Least time from the finish of `u` to the end: through successors not in downset or call."""
    tail = 0.0
    for i in range(g.next_start[u], g.next_start[u + 1]):
        y = g.next[i]
        if not w.inside[g.unit_of[y]] and not w.in_call[g.unit_of[y]]:
            tail = max(tail, g.depth[y])
    return tail


@njit(cache=True, nogil=True)
def _cpu_step(g, s, w, x, single):  # type: ignore[no-untyped-def]
    """Put the ready unit `x` on the CPUs."""
    target = s.target[0]
    state = s.at[STATE]
    for u in range(g.node_start[x], g.node_start[x + 1]):
        if g.cpu[u] == np.inf:
            return
    # treat it as a call of one unit with finishes of its own
    w.stack[0] = x
    w.in_call[x] = True
    for i in range(g.input_start[x], g.input_start[x + 1]):
        w.outside[g.inputs[i]] -= 1
    for p in range(len(g.path_length)):
        w.path_in[1, p] = w.path_at[p] + (g.path_place[p, x] >= 0)
    w.new_key[:] = s.key[state]
    w.new_key[x >> 6] |= np.uint64(1) << np.uint64(x & 63)
    card = s.at[CARD] + 1
    border = _border(g, s, w, state, 1)
    new = _find(s, w.new_key)
    first = g.node_start[x]
    finish = np.empty(g.node_start[x + 1] - first)
    calls = g.path_rest.shape[2] - 1
    s.at[STEPS] += 2 * s.at[ACTIVE]
    for j in range(s.at[ACTIVE]):
        label = w.active[j]
        at = s.label_value_at[label]
        end = s.label_end[label]
        good = True
        for u in range(first, g.node_start[x + 1]):
            ready = 0.0
            for i in range(g.feed_start[u], g.feed_start[u + 1]):
                f = g.feed[i]
                if f >= first:
                    ready = max(ready, finish[f - first])
                else:
                    ready = max(ready, s.values[at + w.place[f]])
            finish[u - first] = ready + g.cpu[u]
            end = max(end, finish[u - first])
            good &= finish[u - first] < target
        code = s.label_code[label]
        left = calls - g.code_used[code]
        for p in range(len(g.path_length)):
            i = w.path_in[1, p]
            begin = 0.0
            for e in range(g.path_feed_start[p, i], g.path_feed_start[p, i + 1]):
                u = g.path_feed[e]
                if g.unit_of[u] == x:
                    begin = max(begin, finish[u - first])
                else:
                    begin = max(begin, s.values[at + w.place[u]])
            good &= begin + g.path_rest[p, i, left] < target
        if not good:
            continue
        for i in range(border):
            u = w.new_border[i]
            if g.unit_of[u] == x:
                w.vector[i] = finish[u - first]
            else:
                w.vector[i] = s.values[at + w.place[u]]
            good &= w.vector[i] + w.new_tail[i] < target
        if good:
            new = _insert(g, s, w, new, card, border, code, end, label, -1, single)
    for i in range(g.input_start[x], g.input_start[x + 1]):
        w.outside[g.inputs[i]] += 1
    w.in_call[x] = False


@njit(cache=True, nogil=True)
def _hash(key):  # type: ignore[no-untyped-def]
    h = np.uint64(1469598103934665603)
    for word in key:
        h ^= word
        h *= np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    return h


@njit(cache=True, nogil=True)
def _find(s, key):  # type: ignore[no-untyped-def]
    """Number of the state `key`, −1 if there is none."""
    mask = len(s.table) - 1
    at = np.int64(_hash(key) & np.uint64(mask))
    while s.table[at] >= 0:
        if np.all(s.key[s.table[at]] == key):
            return s.table[at]
        at = (at + 1) & mask
    return -1


@njit(cache=True, nogil=True)
def rehash(table, key, count):  # type: ignore[no-untyped-def]
    """Enter the first `count` states into an empty hash table."""
    mask = len(table) - 1
    for state in range(count):
        at = np.int64(_hash(key[state]) & np.uint64(mask))
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = state


@njit(cache=True, nogil=True)
def _insert(g, s, w, state, card, border, code, end, parent, kind, single):  # type: ignore[no-untyped-def]
    """Add a label unless another one is at least as good in all; return its state."""
    if state < 0:
        state = s.at[N_STATES]
        s.at[N_STATES] += 1
        s.key[state] = w.new_key
        mask = len(s.table) - 1
        at = np.int64(_hash(w.new_key) & np.uint64(mask))
        while s.table[at] >= 0:
            at = (at + 1) & mask
        s.table[at] = state
        s.border_at[state] = s.at[N_BORDER]
        s.border_size[state] = border
        for i in range(border):
            s.border[s.at[N_BORDER] + i] = w.new_border[i]
            s.border_tail[s.at[N_BORDER] + i] = w.new_tail[i]
        s.at[N_BORDER] += border
        s.first_label[state] = -1
        s.next_state[state] = s.by_card[card]
        s.by_card[card] = state
    before, label = -1, s.first_label[state]
    mine = 0.0
    if single:
        mine = _estimate(w.new_tail, w.vector, 0, 0, border, end)
    while label >= 0:
        s.at[STEPS] += 1
        after = s.label_next[label]
        at = s.label_value_at[label]
        other = s.label_code[label]
        if single and other == code:
            tails, there = s.border_tail, s.border_at[state]
            if _estimate(tails, s.values, there, at, border, s.label_end[label]) <= mine:
                return state
            worse = True
        else:
            if g.code_leq[other, code] and s.label_end[label] <= end:
                better = True
                for i in range(border):
                    if s.values[at + i] > w.vector[i]:
                        better = False
                        break
                if better:
                    return state
            worse = g.code_leq[code, other] and end <= s.label_end[label]
            if worse:
                for i in range(border):
                    if w.vector[i] > s.values[at + i]:
                        worse = False
                        break
        if worse:
            if before < 0:
                s.first_label[state] = after
            else:
                s.label_next[before] = after
        else:
            before = label
        label = after
    new = s.at[N_LABELS]
    s.at[N_LABELS] += 1
    s.label_state[new] = state
    s.label_code[new] = code
    s.label_parent[new] = parent
    s.label_kind[new] = kind
    s.label_end[new] = end
    s.label_value_at[new] = s.at[N_VALUES]
    for i in range(border):
        s.values[s.at[N_VALUES] + i] = w.vector[i]
    s.at[N_VALUES] += border
    s.label_next[new] = s.first_label[state]
    s.first_label[state] = new
    if card == len(g.pred_count) and end < s.target[0]:
        s.target[0] = end
        s.at[BEST_LABEL] = new
    return state


@njit(cache=True, nogil=True)
def _estimate(tails, values, tail_at, value_at, size, end):  # type: ignore[no-untyped-def]
    """How promising a label is: the last finish that its border can lead to, at least."""
    worst, total = end, 0.0
    for i in range(size):
        value = values[value_at + i] + tails[tail_at + i]
        worst = max(worst, value)
        total += values[value_at + i]
    return worst + 1e-6 * total / (size + 1)


@njit(cache=True, nogil=True)
def _best_saving(g, w, d, k, free):  # type: ignore[no-untyped-def]
    """Most transfer time that taking satellites into the call can save within `free` bytes."""
    nodes = len(g.depth)
    size = np.empty(nodes + len(g.source_feeds))
    worth = np.empty(nodes + len(g.source_feeds))
    count = 0
    total = 0.0
    for x in w.stack[:d]:
        for u in range(g.node_start[x], g.node_start[x + 1]):
            if g.sinks[u] == 1 and w.outside[u] == 0 and g.transfer[k, u] > 0:
                if g.sink_bytes[u] <= 0:
                    total += g.transfer[k, u]
                elif g.sink_bytes[u] <= free:
                    size[count] = g.sink_bytes[u]
                    worth[count] = g.transfer[k, u]
                    count += 1
    for t in range(len(g.source_feeds)):
        if w.touched[t] == g.source_feeds[t] and g.source_transfer[k, t] > 0:
            if g.source_bytes[t] <= 0:
                total += g.source_transfer[k, t]
            elif g.source_bytes[t] <= free:
                size[count] = g.source_bytes[t]
                worth[count] = g.source_transfer[k, t]
                count += 1
    return total + knapsack(size[:count], worth[:count], free)[0]


@njit(cache=True, nogil=True)
def knapsack(size, worth, free):  # type: ignore[no-untyped-def]
    """Return the largest worth within `free`, and what to take for it.

    Depth-first, best ratio first, cut by the fractional bound. Sizes are above 0.
    """
    count = len(size)
    chosen = np.zeros(count, np.bool_)
    order = np.argsort(-worth / size)
    taken = np.zeros(count, np.bool_)
    best, have, left = 0.0, 0.0, free
    i = 0
    while True:
        bound, room, j = have, left, i
        while j < count and size[order[j]] <= room:
            bound += worth[order[j]]
            room -= size[order[j]]
            j += 1
        if j < count:
            bound += worth[order[j]] * room / size[order[j]]
        if bound > best * (1 + 1e-12) and i < count:
            if size[order[i]] <= left:
                taken[i] = True
                have += worth[order[i]]
                left -= size[order[i]]
                if have > best:
                    best = have
                    chosen[:] = taken
            i += 1
            continue
        i -= 1
        while i >= 0 and not taken[i]:
            i -= 1
        if i < 0:
            break
        taken[i] = False
        have -= worth[order[i]]
        left += size[order[i]]
        i += 1
    answer = np.zeros(count, np.bool_)
    for i in range(count):
        answer[order[i]] = chosen[i]
    return best, answer
