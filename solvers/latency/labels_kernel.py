"""States and labels of the label DP for latency: the arrays, the hash table, dominance.

Each array argument costs compile time, in the function and in all that it calls. So all values of a
unit, a node, a state or a label are one table, whose columns are the constants below; lists of
different lengths lie one after the other in `Graph.lists`. In compiled functions g, s and w are the
`Graph`, the `LabelStore` and the `Scratch`, and `col` is this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...instances.common.arrays import Ints
from ...instances.common.kernel import kernel, uncounted

# How a slice ends.
DONE, BUDGET, STATES_FULL, LABELS_FULL, VALUES_FULL, BORDER_FULL, ACTIVE_FULL = range(7)

# Entries of `LabelStore.at`: the progress of the run.
(
    N_STATES, N_LABELS, N_VALUES, N_BORDER, PHASE, CARD, STATE, DEPTH, ACTIVE, READY_AT,
    BEST_LABEL, STEPS, OPEN_GROUPS, LEFT_OUT,
) = range(14)  # fmt: skip

# Values of PHASE.
NEXT, CPU_STEPS, GROW = range(3)

# Columns of `Graph.unit`; in the first three a list begins, which ends where the next row's begins.
SUCC, NODE, INPUT, PREDS, GROUP, ASIDE = range(6)

# Columns of `Graph.node`; in the first two a list begins. CONSUMERS: number of other units that the
# node feeds; SINKS: number of these that are set aside.
FEED, FOLLOWING, UNIT, CONSUMERS, SINKS = range(5)

# Columns of `Graph.time`; DEPTH_TIME: least time from the node's start to the end.
CPU_TIME, DEPTH_TIME = range(2)

# Columns of `LabelStore.state` and `LabelStore.label`.
BORDER_AT, BORDER_SIZE, FIRST, SIBLING, OWNERS = range(5)

OF_STATE, CODE, PARENT, KIND, AFTER, VALUES_AT = range(6)

# Columns of `Scratch.unit`: values of units, then values by depth of the call being grown.
INSIDE, MISSING, IN_CALL, STACK, CURSOR, OPENED, INPUTS, OWNER, OWNED = range(9)

# Columns of `Scratch.node`.
OUTSIDE, PLACE, ENTERED, INPUT_LIST, BORDER = range(5)

# Columns of `Scratch.group` and `Scratch.owner`. HOLDER: CPUS, or the owner of an open group.
GROUP_IN, GROUP_DONE, HOLDER, OPEN_LIST = range(4)

OWNER_KIND, OWNER_LEFT, RENAMED = range(3)

# First index of `Scratch.load` after the depth.
COMPUTE, IN, OUT = range(3)

CPUS = -1

#: Most colours, partly done, that a state can distinguish; each takes one byte of its key.
MOST_OPEN = 16

PATTERN_WORDS = MOST_OPEN // 8

Array = Any  # numpy arrays; numba infers their types


class Graph(NamedTuple):
    """The graph, path bounds and calls as arrays.

    C units in topological order, N nodes sorted by unit, K kinds, G groups (colours that units are
    parts of), P paths of up to L units, X calls in all.
    """

    divided: bool  # whether a colour may be divided over the two calls of an accelerator
    unit: Array  # (C+1, 6)
    node: Array  # (N+1, 5)
    lists: Array  # successors and inputs of units; feeds, successors of nodes
    compute: Array  # (K, C)
    memory: Array  # (C,)
    transfer: Array  # (K, N)
    time: Array  # (N, 2)
    capacity: Array  # (K,)
    group_size: Array  # (G,) number of units
    group_bytes: Array  # (G,)
    code: Array  # (codes, K+1) calls left of each kind; sum of calls used
    step: Array  # (K,) increase of the code by one more call
    leq: Array  # (codes, codes) whether the first uses no more calls of any kind
    place: Array  # (P, C) place of each unit on the path, −1 off it
    gates: Array  # (P, L+2) lists: nodes of unit i−1 on the path that feed unit i
    rest: Array  # (P, L+1, X+1) D[i][x] of the path
    onward: Array  # (P, L, L, X+1): min over j' ≥ j of L(i, j') + D[j'+1][x−1]


class LabelStore(NamedTuple):
    """States and their labels.

    A state is an ideal and, if colours may be divided, the holder of each colour partly done: the
    CPUs, or an *owner*, an accelerator that must take the rest in its second call.
    """

    at: Array
    target: Array  # (1,) latency that plans have to beat
    table: Array  # hash table of states
    key: Array  # (states, words) bits of units; then a byte for each open colour
    state: Array  # (states, 5)
    by_card: Array  # (C+1,) first state of each size
    border: Array  # nodes that feed a unit outside
    border_tail: Array  # least time from the node's finish to the end
    label: Array  # (labels, 6) KIND is −1 for a CPU step
    label_end: Array  # last finish so far
    values: Array  # finish times on the border; for each owner, finish and bytes of its first call


class Scratch(NamedTuple):
    """Working arrays: the state being expanded, and the call being grown."""

    unit: Array  # (C+1, 9)
    node: Array  # (N, 5)
    tail: Array  # (N,) of the new border
    vector: Array  # values of the new label
    group: Array  # (G, 4)
    owner: Array  # (MOST_OPEN + 1, 3)
    load: Array  # (C+1, 3, K)
    room: Array  # (C+1,): bytes of the call
    path_in: Array  # (C+1, P) first place of each path that is outside
    ready: Array  # (words,) bits
    new_key: Array
    active: Array  # (A,) labels
    start: Array  # (C+1, A)
    finish: Array  # (N,) of the nodes of a unit on CPUs
    opened: Array  # (MOST_OPEN,) colours


@uncounted
def _slot(table, keys, key):
    """Return the slot of state `key` in the hash table, or the free slot where it belongs."""
    h = np.uint64(1469598103934665603)
    for i in range(len(key)):
        h ^= key[i]
        h *= np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    mask = len(table) - 1
    at = np.int64(h & np.uint64(mask))
    while table[at] >= 0:
        same = True
        for i in range(len(key)):
            same &= keys[table[at], i] == key[i]
        if same:
            return at
        at = (at + 1) & mask
    return at


@uncounted
def find(s, key):
    """Return the number of state `key`; −1 if it is not in the hash table."""
    return s.table[_slot(s.table, s.key, key)]


@kernel
def rehash(table, key, count):
    """Enter the first `count` states into an empty hash table."""
    for state in range(count):
        table[_slot(table, key, key[state])] = state


@uncounted
def insert(g, s, w, state, shape, step, end, single):
    """Insert a label unless another one dominates it; return its state.

    `state` is −1 if not known yet; `shape` is the number of units in the ideal, the size of its
    border, and the number of values: a finish time per node of the border, and two per owner;
    `step` is the label's code, the label before, and the kind of the call.
    """
    (card, border, size), (code, parent, kind) = shape, step
    if state < 0:
        state = _new_state(s, w, card, border, (size - border) // 2)
    before, label = -1, s.state[state, FIRST]
    mine = 0.0
    if single:
        mine = _estimate(w.tail, w.vector, 0, 0, border, end)
    while label >= 0:
        s.at[STEPS] += 1
        after, at, other = (
            s.label[label, AFTER],
            s.label[label, VALUES_AT],
            s.label[label, CODE],
        )
        if single and other == code:
            there = s.state[state, BORDER_AT]
            value = _estimate(s.border_tail, s.values, there, at, border, s.label_end[label])
            if value <= mine:
                return state
            worse = True
        else:
            better = g.leq[other, code] and s.label_end[label] <= end
            worse = g.leq[code, other] and end <= s.label_end[label]
            for i in range(size):
                if not better and not worse:
                    break
                better &= s.values[at + i] <= w.vector[i]
                worse &= w.vector[i] <= s.values[at + i]
            if better:
                return state
        if worse:
            if before < 0:
                s.state[state, FIRST] = after
            else:
                s.label[before, AFTER] = after
        else:
            before = label
        label = after
    new = s.at[N_LABELS]
    s.at[N_LABELS] += 1
    s.label[new, OF_STATE] = state
    s.label[new, CODE] = code
    s.label[new, PARENT] = parent
    s.label[new, KIND] = kind
    s.label[new, VALUES_AT] = s.at[N_VALUES]
    s.label[new, AFTER] = s.state[state, FIRST]
    s.label_end[new] = end
    s.state[state, FIRST] = new
    for i in range(size):
        s.values[s.at[N_VALUES] + i] = w.vector[i]
    s.at[N_VALUES] += size
    if card == len(g.memory) and end < s.target[0]:
        s.target[0] = end
        s.at[BEST_LABEL] = new
    return state


@uncounted
def _new_state(s, w, card, border, owners):
    """Add the state `w.new_key` of `card` units with the border in `w`; return its number."""
    state = s.at[N_STATES]
    s.at[N_STATES] += 1
    for i in range(len(w.new_key)):
        s.key[state, i] = w.new_key[i]
    s.table[_slot(s.table, s.key, w.new_key)] = state
    at = s.at[N_BORDER]
    s.state[state, BORDER_AT] = at
    s.state[state, BORDER_SIZE] = border
    s.state[state, OWNERS] = owners
    for i in range(border):
        s.border[at + i] = w.node[i, BORDER]
        s.border_tail[at + i] = w.tail[i]
    s.at[N_BORDER] += border
    s.state[state, FIRST] = -1
    s.state[state, SIBLING] = s.by_card[card]
    s.by_card[card] = state
    return state


@uncounted
def _estimate(tails, values, tail_at, value_at, size, end):
    """Return the last finish that a label's border implies, plus a tie-breaker by finish times."""
    worst, total = end, 0.0
    for i in range(size):
        value = values[value_at + i] + tails[tail_at + i]
        worst = max(worst, value)
        total += values[value_at + i]
    return worst + 1e-6 * total / (size + 1)


