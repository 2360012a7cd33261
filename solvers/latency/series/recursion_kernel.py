"""The recursion over regions: which calls begin and end where."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@inner
def _within(end_memory, low, high, room):
    """The last of the ends low … high−1, by memory, that fits into `room`; low−1 if none does."""
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
        See `Tables` in `recursion.py`.
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
