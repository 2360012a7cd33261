"""Labels and states of the latency label DP: finding, comparing, storing."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel, uncounted
from . import arrays as col


@uncounted
def _slot(table, keys, key):
    """Place of the state `key` in the hash table, or where it would be entered."""
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
    """Return the number of the state `key`, −1 if there is none."""
    return s.table[_slot(s.table, s.key, key)]


@kernel
def rehash(table, key, count):
    """Enter the first `count` states into an empty hash table."""
    for state in range(count):
        table[_slot(table, key, key[state])] = state


@uncounted
def insert(g, s, w, state, shape, step, end, single):
    """Add a label unless another one is at least as good in all; return its state.

    Parameters
    ----------
    state
        Its state, −1 for one that is not known yet.
    shape
        Units of the ideal; size of its border; number of values: a finish time for each of the
        border, and two for each owner.
    step
        Code of what is left of the devices, label before, and kind of the call.
    """
    (card, border, size), (code, parent, kind) = shape, step
    if state < 0:
        state = _new_state(s, w, card, border, (size - border) // 2)
    before, label = -1, s.state[state, col.FIRST]
    mine = 0.0
    if single:
        mine = _estimate(w.tail, w.vector, 0, 0, border, end)
    while label >= 0:
        s.at[col.STEPS] += 1
        after, at, other = (
            s.label[label, col.AFTER],
            s.label[label, col.VALUES_AT],
            s.label[label, col.CODE],
        )
        if single and other == code:
            there = s.state[state, col.BORDER_AT]
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
                s.state[state, col.FIRST] = after
            else:
                s.label[before, col.AFTER] = after
        else:
            before = label
        label = after
    new = s.at[col.N_LABELS]
    s.at[col.N_LABELS] += 1
    s.label[new, col.OF_STATE] = state
    s.label[new, col.CODE] = code
    s.label[new, col.PARENT] = parent
    s.label[new, col.KIND] = kind
    s.label[new, col.VALUES_AT] = s.at[col.N_VALUES]
    s.label[new, col.AFTER] = s.state[state, col.FIRST]
    s.label_end[new] = end
    s.state[state, col.FIRST] = new
    for i in range(size):
        s.values[s.at[col.N_VALUES] + i] = w.vector[i]
    s.at[col.N_VALUES] += size
    if card == len(g.memory) and end < s.target[0]:
        s.target[0] = end
        s.at[col.BEST_LABEL] = new
    return state


@uncounted
def _new_state(s, w, card, border, owners):
    """Add the state `w.new_key` of `card` units and the border in `w`; return its number."""
    state = s.at[col.N_STATES]
    s.at[col.N_STATES] += 1
    for i in range(len(w.new_key)):
        s.key[state, i] = w.new_key[i]
    s.table[_slot(s.table, s.key, w.new_key)] = state
    at = s.at[col.N_BORDER]
    s.state[state, col.BORDER_AT] = at
    s.state[state, col.BORDER_SIZE] = border
    s.state[state, col.OWNERS] = owners
    for i in range(border):
        s.border[at + i] = w.node[i, col.BORDER]
        s.border_tail[at + i] = w.tail[i]
    s.at[col.N_BORDER] += border
    s.state[state, col.FIRST] = -1
    s.state[state, col.SIBLING] = s.by_card[card]
    s.by_card[card] = state
    return state


@uncounted
def _estimate(tails, values, tail_at, value_at, size, end):
    """How promising a label is: the last finish that its border can lead to, at least."""
    worst, total = end, 0.0
    for i in range(size):
        value = values[value_at + i] + tails[tail_at + i]
        worst = max(worst, value)
        total += values[value_at + i]
    return worst + 1e-6 * total / (size + 1)


@uncounted
def write_owners(g, s, w, d, kind):
    """Write who holds the open colours after the step into the new key; see `_read_owners`.

    Owners are numbered anew, in the order in which their colours come; the column RENAMED says
    how, its last row for a call that has opened colours.

    Parameters
    ----------
    kind
        Of the accelerator whose call it is; CPUS if it is none.

    Returns
    -------
    int
        How many owners there are; −1 if that is more than a key can hold.
    """
    found = w.opened
    count = 0
    for i in range(s.at[col.OPEN_GROUPS] + d):
        if i < s.at[col.OPEN_GROUPS]:
            group = w.group[i, col.OPEN_LIST]
        else:
            group = g.unit[w.unit[i - s.at[col.OPEN_GROUPS], col.STACK], col.GROUP]
            if group < 0 or w.group[group, col.GROUP_DONE] > 0:
                continue
        if w.group[group, col.GROUP_DONE] + w.group[group, col.GROUP_IN] == g.group_size[group]:
            continue
        j = count
        while j > 0 and found[j - 1] > group:
            j -= 1
        if j > 0 and found[j - 1] == group:
            continue
        if count == col.MOST_OPEN:
            return -1
        for m in range(count, j, -1):
            found[m] = found[m - 1]
        found[j] = group
        count += 1
    words, kinds, owners = len(w.ready), len(g.capacity), 0
    for i in range(words, len(w.new_key)):
        w.new_key[i] = 0
    for o in range(len(w.owner)):
        w.owner[o, col.RENAMED] = -1
    for i in range(count):
        holder = w.group[found[i], col.HOLDER]
        its_kind = kind
        if w.group[found[i], col.GROUP_DONE] == 0:
            holder = col.CPUS if kind == col.CPUS else col.MOST_OPEN
        elif holder != col.CPUS:
            its_kind = w.owner[holder, col.OWNER_KIND]
        if holder == col.CPUS:
            continue
        if w.owner[holder, col.RENAMED] < 0:
            w.owner[holder, col.RENAMED] = owners
            owners += 1
        byte = 1 + w.owner[holder, col.RENAMED] * kinds + its_kind
        if byte > 255:
            return -1
        w.new_key[words + (i >> 3)] |= np.uint64(byte) << np.uint64(8 * (i & 7))
    return owners
