"""Kernels that build a frontier: the states between the units of an order, layer by layer.

A state has a bit for each open net in and out of the set; nets that have the same pins placed share
a *slot* of bits, which is free again when the last of them closes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Floats, Ints
from ....instances.common.kernel import inner, kernel

#: Most slots: a bit each.
SLOTS = 62


class FrontierLimits(NamedTuple):
    """States to leave out, and the size of what is built."""

    most: float  # transfer time: states that cannot be reached for that are left out
    width: int  # width, room: most states of one layer, and of all layers
    room: int
    # whether a layer that grows wider than `width` gives up nets (what they would cost from there
    # on is not charged, so costs are only underestimated) instead of giving up
    relax: bool


class FrontierScratch(NamedTuple):
    """Working arrays of `_build`."""

    slot_of: Ints  # of each net; −1: none, −2: given up
    net_of: Ints  # of each slot; any of them where nets share it
    users: Ints  # nets of each slot
    shared: Floats  # (2, SLOTS): what nets cost that leave a slot and end; sum of weights
    bits_in: NDArray[np.uint64]  # of the states of two layers in turn, shape (2, 2·width)
    bits_out: NDArray[np.uint64]
    paid: Floats  # at least, to reach them
    table: Ints  # hash table of states
    merged: Ints  # number of each state after nets are given up


#: States and places of the hash table that there is room for at first.
FEW = 1 << 14

#: Results of building: done, more states than allowed, or arrays too short.
MADE, TOO_MANY, FULL = 1, 0, -1


def build(
    order: Ints, unit_ptr: Ints, unit_nets: Ints, weight: Floats, limits: FrontierLimits
) -> tuple[Ints, Ints, Floats, bool]:
    """Build the states that can arise between the units of an order, and what each step costs.

    A state holds two bits for each open net: whether a pin is in the set, and whether one is out.
    Nets of which only one unit is placed share its bits, so that a unit of many nets takes one
    slot. Step 1 takes a unit, step 0 leaves it out. A net costs its weight, shape (E,), once it has
    a pin in and one out.

    Returns the states of each layer as ranges, shape (len(order) + 2,), empty if there are too
    many; the state after each step, shape (S, 2), −1 if it is left out; what the step costs, shape
    (S, 2); and whether no net was given up.
    """
    layer_ptr = np.zeros(len(order) + 2, np.int64)
    layer_ptr[1] = 1
    capacity, places = FEW, FEW
    width = limits.width
    while places < 8 * width:
        places *= 2
    pins = np.bincount(unit_nets, minlength=len(weight))
    code, exact = FULL, False
    while code == FULL:
        step, cost = np.empty((capacity, 2), np.int64), np.empty((capacity, 2))
        bits, paid = np.empty((2, 2, 2 * width), np.uint64), np.empty((2, 2 * width))
        bits[:, 0, 0] = paid[0, 0] = 0
        room_for = FrontierScratch(
            np.full(len(weight), -1), np.full(SLOTS, -1), np.zeros(SLOTS, np.int64),
            np.zeros((2, SLOTS)), bits[0], bits[1], paid,
            np.empty(places, np.int64), np.empty(2 * width, np.int64),
        )  # fmt: skip
        code, exact = _build(
            order, unit_ptr, unit_nets, (pins.copy(), weight), limits, (layer_ptr, step, cost),
            room_for,
        )  # fmt: skip
        capacity = min(8 * capacity, limits.room)
    total = layer_ptr[-2] if code == MADE else 0
    layers = layer_ptr if code == MADE else layer_ptr[:0]
    return layers, step[:total], cost[:total], exact


@kernel
def _build(order, unit_ptr, unit_nets, nets, limits, made, scratch):
    """Build states as `build` says, into `made`; returns a code and whether no net was given up.

    The code is MADE, TOO_MANY, or FULL, which asks for longer arrays of steps. Arrays are allocated
    outside, as each form of them takes a tenth of a second to compile.
    """
    layer_ptr, step, cost = made
    bits_in, bits_out, least_paid = scratch.bits_in, scratch.bits_out, scratch.paid
    net_of, shared, places = scratch.net_of, scratch.shared, 4096
    exact = True
    inside, outside, paid = bits_in[0, :1], bits_out[0, :1], least_paid[0, :1]
    for i in range(len(order)):
        first, count = layer_ptr[i], layer_ptr[i + 1] - layer_ptr[i]
        begin, end = unit_ptr[order[i]], unit_ptr[order[i] + 1]
        touched, closed, left, all_open = open_nets(
            unit_nets, begin, end, nets, scratch, inside, outside
        )
        exact &= all_open
        if not all_open and not limits.relax:
            return TOO_MANY, False
        if first + count > len(step):
            return FULL, False
        while places < 8 * count:
            places *= 2
        table = scratch.table[:places]
        after = (i + 1) % 2
        later = (bits_in[after], bits_out[after], least_paid[after])
        found = _take(
            first, (inside, outside, paid), (touched, closed, left), (net_of, nets[1], shared),
            (step, cost), table, later, limits,
        )  # fmt: skip
        close_nets(net_of, closed)
        if found > limits.width:
            if not limits.relax:
                return TOO_MANY, False
            exact = False
            found = _give_up(first, count, step, table, later, found, limits.width, scratch)
        begin = layer_ptr[i + 1]
        for x in range(first, first + count):
            for choice in range(2):
                if step[x, choice] >= 0:
                    step[x, choice] += begin
        layer_ptr[i + 2] = begin + found
        if begin + found > limits.room:
            return TOO_MANY, False
        inside, outside, paid = later[0][:found], later[1][:found], later[2][:found]
    return MADE, exact


@inner
def _take(first, states, bits, costs, steps, table, later, limits):
    """Take the steps from the states of a layer, and write those they lead to; return how many."""
    inside, outside, paid = states
    touched, closed, left = bits
    net_of, weight, shared = costs
    step, cost = steps
    next_in, next_out, next_paid = later
    one, mask = np.uint64(1), np.uint64(len(table) - 1)
    table[:] = -1
    found = 0
    for x in range(len(inside)):
        a0, b0 = inside[x], outside[x]
        for choice in range(2):
            a1, b1 = a0, b0
            if choice == 1:
                a1 |= touched
            else:
                b1 |= touched
            total = 0.0
            fresh = (a1 & b1) & ~(a0 & b0)
            s = 0
            while fresh:
                if fresh & one:
                    total += weight[net_of[s]]
                fresh >>= one
                s += 1
            fresh = left & (b0 & ~a0 if choice == 1 else a0 & ~b0)
            s = 0
            while fresh:
                if fresh & one:
                    total += shared[0, s]
                fresh >>= one
                s += 1
            cost[first + x, choice] = total
            now_paid = paid[x] + total
            if now_paid > limits.most:
                step[first + x, choice] = -1
                continue
            a1 &= ~closed
            b1 &= ~closed
            at = _slot(table, mask, next_in, next_out, a1, b1)
            if table[at] < 0:
                table[at] = found
                next_in[found] = a1
                next_out[found] = b1
                next_paid[found] = np.inf
                found += 1
            next_paid[table[at]] = min(next_paid[table[at]], now_paid)
            step[first + x, choice] = table[at]
    return found


@inner
def _give_up(first, count, step, table, later, found, width, scratch):
    """Merge states that differ in the cheapest nets alone, until they are few; return how many."""
    next_in, next_out, next_paid = later
    net_of, shared, merged = scratch.net_of, scratch.shared, scratch.merged
    one, mask = np.uint64(1), np.uint64(len(table) - 1)
    given_up = np.uint64(0)
    while found > width:
        least = -1
        for s in range(SLOTS):
            if net_of[s] < 0 or (given_up >> np.uint64(s)) & one:
                continue
            if least < 0 or shared[1, s] < shared[1, least]:
                least = s
        bit = one << np.uint64(least)
        given_up |= bit
        table[:] = -1
        kept = 0
        for x in range(found):
            a1 = next_in[x] | bit
            b1 = next_out[x] | bit
            at = _slot(table, mask, next_in, next_out, a1, b1)
            if table[at] < 0:
                table[at] = kept
                next_in[kept] = a1
                next_out[kept] = b1
                next_paid[kept] = next_paid[x]
                kept += 1
            next_paid[table[at]] = min(next_paid[table[at]], next_paid[x])
            merged[x] = table[at]
        for x in range(first, first + count):
            for choice in range(2):
                if step[x, choice] >= 0:
                    step[x, choice] = merged[step[x, choice]]
        found = kept
    return found


@inner
def _slot(table, mask, inside, outside, a, b):
    """Place in the hash table of the state (a, b), or the free place where it belongs."""
    key = (a * np.uint64(0x9E3779B97F4A7C15)) ^ (b * np.uint64(0xC2B2AE3D27D4EB4F))
    key ^= key >> np.uint64(29)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    at = (key >> np.uint64(32)) & mask
    while table[at] >= 0 and (inside[table[at]] != a or outside[table[at]] != b):
        at = (at + np.uint64(1)) & mask
    return at


@inner
def open_nets(unit_nets, begin, end, nets, scratch, inside, outside):
    """Give each net of a unit a slot, if it has none; a net without a free one is given up.

    Returns the bits of its nets, of those that end with it, and of slots that nets leave which end
    with it; and whether no net was given up.
    """
    pins_left, weight = nets
    slot_of, net_of, users, shared = (
        scratch.slot_of, scratch.net_of, scratch.users, scratch.shared
    )  # fmt: skip
    one = np.uint64(1)
    touched, closed, left = np.uint64(0), np.uint64(0), np.uint64(0)
    all_open = True
    common = -1  # slot of the nets that begin with this unit
    for j in range(begin, end):
        e = unit_nets[j]
        s = slot_of[e]
        pins_left[e] -= 1
        if s == -2:
            continue
        source = -1
        if s >= 0 and users[s] > 1:
            source = s
            users[s] -= 1
            shared[1, s] -= weight[e]
            if pins_left[e] == 0:
                bit = one << np.uint64(s)
                if not left & bit:
                    shared[0, s] = 0.0
                left |= bit
                shared[0, s] += weight[e]
                continue
            s = -1
        if s >= 0:
            net_of[s] = e
        else:
            if source < 0 and common >= 0:
                slot_of[e] = common
                users[common] += 1
                shared[1, common] += weight[e]
                continue
            s = 0
            while s < SLOTS and net_of[s] >= 0:
                s += 1
            if s == SLOTS:
                slot_of[e] = -2
                all_open = False
                continue
            slot_of[e] = s
            net_of[s] = e
            users[s] = 1
            shared[1, s] = weight[e]
            if source < 0:
                common = s
            for x in range(len(inside) if source >= 0 else 0):
                inside[x] |= (inside[x] >> np.uint64(source) & one) << np.uint64(s)
                outside[x] |= (outside[x] >> np.uint64(source) & one) << np.uint64(s)
        touched |= one << np.uint64(s)
        if pins_left[e] == 0:
            closed |= one << np.uint64(s)
    return touched, closed, left, all_open


@inner
def close_nets(net_of, closed):
    """Free the slots of nets that are closed."""
    for s in range(SLOTS):
        if net_of[s] >= 0 and (closed >> np.uint64(s)) & np.uint64(1):
            net_of[s] = -1
