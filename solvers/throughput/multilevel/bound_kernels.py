"""Kernels of the bounds for large graphs: `hub_bound`, `least_load` and `critical_path`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import kernel


class CoverTable(NamedTuple):
    """Table of two alternating layers of states: least excess load of a set, by value in steps."""

    # (2, S, B): the least load of a set of a value, minus that value; `inf` if there is none within
    # the limit
    excess: Floats
    span: Ints  # (2, S, 2): least and greatest value at each state


@kernel
def most_valuable_set(frontier, gain, may, slope, scratch, members):
    """Return the greatest value of a set, and its transfers; write the set to `members`.

    By position in the order, `gain`, (U,), is the value of each unit, and `may`, (U, 2), whether it
    may be left out, and taken; `slope` is the value lost per unit of transfer time; the scratch
    arrays have shape (S,).
    """
    layers, step, cost = frontier
    best, came = scratch
    for x in range(len(best)):
        best[x] = -np.inf
    best[0] = 0.0
    size = len(gain)
    for i in range(size):
        for x in range(layers[i], layers[i + 1]):
            for choice in range(2):
                y = step[x, choice]
                if y < 0 or not may[i, choice]:
                    continue
                worth = best[x] - slope * cost[x, choice] + gain[i] * choice
                if worth > best[y]:
                    best[y] = worth
                    came[y] = 2 * x + choice
    x = layers[size]
    worth, paid = best[x], 0.0
    if worth > -np.inf:
        for i in range(size - 1, -1, -1):
            choice = came[x] % 2
            members[i] = choice
            x = came[x] // 2
            paid += cost[x, choice]
    return worth, paid


@kernel
def extend_cover(places, frontier, units, bounds, table, found):
    """Extend a table over the units between two positions of the order.

    Write the least load of sets that hold a share to `found`.

    `frontier` has layers, steps and costs, as `build` returns them, and the transfers from each
    state to the end if no more units are taken, (S,). `units` are, along the order, the value of
    each unit, in steps, and its work beyond that; `bounds` are the fewest steps that make a share,
    the most excess, and the load per step.
    """
    first, last = places
    layers, step, cost, rest = frontier
    value, more = units
    share, most, worth = bounds
    excess, span = table
    size = excess.shape[2]
    for i in range(first, last):
        now, after = i % 2, (i + 1) % 2
        begin = layers[i + 1]
        later = layers[i + 2] - begin
        for y in range(later):
            excess[after, y, :] = float("inf")
            span[after, y, 0], span[after, y, 1] = size, -1
        for x in range(begin - layers[i]):
            low = span[now, x, 0]
            for choice in range(2):
                y = step[layers[i] + x, choice] - begin
                shift = choice * value[i]
                high = min(span[now, x, 1], size - 1 - shift)
                if y < 0 or high < low:
                    continue
                paid = cost[layers[i] + x, choice] + choice * more[i]
                here, there = excess[now, x], excess[after, y]
                for b in range(low, high + 1):
                    there[b + shift] = min(there[b + shift], here[b] + paid)
                span[after, y, 0] = min(span[after, y, 0], low + shift)
                span[after, y, 1] = max(span[after, y, 1], high + shift)
        for y in range(later):
            low, high = size, -1
            for b in range(span[after, y, 0], span[after, y, 1] + 1):
                if excess[after, y, b] > most:
                    excess[after, y, b] = float("inf")
                    continue
                low, high = min(low, b), b
                if b >= share:
                    found[0] = min(found[0], excess[after, y, b] + rest[begin + y] + b * worth)
            span[after, y, 0], span[after, y, 1] = low, high


@kernel
def extend_intervals(places, units, nets, costs, limits, found, scratch):
    """Extend stages over intervals of the critical path that start at the given positions.

    Position i is before unit i of the path. `units` are sorted by f, (U,), with the first of each
    f, (L + 2,), and g of each unit, (U,); `nets` are the nets of each unit as compressed rows, and
    the least f and greatest g of each net, (E,); `costs` are work (K, U), memory (U,) and weights
    (K, E); `limits` the most load, the room of each kind and the number of devices of kind 0.
    `found` has, by number of devices of other kinds and position, the fewest devices of kind 0 and
    the least sum of their transfers; `scratch` is zeros, (E,), and any numbers, (L + 1,).
    """
    first, last = places
    by_after, start, before = units
    unit_ptr, unit_nets, net_first, net_last = nets
    work, memory, weight = costs
    limit, room, devices = limits
    fewest, least = found
    seen, ends = scratch
    length = fewest.shape[1] - 1
    kinds, others = len(room), len(fewest) - 1
    for i in range(first, last):
        some = False
        for o in range(others + 1):
            some |= fewest[o, i] < devices or (fewest[o, i] <= devices and o < others)
        if not some:
            continue
        for k in range(kinds):
            stamp = i * kinds + k + 1
            for j in range(i, length):
                ends[j] = 0.0
            done, held, paid = 0.0, 0.0, 0.0
            for j in range(i, length):
                for at in range(start[j], start[j + 1]):
                    v = by_after[at]
                    if before[v] < i:
                        continue
                    done += work[k, v]
                    held += memory[v]
                    for r in range(unit_ptr[v], unit_ptr[v + 1]):
                        e = unit_nets[r]
                        if seen[e] == stamp:
                            continue
                        seen[e] = stamp
                        if net_first[e] < i:
                            paid += weight[k, e]
                        elif net_last[e] > j:
                            paid += weight[k, e]
                            ends[min(net_last[e], length - 1)] += weight[k, e]
                paid -= ends[j]
                if done > limit or held > room[k]:
                    break
                if done + paid > limit:
                    continue
                for o in range(others + 1):
                    if k == 0 and fewest[o, i] < devices:
                        fewest[o, j + 1] = min(fewest[o, j + 1], fewest[o, i] + 1)
                        least[o, j + 1] = min(least[o, j + 1], least[o, i] + paid)
                    if k > 0 and o < others and fewest[o, i] <= devices:
                        fewest[o + 1, j + 1] = min(fewest[o + 1, j + 1], fewest[o, i])
                        least[o + 1, j + 1] = min(least[o + 1, j + 1], least[o, i])