@uncounted
def write_owners(g, s, w, d, kind):
    """Write the holders of the open colours after the step into the new key; see `_read_owners`.

    Owners are numbered anew in the order of their colours; column RENAMED has the new numbers, in
    its last row that of a call that opens colours. Return the number of owners, or −1 if the key
    cannot hold them. `kind` is CPUS for a step that is not a call.
    """
    found = w.opened
    count = 0
    for i in range(s.at[OPEN_GROUPS] + d):
        if i < s.at[OPEN_GROUPS]:
            group = w.group[i, OPEN_LIST]
        else:
            group = g.unit[w.unit[i - s.at[OPEN_GROUPS], STACK], GROUP]
            if group < 0 or w.group[group, GROUP_DONE] > 0:
                continue
        if w.group[group, GROUP_DONE] + w.group[group, GROUP_IN] == g.group_size[group]:
            continue
        j = count
        while j > 0 and found[j - 1] > group:
            j -= 1
        if j > 0 and found[j - 1] == group:
            continue
        if count == MOST_OPEN:
            return -1
        for m in range(count, j, -1):
            found[m] = found[m - 1]
        found[j] = group
        count += 1
    words, kinds, owners = len(w.ready), len(g.capacity), 0
    for i in range(words, len(w.new_key)):
        w.new_key[i] = 0
    for o in range(len(w.owner)):
        w.owner[o, RENAMED] = -1
    for i in range(count):
        holder = w.group[found[i], HOLDER]
        its_kind = kind
        if w.group[found[i], GROUP_DONE] == 0:
            holder = CPUS if kind == CPUS else MOST_OPEN
        elif holder != CPUS:
            its_kind = w.owner[holder, OWNER_KIND]
        if holder == CPUS:
            continue
        if w.owner[holder, RENAMED] < 0:
            w.owner[holder, RENAMED] = owners
            owners += 1
        byte = 1 + w.owner[holder, RENAMED] * kinds + its_kind
        if byte > 255:
            return -1
        w.new_key[words + (i >> 3)] |= np.uint64(byte) << np.uint64(8 * (i & 7))
    return owners


