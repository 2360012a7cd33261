"""Kernels of the dynamic program over the states of a series (`series_dp`)."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@kernel
def fewest_devices(limit, loads, devices, fewest, least, tree):
    """Find the fewest devices of kind 0 that the stages up to each state need.

    Parameters
    ----------
    limit
        Of loads.
    loads
        `StageLoads`.
    devices
        `Devices`.
    fewest
        Shape (sets, N): the result, by set of devices of other kinds; filled with more than there
        are, but for 0 for the first state and no devices.
    least
        Shape (sets, K, N): running minimum of `fewest` along `by_start`; scratch.
    tree
        Shape (sets, S + 1), for the most states of a segment: scratch.
    """
    begin, by_start, ptr = loads.states.begin, loads.states.by_start, loads.pairs.ptr
    kinds = len(devices.number)
    for b in range(len(begin) - 1):
        for p in range(ptr[b], ptr[b + 1]):
            pair = (p, loads.pairs.first[p], b)
            if loads.pairs.own[p] >= 0:
                extend_each(limit, loads, devices, fewest, pair)
            else:
                for k in range(kinds):
                    if loads.room[k] < np.inf:
                        extend_best_in_memory(limit, loads, devices, fewest, tree, pair, k)
                    else:
                        extend_best(limit, loads, devices, fewest, least, pair, k)
        if loads.inner.bounded[b]:
            extend_within(limit, loads, devices, fewest, b)
        for used in range(len(fewest)):
            for k in range(kinds):
                so_far = devices.number[0] + 1
                for i in range(begin[b], begin[b + 1]):
                    so_far = min(so_far, fewest[used, by_start[k, i]])
                    least[used, k, i] = so_far


@inner
def extend_each(limit, loads, devices, fewest, pair):
    """Extend each state of segment a to each of segment b within the limit; loads are listed."""
    states, room, each = loads.states, loads.room, loads.pairs.each
    p, a, b = pair
    begin, at = states.begin, loads.pairs.own[p]
    for i in range(begin[a], begin[a + 1]):
        for j in range(begin[b], begin[b + 1]):
            for k in range(len(room)):
                load = states.start[k, i] + states.end[k, j] - each[k, at]
                if load <= limit and states.memory[j] - states.memory[i] <= room[k]:
                    for used in range(len(fewest)):
                        add_device(devices, fewest, used, k, j, fewest[used, i])
            at += 1


@inner
def extend_best(limit, loads, devices, fewest, least, pair, k):
    """Extend the best state of segment a within the limit, found by bisection, to each of b."""
    states = loads.states
    p, a, b = pair
    begin = states.begin
    for j in range(begin[b], begin[b + 1]):
        most = limit - states.end[k, j] + loads.pairs.shared[p, k]
        low, high = begin[a], begin[a + 1]
        while low < high:
            middle = (low + high) // 2
            if states.start[k, states.by_start[k, middle]] <= most:
                low = middle + 1
            else:
                high = middle
        if low > begin[a]:
            for used in range(len(fewest)):
                add_device(devices, fewest, used, k, j, least[used, k, low - 1])


@inner
def extend_best_in_memory(limit, loads, devices, fewest, tree, pair, k):
    """Extend the best state of segment a within load and memory: a Fenwick tree over the bytes."""
    states = loads.states
    p, a, b = pair
    begin, size = states.begin[a], states.begin[a + 1] - states.begin[a]
    tree[:, : size + 1] = devices.number[0] + 1
    added = begin
    for n in range(states.begin[b], states.begin[b + 1]):
        j = states.by_end[k, n]
        most = limit - states.end[k, j] + loads.pairs.shared[p, k]
        while added < begin + size and states.start[k, states.by_start[k, added]] <= most:
            i = states.by_start[k, added]
            for used in range(len(fewest)):
                at = states.memory_rank[i] + 1
                while at <= size:
                    tree[used, at] = min(tree[used, at], fewest[used, i])
                    at += at & -at
            added += 1
        needed = states.memory[j] - loads.room[k]
        low, high = begin, begin + size
        while low < high:
            middle = (low + high) // 2
            if states.memory_sorted[middle] >= needed:
                low = middle + 1
            else:
                high = middle
        for used in range(len(fewest)):
            best, at = devices.number[0] + 1, low - begin
            while at > 0:
                best = min(best, tree[used, at])
                at -= at & -at
            add_device(devices, fewest, used, k, j, best)


@inner
def extend_within(limit, loads, devices, fewest, b):
    """Extend states of a segment to others of it by their work, or any to any if not listed."""
    states, inner_pairs = loads.states, loads.inner
    begin, end = states.begin[b], states.begin[b + 1]
    for used in range(len(fewest)):
        for k in range(len(devices.number)):
            if inner_pairs.ranges[k, b, 0] >= 0:
                for n in range(inner_pairs.ranges[k, b, 0], inner_pairs.ranges[k, b, 1]):
                    i, j = begin + inner_pairs.low[n], begin + inner_pairs.high[n]
                    work = (states.end[k, j] - states.start[k, j]) / 2
                    work -= (states.end[k, i] - states.start[k, i]) / 2
                    if work <= limit and states.memory[j] - states.memory[i] <= loads.room[k]:
                        add_device(devices, fewest, used, k, j, fewest[used, i])
                continue
            best = devices.number[0] + 1
            for i in range(begin, end):
                best = min(best, fewest[used, i])
            for j in range(begin, end):
                add_device(devices, fewest, used, k, j, best)


@inner
def add_device(devices, fewest, used, k, j, before):
    """Lower `fewest` of state j for one more device of kind k than `before` and set `used`."""
    number, radix = devices.number, devices.radix
    if before > number[0]:
        return
    if k == 0:
        fewest[used, j] = min(fewest[used, j], before + 1)
    elif used // radix[k] % (number[k] + 1) < number[k]:
        fewest[used + radix[k], j] = min(fewest[used + radix[k], j], before)


@kernel
def larger_states(begin, to, work, most, rows):
    """List the pairs of nested states whose work differs by at most `most`.

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
