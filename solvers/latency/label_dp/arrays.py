"""What the latency label DP reads and writes: few arrays of many columns.

Every array that a compiled function is handed costs compile time, in it and in whatever it calls.
So what belongs to a unit, a node, a state or a label is one table, and the names below are its
columns; lists of different lengths lie one behind the other in `Graph.lists`. In the compiled
functions g, s, w are the `Graph`, the `LabelStore` and the `Scratch`, and `col` is this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....instances.common.arrays import Ints

# What a slice ends with.
DONE, BUDGET, STATES_FULL, LABELS_FULL, VALUES_FULL, BORDER_FULL, ACTIVE_FULL = range(7)

# Places in `LabelStore.at`: where the run stands.
(
    N_STATES, N_LABELS, N_VALUES, N_BORDER, PHASE, CARD, STATE, DEPTH, ACTIVE, READY_AT,
    BEST_LABEL, STEPS, OPEN_GROUPS, LEFT_OUT,
) = range(14)  # fmt: skip

# Values of PHASE.
NEXT, CPU_STEPS, GROW = range(3)

# Columns of `Graph.unit`; the first four begin lists, up to where those of the next row begin.
SUCC, NODE, INPUT, SOURCE, PREDS, GROUP = range(6)
# Columns of `Graph.node`; the first two begin lists. SINKS: whether free sinks hang on the
# node, 0: none, 1: an accelerator may take them, 2: it may not.
FEED, FOLLOWING, UNIT, CONSUMERS, SINKS = range(5)
# Columns of `Graph.time`; DEPTH_TIME: least time from the node's start to the end.
CPU_TIME, DEPTH_TIME, SINK_BYTES = range(3)
# Columns of `Graph.source`; FEEDS: units fed, or more than there are if it is never taken.
FEEDS, BYTES, MOVED = range(3)

# Columns of `LabelStore.state` and `LabelStore.label`.
BORDER_AT, BORDER_SIZE, FIRST, SIBLING, OWNERS = range(5)
OF_STATE, CODE, PARENT, KIND, AFTER, VALUES_AT = range(6)

# Columns of `Scratch.unit`: of units, then of the depths of the call being grown.
INSIDE, MISSING, IN_CALL, STACK, CURSOR, OPENED, INPUTS, OWNER, OWNED = range(9)
# Columns of `Scratch.node`.
OUTSIDE, PLACE, ENTERED, INPUT_LIST, BORDER = range(5)
# Columns of `Scratch.group` and `Scratch.owner`. HOLDER: CPUS, or the owner of an open group.
GROUP_IN, GROUP_DONE, HOLDER, OPEN_LIST = range(4)
OWNER_KIND, OWNER_LEFT, RENAMED = range(3)
# First index of `Scratch.load` after the depth.
COMPUTE, IN, LEAVES, OUT, SAVING = range(5)

CPUS = -1
#: Colours of which a part is done that a state can tell apart; one byte of its key each.
MOST_OPEN = 16
PATTERN_WORDS = MOST_OPEN // 8

Array = Any  # numpy arrays; numba infers their types


class Graph(NamedTuple):
    """The reduced problem.

    C units in topological order, N nodes sorted by unit, K kinds, G groups (colours of which a
    unit is a part), T free sources, P paths of up to L units, X calls in all.
    """

    divided: bool  # whether a colour may be divided over the two calls of an accelerator
    unit: Array  # (C+1, 6)
    node: Array  # (N+1, 5)
    lists: Array  # successors, inputs and free sources of units; feeds, successors of nodes
    compute: Array  # (K, C)
    memory: Array  # (C,)
    transfer: Array  # (K, N)
    time: Array  # (N, 3)
    source: Array  # (T, 2+K) from column MOVED on: transfer by kind
    capacity: Array  # (K,)
    group_size: Array  # (G,) units
    group_bytes: Array  # (G,)
    code: Array  # (codes, K+1) calls left of each kind; calls used in all
    step: Array  # (K,) from a code to that with one call more
    leq: Array  # (codes, codes) whether the first uses no more calls of any kind
    place: Array  # (P, C) place of each unit on the path, −1 off it
    gates: Array  # (P, L+2) lists: nodes of unit i−1 on the path that feed unit i
    rest: Array  # (P, L+1, X+1) D[i][x] of the path
    onward: Array  # (P, L, L, X+1): min over j' ≥ j of L(i, j') + D[j'+1][x−1]


class LabelStore(NamedTuple):
    """States and their labels.

    A state is an ideal, and, where colours may be divided, who holds each colour of which a part
    is done: the CPUs, or an *owner*, an accelerator that must take the rest in its second call.
    """

    at: Array
    target: Array  # (1,) only plans better than this matter
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
    """The state being expanded, and the call being grown."""

    unit: Array  # (C+1, 9)
    node: Array  # (N, 5)
    tail: Array  # (N,) of the new border
    vector: Array  # values of the new label
    group: Array  # (G, 4)
    owner: Array  # (MOST_OPEN + 1, 3)
    load: Array  # (C+1, 5, K)
    room: Array  # (C+1, 2): bytes of the call, bytes of free leaves that could be taken
    path_in: Array  # (C+1, P) first place on each path outside ideal and call
    touched: Array  # (T,) units of the call that a free source feeds
    ready: Array  # (words,) bits
    new_key: Array
    active: Array  # (A,) labels
    start: Array  # (C+1, A)
    finish: Array  # (N,) of the nodes of a unit
    opened: Array  # (MOST_OPEN,) colours
    leaf_size: Array  # (N+T,) free leaves, as of those below, for the knapsack
    leaf_worth: Array
    leaf_order: Array
    leaf_chosen: Array
    leaf_taken: Array


def new_scratch(graph: Graph) -> Scratch:
    """Return room to work in."""
    units, nodes, kinds = len(graph.memory), len(graph.time), len(graph.capacity)
    words, whole, leaves = (units + 63) // 64, np.int64, nodes + len(graph.source)
    return Scratch(
        unit=np.zeros((units + 1, 9), whole),
        node=np.zeros((nodes, 5), whole),
        tail=np.zeros(nodes),
        vector=np.zeros(nodes + 2 * MOST_OPEN + 2),
        group=np.zeros((len(graph.group_size), 4), whole),
        owner=np.zeros((MOST_OPEN + 1, 3), whole),
        load=np.zeros((units + 1, 5, kinds)),
        room=np.zeros((units + 1, 2)),
        path_in=np.zeros((units + 1, len(graph.place)), whole),
        touched=np.zeros(len(graph.source), whole),
        ready=np.zeros(words, np.uint64),
        new_key=np.zeros(words + PATTERN_WORDS * graph.divided, np.uint64),
        active=np.zeros(64, whole),
        start=np.zeros((units + 1, 64)),
        finish=np.zeros(nodes),
        opened=np.zeros(MOST_OPEN, whole),
        leaf_size=np.zeros(leaves),
        leaf_worth=np.zeros(leaves),
        leaf_order=np.zeros(leaves, whole),
        leaf_chosen=np.zeros(leaves, np.bool_),
        leaf_taken=np.zeros(leaves, np.bool_),
    )


def wider(work: Scratch) -> Scratch:
    """Return room for twice as many labels of one state."""
    return work._replace(
        active=np.concatenate([work.active, np.zeros_like(work.active)]),
        start=np.concatenate([work.start, np.zeros_like(work.start)], axis=1),
    )


def new_store(graph: Graph, target: float) -> LabelStore:
    """Return a store that holds the empty ideal, with one label: nothing used or finished."""
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
    """Return the store with twice the room of what is full; a hash table is left empty."""

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
    """Return the memory that a store takes."""
    return float(sum(array.nbytes for array in store))
