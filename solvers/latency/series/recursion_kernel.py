"""Kernels of the series: the recursion over regions, and the divisions of one region.

A division of a region sends each unit to the call that ends in it, to CPUs, or to the call that
begins in it.
"""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel

#: Where a unit goes: with the call that ends here, to the CPUs, with the call that begins here.
ENDS, CPUS, BEGINS = 0, 1, 2


@inner
def _within(end_memory, low, high, room):
    """Return the last of the ends low … high−1, by memory, that fits; low−1 if none does."""
    while low < high:
        middle = (low + high) // 2
        if end_memory[middle] <= room:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel
def recurse(table, room, rest, held, best):
    """Fill the tables of least times, from the last region to the first.

    Parameters
    ----------
    table
        A `SeriesTables`.
    room
        Bytes of an accelerator.
    rest
        Shape (R+1, X+1): from when s_r has ended on CPUs with x calls left; the last row is 0.
    held
        Shape (levels, X+1): from when a call begins that holds so many bytes of its first region;
        counted are the x calls left before it, and no part of its time.
    best
        Shape (ends, X+1): from when a call reaches the region in which it ends, the best of its
        ends up to this one, in order of memory.
    """
    (compute, skipped, memory, skipped_memory, blocked, through, inner_time, cross,
     start_at, start_memory, head_at, head_start, head_time, head_calls,
     end_at, end_memory, end_time, end_calls, end_start) = table  # fmt: skip
    regions, calls = len(through), rest.shape[1] - 1
    for r in range(regions - 1, -1, -1):
        for s in range(start_at[r], start_at[r + 1]):
            for x in range(calls + 1):
                held[s, x] = np.inf
            for j in range(r + 1, regions):
                if blocked[j] and (blocked[j] == 2 or j > r + 1):
                    break
                free = room - start_memory[s] - (memory[j] - skipped_memory[r])
                if free < 0.0:
                    break
                e = _within(end_memory, end_at[j], end_at[j + 1], free)
                if e < end_at[j]:
                    continue
                time = compute[j] - skipped[r]
                for x in range(1, calls + 1):
                    held[s, x] = min(held[s, x], time + best[e, x])
        for x in range(calls + 1):
            least = through[r] + cross[r] + rest[r + 1, x]
            if x > 0:
                least = min(least, inner_time[r] + cross[r] + rest[r + 1, x - 1])
            for h in range(head_at[r], head_at[r + 1]):
                if x >= head_calls[h]:
                    least = min(least, head_time[h] + held[head_start[h], x - head_calls[h]])
            rest[r, x] = least
        for e in range(end_at[r], end_at[r + 1]):
            for x in range(calls + 1):
                least = np.inf if e == end_at[r] else best[e - 1, x]
                if x >= end_calls[e]:
                    if end_start[e] < 0:
                        then = cross[r] + rest[r + 1, x - end_calls[e]]
                    else:
                        then = held[end_start[e], x - end_calls[e]]
                    least = min(least, end_time[e] + then)
                best[e, x] = least


@inner
def _cost(level, finish, last, compute, nets, weight, start, pins):
    """Return compute and transfers of both calls in the region, and the CPU time between them."""
    total = 0.0
    for u in range(1, last):
        if level[u] != CPUS:
            total += compute[u]
    for e in range(len(nets)):
        leaves, enters = False, False
        for i in range(start[e], start[e + 1]):
            leaves |= level[pins[i]] != ENDS
            enters |= level[pins[i]] == BEGINS
        if level[nets[e]] == ENDS and leaves:
            total += weight[e]
        if level[nets[e]] != BEGINS and enters:
            total += weight[e]
    longest = 0.0
    for u in range(1, last):
        longest = max(longest, finish[u])
    return total, longest