def new_scratch(graph: Graph) -> Scratch:
    """Return working arrays for a graph."""
    units, nodes, kinds = len(graph.memory), len(graph.time), len(graph.capacity)
    words, whole = (units + 63) // 64, np.int64
    return Scratch(
        unit=np.zeros((units + 1, 9), whole),
        node=np.zeros((nodes, 5), whole),
        tail=np.zeros(nodes),
        vector=np.zeros(nodes + 2 * MOST_OPEN + 2),
        group=np.zeros((len(graph.group_size), 4), whole),
        owner=np.zeros((MOST_OPEN + 1, 3), whole),
        load=np.zeros((units + 1, 3, kinds)),
        room=np.zeros(units + 1),
        path_in=np.zeros((units + 1, len(graph.place)), whole),
        ready=np.zeros(words, np.uint64),
        new_key=np.zeros(words + PATTERN_WORDS * graph.divided, np.uint64),
        active=np.zeros(64, whole),
        start=np.zeros((units + 1, 64)),
        finish=np.zeros(nodes),
        opened=np.zeros(MOST_OPEN, whole),
    )


def wider(work: Scratch) -> Scratch:
    """Return working arrays with room for twice as many labels of one state."""
    return work._replace(
        active=np.concatenate([work.active, np.zeros_like(work.active)]),
        start=np.concatenate([work.start, np.zeros_like(work.start)], axis=1),
    )


