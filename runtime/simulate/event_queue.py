"""A queue of events by time, then by number: a binary heap in three arrays, for compiled loops."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def push(when, order, what, size, t, seq, code):
    """Add an event to the `size` there are; return the arrays, which may have grown."""
    if size == len(when):
        more = max(64, 2 * size)
        a, b, c = np.empty(more), np.empty(more, np.int64), np.empty(more, np.int64)
        a[:size], b[:size], c[:size] = when, order, what
        when, order, what = a, b, c
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if when[up] < t or (when[up] == t and order[up] < seq):
            break
        when[i], order[i], what[i] = when[up], order[up], what[up]
        i = up
    when[i], order[i], what[i] = t, seq, code
    return when, order, what


@njit(cache=True)
def pop(when, order, what, size):
    """Remove the first of `size` events; the caller has read it."""
    size -= 1
    t, seq, code = when[size], order[size], what[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            when[right] < when[down] or (when[right] == when[down] and order[right] < order[down])
        ):
            down = right
        if t < when[down] or (t == when[down] and seq < order[down]):
            break
        when[i], order[i], what[i] = when[down], order[down], what[down]
        i = down
    when[i], order[i], what[i] = t, seq, code
