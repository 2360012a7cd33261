"""Kernel that enumerates the ideals of a lattice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.kernel import inner, kernel


class Edges(NamedTuple):
    """The edges into and out of each of U units, grouped by unit."""

    before_start: NDArray[np.int64]  # (U + 1,)
    before: NDArray[np.int32]
    after_start: NDArray[np.int64]  # (U + 1,)
    after: NDArray[np.int32]


@kernel
def grow(members, start, unit, to, low, high, edges, enough):
    """Enumerate ideals by size until there are `enough`; return the arrays of `Lattice`, grown.

    Ideals low … high−1 form the newest level; their `unit` is known, their `to` is not. A hash
    table, for one level at a time, finds equal ideals.
    """
    before_start, before, after_start, after = edges
    one = np.uint64(1)
    words = members.shape[1]
    steps = start[high]
    while low < high < enough:
        slots = 8
        while slots < 2 * (start[high] - start[low]):
            slots *= 2
        table = np.full(slots, -1, np.int32)
        found = high
        for ideal in range(low, high):
            for step in range(start[ideal], start[ideal + 1]):
                v = unit[step]
                home, bit = v >> 6, one << np.uint64(v & 63)
                key = np.uint64(0)
                for w in range(words):
                    word = members[ideal, w]
                    if w == home:
                        word |= bit
                    key = (key ^ word) * np.uint64(0x9E3779B97F4A7C15)
                    key ^= key >> np.uint64(32)
                slot = np.int64(key & np.uint64(slots - 1))
                while table[slot] >= 0:
                    other = table[slot]
                    same = True
                    for w in range(words):
                        word = members[ideal, w]
                        if w == home:
                            word |= bit
                        if members[other, w] != word:
                            same = False
                            break
                    if same:
                        break
                    slot = (slot + 1) & (slots - 1)
                if table[slot] < 0:
                    table[slot] = found
                    if found + 1 >= len(members):
                        members = _longer_rows(members)
                        start = _longer(start, 2 * len(start))
                    width = start[ideal + 1] - start[ideal] + after_start[v + 1] - after_start[v]
                    if steps + width > len(unit):
                        unit = _longer(unit, steps + width)
                        to = _longer(to, steps + width)
                    for w in range(words):
                        members[found, w] = members[ideal, w]
                    members[found, home] |= bit
                    first = steps
                    for s in range(start[ideal], start[ideal + 1]):
                        if unit[s] != v:
                            unit[steps] = unit[s]
                            steps += 1
                    for a in range(after_start[v], after_start[v + 1]):
                        x = after[a]
                        ready = True
                        for b in range(before_start[x], before_start[x + 1]):
                            u = before[b]
                            if not (members[found, u >> 6] >> np.uint64(u & 63)) & one:
                                ready = False
                                break
                        if ready:
                            at = steps
                            while at > first and unit[at - 1] > x:
                                unit[at] = unit[at - 1]
                                at -= 1
                            unit[at] = x
                            steps += 1
                    found += 1
                    start[found] = steps
                to[step] = table[slot]
        low, high = high, found
    return members, start, unit, to, low, high


@inner
def _longer(array, least):
    """Return a copy of a one-dimensional array, of at least twice its length and `least`."""
    longer = np.zeros(max(2 * len(array), least), array.dtype)
    for i in range(len(array)):  # a slice would compile four times as long
        longer[i] = array[i]
    return longer


@inner
def _longer_rows(array):
    """Return a copy of an array with twice as many rows; the new ones are 0."""
    longer = np.zeros((2 * len(array), array.shape[1]), array.dtype)
    for i in range(len(array)):
        for j in range(array.shape[1]):
            longer[i, j] = array[i, j]
    return longer