def new_store(graph: Graph, target: float) -> LabelStore:
    """Return a store of the empty ideal and its one label: nothing used, nothing finished."""
    units, nodes = len(graph.memory), len(graph.time)
    states, labels = 1024, 4096
    at: Ints = np.zeros(14, np.int64)
    at[BEST_LABEL] = -1
    at[N_STATES] = at[N_LABELS] = 1
    words = (units + 63) // 64 + PATTERN_WORDS * graph.divided
    store = LabelStore(
        at=at,
        target=np.array([target]),
        table=np.full(4 * states, -1, np.int64),
        key=np.zeros((states, words), np.uint64),
        state=np.full((states, 5), -1, np.int64),
        by_card=np.full(units + 1, -1, np.int64),
        border=np.zeros(8 * nodes + 8192, np.int64),
        border_tail=np.zeros(8 * nodes + 8192),
        label=np.full((labels, 6), -1, np.int64),
        label_end=np.zeros(labels),
        values=np.zeros(8 * nodes + 65536),
    )
    store.state[0] = [0, 0, 0, -1, 0]
    store.label[0] = [0, 0, -1, -1, -1, 0]
    store.by_card[0] = 0
    return store


def enlarged(store: LabelStore, code: int) -> LabelStore:
    """Return the store with twice the room in what is full; a new hash table is empty."""

    def twice(*names: str) -> dict[str, Array]:
        return {
            name: np.concatenate([getattr(store, name), np.zeros_like(getattr(store, name))])
            for name in names
        }

    if code == STATES_FULL:
        table = np.full(2 * len(store.table), -1, np.int64)
        return store._replace(**twice("key", "state"), table=table)
    if code == LABELS_FULL:
        return store._replace(**twice("label", "label_end"))
    return store._replace(**twice(*{VALUES_FULL: ("values",)}.get(code, ("border", "border_tail"))))


def bytes_of(store: LabelStore) -> float:
    """Return the bytes of a store."""
    return float(sum(array.nbytes for array in store))
