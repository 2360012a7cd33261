"""The inner loops of the dynamic program over the states of a series: see `series_dp`."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@kernel
def fewest_devices(limit, loads, counts, radix, fewest, least, tree):
    """Find how many devices of kind 0 the stages up to each state need at least.

    Parameters
    ----------
    limit
        No load is larger.
    loads
        `Loads`.
    counts
        Shape (K,): devices of each kind.
    radix
        Shape (K,): sets of devices of other kinds are numbered Σ radix · used; radix[0] is 0.
    fewest
        Shape (sets, N): the result, filled with more than there are, but for 0 for the first state
        and no devices.
    least
        Shape (sets, K, N): the least `fewest` of the states of a segment so far, as in `order`.
    tree
        Shape (sets, S + 1), for the most states of a segment: anything.
    """
    first, pair_start, pair_first, own = loads.first, loads.pair_start, loads.pair_first, loads.own
    for b in range(len(first) - 1):
        for p in range(pair_start[b], pair_start[b + 1]):
            a = pair_first[p]
            if own[p] >= 0:
                one_by_one(limit, loads, counts, radix, fewest, p, a, b)
            else:
                for k in range(len(counts)):
                    if loads.room[k] < np.inf:
                        within_room(limit, loads, counts, radix, fewest, tree, p, a, b, k)
                    else:
                        together(limit, loads, counts, radix, fewest, least, p, a, b, k)
        if loads.loose[b]:
            within(limit, loads, counts, radix, fewest, b)
        for used in range(len(fewest)):
            for k in range(len(counts)):
                so_far = counts[0] + 1
                for i in range(first[b], first[b + 1]):
                    so_far = min(so_far, fewest[used, loads.order[k, i]])
                    least[used, k, i] = so_far


@inner
def one_by_one(limit, loads, counts, radix, fewest, p, a, b):
    """Extend each state of a segment to each of another, or of the same, that the load allows."""
    first, at = loads.first, loads.own[p]
    for i in range(first[a], first[a + 1]):
        for j in range(first[b], first[b + 1]):
            for k in range(len(counts)):
                load = loads.ahead[k, i] + loads.behind[k, j] - loads.each[k, at]
                if load <= limit and loads.held[j] - loads.held[i] <= loads.room[k]:
                    for used in range(len(fewest)):
                        extend(counts, radix, fewest, used, k, j, fewest[used, i])
            at += 1


@inner
def together(limit, loads, counts, radix, fewest, least, p, a, b, k):
    """Extend the best of the states of a segment that the load allows, to each of another."""
    first = loads.first
    for j in range(first[b], first[b + 1]):
        most = limit - loads.behind[k, j] + loads.shared[p, k]
        low, high = first[a], first[a + 1]
        while low < high:
            middle = (low + high) // 2
            if loads.ahead[k, loads.order[k, middle]] <= most:
                low = middle + 1
            else:
                high = middle
        if low > first[a]:
            for used in range(len(fewest)):
                extend(counts, radix, fewest, used, k, j, least[used, k, low - 1])


@inner
def within_room(limit, loads, counts, radix, fewest, tree, p, a, b, k):
    """Extend the best of the states that load and bytes allow: a Fenwick tree over the bytes."""
    begin, size = loads.first[a], loads.first[a + 1] - loads.first[a]
    tree[:, : size + 1] = counts[0] + 1
    added = begin
    for n in range(loads.first[b], loads.first[b + 1]):
        j = loads.later[k, n]
        most = limit - loads.behind[k, j] + loads.shared[p, k]
        while added < begin + size and loads.ahead[k, loads.order[k, added]] <= most:
            i = loads.order[k, added]
            for used in range(len(fewest)):
                at = loads.rank[i] + 1
                while at <= size:
                    tree[used, at] = min(tree[used, at], fewest[used, i])
                    at += at & -at
            added += 1
        needed = loads.held[j] - loads.room[k]
        low, high = begin, begin + size
        while low < high:
            middle = (low + high) // 2
            if loads.most_held[middle] >= needed:
                low = middle + 1
            else:
                high = middle
        for used in range(len(fewest)):
            best, at = counts[0] + 1, low - begin
            while at > 0:
                best = min(best, tree[used, at])
                at -= at & -at
            extend(counts, radix, fewest, used, k, j, best)


@inner
def within(limit, loads, counts, radix, fewest, b):
    """Extend states of a segment to others: by work alone, or any to any where they are many."""
    begin, end = loads.first[b], loads.first[b + 1]
    for used in range(len(fewest)):
        for k in range(len(counts)):
            if loads.inner[k, b, 0] >= 0:
                for n in range(loads.inner[k, b, 0], loads.inner[k, b, 1]):
                    i, j = begin + loads.low[n], begin + loads.high[n]
                    work = (loads.behind[k, j] - loads.ahead[k, j]) / 2
                    work -= (loads.behind[k, i] - loads.ahead[k, i]) / 2
                    if work <= limit and loads.held[j] - loads.held[i] <= loads.room[k]:
                        extend(counts, radix, fewest, used, k, j, fewest[used, i])
                continue
            best = counts[0] + 1
            for i in range(begin, end):
                best = min(best, fewest[used, i])
            for j in range(begin, end):
                extend(counts, radix, fewest, used, k, j, best)


@inner
def extend(counts, radix, fewest, used, k, j, devices):
    """Let a device of a kind come after some others."""
    if devices > counts[0]:
        return
    if k == 0:
        fewest[used, j] = min(fewest[used, j], devices + 1)
    elif used // radix[k] % (counts[k] + 1) < counts[k]:
        fewest[used + radix[k], j] = min(fewest[used + radix[k], j], devices)


@kernel
def larger_states(begin, to, work, most, rows):
    """List the larger states that each state can grow to with so much more work.

    Parameters
    ----------
    begin, to
        The states with one unit more: where those of each begin, and their numbers.
    work
        Shape (S,): of each.
    rows
        Shape (., 2): to be filled in.

    Returns
    -------
    int
        How many there are; −1 if they are more than the rows.
    """
    seen = np.full(len(work), -1)
    todo = np.empty(len(work), np.int64)
    filled = 0
    for i in range(len(work)):
        todo[0], left = i, 1
        while left:
            left -= 1
            j = todo[left]
            for n in range(begin[j], begin[j + 1]):
                more = to[n]
                if seen[more] < i and work[more] - work[i] <= most:
                    seen[more] = i
                    if filled == len(rows):
                        return -1
                    rows[filled, 0], rows[filled, 1] = i, more
                    filled += 1
                    todo[left] = more
                    left += 1
    return filled