@inner
def _place(level, finish, u, compute, cpu, before_start, before):
    """Write when `u` ends on CPUs after the first call; return whether its level supports it."""
    if level[u] != CPUS:
        finish[u] = 0.0
        return compute[u] < np.inf
    ready = 0.0
    for i in range(before_start[u], before_start[u + 1]):
        ready = max(ready, finish[before[i]])
    finish[u] = ready + cpu[u]
    return cpu[u] < np.inf


@kernel
def divisions(region, ends, begins, capacity, most, levels, value):
    """List the divisions of a region, which follow the edges; return how many, −1 if too many.

    Parameters
    ----------
    region
        Times p and q and bytes of s_i, the units and s_{i+1}, each of shape (n+2,); predecessors as
        compressed rows; the source, the weight and, as compressed rows, the pins of each net.
    ends, begins
        Whether s_i is in a call that ends in the region, s_{i+1} in one that begins there.
    capacity
        Bytes that each of the two may take.
    most
        Ways after which it gives up.
    levels, value
        Written: shape (most, n+2), and (most, 4): bytes of the first call and the second in the
        region; the time from when the first has computed s_i until the second computes s_{i+1}; and
        the part of it between the calls, on CPUs.

    Returns
    -------
    int
        How many there are, −1 if more than `most`.
    """
    compute, cpu, memory, before_start, before, nets, weight, start, pins = region
    last = len(compute) - 1
    level = np.ones(last + 1, np.int64)
    finish = np.zeros(last + 1)
    held = np.zeros((last + 1, 3))
    if ends:
        level[0] = ENDS
    if begins:
        level[last] = BEGINS
    # all on CPUs takes no memory: nothing that takes longer is worth while
    top = np.inf
    good = True
    for u in range(1, last):
        good &= _place(level, finish, u, compute, cpu, before_start, before)
    if good:
        moved, longest = _cost(level, finish, last, compute, nets, weight, start, pins)
        top = moved + longest
    highest = BEGINS if begins else CPUS
    count, u = 0, 1
    level[1] = -1
    while u > 0:
        if u == last:
            moved, longest = _cost(level, finish, last, compute, nets, weight, start, pins)
            if moved + longest <= top:
                if count == most:
                    return -1
                for y in range(last + 1):  # a slice takes seconds to compile
                    levels[count, y] = level[y]
                value[count, 0], value[count, 1] = held[u - 1, 0], held[u - 1, 1]
                value[count, 2], value[count, 3] = moved + longest, longest
                count += 1
            u -= 1
            continue
        if level[u] < 0:
            level[u] = level[0]
            for i in range(before_start[u], before_start[u + 1]):
                level[u] = max(level[u], level[before[i]])
        else:
            level[u] += 1
        if level[u] > highest:
            level[u] = -1
            u -= 1
            continue
        if not _place(level, finish, u, compute, cpu, before_start, before):
            continue
        for part in range(3):
            held[u, part] = held[u - 1, part]
        if level[u] == CPUS:
            if held[u, 2] + finish[u] > top:
                continue
        else:
            held[u, level[u] >> 1] += memory[u]
            held[u, 2] += compute[u]
            if held[u, level[u] >> 1] > capacity or held[u, 2] > top:
                continue
        u += 1
        if u < last:
            level[u] = -1
    return count


@kernel
def combine(first, second, total, choice):
    """Add the divisions of two components, cell by cell of a grid of memory.

    Parameters
    ----------
    first, second
        Shape (G, H): least time of a component in each cell, `inf` without.
    total, choice
        Written: the least sums, and the cell of the second, of G · H in all, that it is from.
    """
    rows, columns = first.shape
    total[:] = np.inf
    choice[:] = -1
    for i in range(rows):
        for j in range(columns):
            if first[i, j] == np.inf:
                continue
            for y in range(rows - i):
                for z in range(columns - j):
                    time = first[i, j] + second[y, z]
                    if time < total[i + y, j + z]:
                        total[i + y, j + z] = time
                        choice[i + y, j + z] = y * columns + z
