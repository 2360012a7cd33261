"""Kernels that build a frontier: the states between the units of an order, layer by layer.

A state has two bits for each open net: a pin in the set, and a pin outside. Nets that have the same
pins placed share a *slot* of bits, which is free again when the last of them closes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import inner, kernel

#: Most slots, one bit each.
SLOTS = 62


class FrontierNets(NamedTuple):
    """Nets as `build` reads them; all of shape (E,)."""

    pins_left: Ints  # pins among the units to place
    fixed: Ints  # bits of a net at the start: 1 for a pin on A, 2 for one on B
    outside: Bools  # whether a net has a pin that is on neither
    weight_in: Floats  # weight_in, weight_out: costs of a cut net to A and to B
    weight_out: Floats


class FrontierLimits(NamedTuple):
    """Limits on the states that are built."""

    # both, most: most cost of A or, with `both`, of A and B together; states that cannot be reached
    # within it are excluded
    both: bool
    most: float
    width: int  # width, room: most states of one layer, and of all layers
    room: int
    # whether a layer wider than `width` gives up nets (their later costs are not charged, so costs
    # are only underestimated), instead of ending the construction
    relax: bool


class FrontierScratch(NamedTuple):
    """Working arrays of `_build`."""

    slot_of: Ints  # slot of each net; −1: none, −2: given up
    net_of: Ints  # net of each slot; any of those that share it
    users: Ints  # number of nets of each slot
    shared: Floats  # (3, SLOTS): costs to A and B of nets that leave a slot and end; sum of weights
    bits_a: NDArray[np.uint64]  # bits of the states of two layers in turn, shape (2, 2·width)
    bits_b: NDArray[np.uint64]
    paid: Floats  # least cost of reaching them
    table: Ints  # hash table of states
    merged: Ints  # number of each state after nets are given up


#: First capacity, in states and in slots of the hash table.
FEW = 1 << 14

#: Results of building: done, more states than allowed, or arrays too short.
MADE, TOO_MANY, FULL = 1, 0, -1


def build(
    order: Ints,
    unit_ptr: Ints,
    unit_nets: Ints,
    nets: FrontierNets,
    limits: FrontierLimits,
) -> tuple[Ints, Ints, Floats, Floats, bool]:
    """Build the states that can arise between the units of an order, with the costs of all steps.

    A state holds two bits for each open net: whether a pin is on A, and whether one is on B. Nets
    of which only one unit is placed share bits, so a unit of many nets takes one slot. Step 1 puts
    a unit on A, step 0 on B. A net costs A its `weight_in` once it has a pin on A and one
    elsewhere, and B its `weight_out` once it has a pin on B and one elsewhere.

    Returns the states of each layer as ranges, shape (len(order) + 2,), empty if there are too
    many; the state after each step, shape (S, 2), −1 if excluded; the costs of the step to A and
    B, shape (S, 2) each; and whether no net was given up.
    """
    layer_ptr = np.zeros(len(order) + 2, np.int64)
    layer_ptr[1] = 1
    capacity, places = FEW, FEW
    width = limits.width
    while places < 8 * width:
        places *= 2
    code, exact = FULL, False
    while code == FULL:
        step = np.empty((capacity, 2), np.int64)
        cost_in, cost_out = np.empty((capacity, 2)), np.empty((capacity, 2))
        bits, paid = np.empty((2, 2, 2 * width), np.uint64), np.empty((2, 2 * width))
        bits[:, 0, 0] = paid[0, 0] = 0
        room_for = FrontierScratch(
            np.full(len(nets.pins_left), -1), np.full(SLOTS, -1), np.zeros(SLOTS, np.int64),
            np.zeros((3, SLOTS)), bits[0], bits[1], paid,
            np.empty(places, np.int64), np.empty(2 * width, np.int64),
        )  # fmt: skip
        code, exact = _build(
            order, unit_ptr, unit_nets, nets._replace(pins_left=nets.pins_left.copy()),
            limits, (layer_ptr, step, cost_in, cost_out), room_for,
        )  # fmt: skip
        capacity = min(8 * capacity, limits.room)
    total = layer_ptr[-2] if code == MADE else 0
    layers = layer_ptr if code == MADE else layer_ptr[:0]
    return layers, step[:total], cost_in[:total], cost_out[:total], exact


@kernel
def _build(order, unit_ptr, unit_nets, nets, limits, made, scratch):
    """Build states into `made`, as `build` says; return a code and whether no net was given up.

    The code is MADE, TOO_MANY, or FULL, which asks for longer arrays of steps. The caller allocates
    arrays, as each new type of array takes 0.1 s to compile.
    """
    layer_ptr, step, cost_in, cost_out = made
    bits_a, bits_b, least_paid = scratch.bits_a, scratch.bits_b, scratch.paid
    net_of, shared, places = scratch.net_of, scratch.shared, 4096
    away = np.uint64(0)  # slots of open nets with a pin outside
    exact = True
    on_a, on_b, paid = bits_a[0, :1], bits_b[0, :1], least_paid[0, :1]
    for i in range(len(order)):
        first, count = layer_ptr[i], layer_ptr[i + 1] - layer_ptr[i]
        begin, end = unit_ptr[order[i]], unit_ptr[order[i] + 1]
        touched, closed, left, away, all_open = open_nets(
            unit_nets, begin, end, nets, scratch, away, on_a, on_b
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
        later = (bits_a[after], bits_b[after], least_paid[after])
        found = _take(
            first, (on_a, on_b, paid), (touched, closed, left, away),
            (net_of, nets.weight_in, nets.weight_out, shared), (step, cost_in, cost_out), table,
            later, limits,
        )  # fmt: skip
        away = close_nets(net_of, closed, away)
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
        on_a, on_b, paid = later[0][:found], later[1][:found], later[2][:found]
    return MADE, exact


@inner
def _take(first, states, bits, costs, steps, table, later, limits):
    """Take the steps from the states of a layer, and write those they reach; return how many."""
    on_a, on_b, paid = states
    touched, closed, left, away = bits
    net_of, weight_in, weight_out, shared = costs
    step, cost_in, cost_out = steps
    next_a, next_b, next_paid = later
    one, mask = np.uint64(1), np.uint64(len(table) - 1)
    table[:] = -1
    found = 0
    for x in range(len(on_a)):
        a0, b0 = on_a[x], on_b[x]
        before_a = a0 & (b0 | away)
        before_b = b0 & (a0 | away)
        for choice in range(2):
            a1, b1 = a0, b0
            if choice == 1:
                a1 |= touched
            else:
                b1 |= touched
            total_in, total_out = 0.0, 0.0
            fresh = (a1 & (b1 | away)) & ~before_a
            s = 0
            while fresh:
                if fresh & one:
                    total_in += weight_in[net_of[s]]
                fresh >>= one
                s += 1
            fresh = (b1 & (a1 | away)) & ~before_b
            s = 0
            while fresh:
                if fresh & one:
                    total_out += weight_out[net_of[s]]
                fresh >>= one
                s += 1
            fresh = left & (b0 & ~a0 if choice == 1 else a0 & ~b0)
            s = 0
            while fresh:
                if fresh & one:
                    total_in += shared[0, s]
                    total_out += shared[1, s]
                fresh >>= one
                s += 1
            cost_in[first + x, choice] = total_in
            cost_out[first + x, choice] = total_out
            now_paid = paid[x] + total_in + (total_out if limits.both else 0.0)
            if now_paid > limits.most:
                step[first + x, choice] = -1
                continue
            a1 &= ~closed
            b1 &= ~closed
            at = _slot(table, mask, next_a, next_b, a1, b1)
            if table[at] < 0:
                table[at] = found
                next_a[found] = a1
                next_b[found] = b1
                next_paid[found] = np.inf
                found += 1
            next_paid[table[at]] = min(next_paid[table[at]], now_paid)
            step[first + x, choice] = table[at]
    return found


@inner
def _give_up(first, count, step, table, later, found, width, scratch):
    """Merge states that differ only in the cheapest nets, until few remain; return their number."""
    next_a, next_b, next_paid = later
    net_of, shared, merged = scratch.net_of, scratch.shared, scratch.merged
    one, mask = np.uint64(1), np.uint64(len(table) - 1)
    given_up = np.uint64(0)
    while found > width:
        least = -1
        for s in range(SLOTS):
            if net_of[s] < 0 or (given_up >> np.uint64(s)) & one:
                continue
            if least < 0 or shared[2, s] < shared[2, least]:
                least = s
        bit = one << np.uint64(least)
        given_up |= bit
        table[:] = -1
        kept = 0
        for x in range(found):
            a1 = next_a[x] | bit
            b1 = next_b[x] | bit
            at = _slot(table, mask, next_a, next_b, a1, b1)
            if table[at] < 0:
                table[at] = kept
                next_a[kept] = a1
                next_b[kept] = b1
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
def _slot(table, mask, on_a, on_b, a, b):
    """Return the slot of state (a, b) in the hash table, or the free slot where it belongs."""
    key = (a * np.uint64(0x9E3779B97F4A7C15)) ^ (b * np.uint64(0xC2B2AE3D27D4EB4F))
    key ^= key >> np.uint64(29)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    at = (key >> np.uint64(32)) & mask
    while table[at] >= 0 and (on_a[table[at]] != a or on_b[table[at]] != b):
        at = (at + np.uint64(1)) & mask
    return at


@inner
def open_nets(unit_nets, begin, end, nets, scratch, away, on_a, on_b):
    """Give each net of a unit a slot, if it has none; a net is given up if no slot is free.

    Returns the bits of the unit's nets, of those that end with it, of slots left by nets that end
    with it, and of nets with a pin outside; and whether no net was given up.
    """
    pins_left, fixed, outside, weight_in, weight_out = nets
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
            shared[2, s] -= weight_in[e]
            if pins_left[e] == 0:
                bit = one << np.uint64(s)
                if not left & bit:
                    shared[0, s] = 0.0
                    shared[1, s] = 0.0
                left |= bit
                shared[0, s] += weight_in[e]
                shared[1, s] += weight_out[e]
                continue
            s = -1
        if s >= 0:
            net_of[s] = e
        else:
            plain = source < 0 and fixed[e] == 0 and not outside[e]
            if plain and pins_left[e] == 0:
                continue
            if plain and common >= 0:
                slot_of[e] = common
                users[common] += 1
                shared[2, common] += weight_in[e]
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
            shared[2, s] = weight_in[e]
            if plain:
                common = s
            bit = one << np.uint64(s)
            if outside[e]:
                away |= bit
            for x in range(len(on_a)):
                if source >= 0:
                    on_a[x] |= (on_a[x] >> np.uint64(source) & one) << np.uint64(s)
                    on_b[x] |= (on_b[x] >> np.uint64(source) & one) << np.uint64(s)
                if fixed[e] & 1:
                    on_a[x] |= bit
                if fixed[e] & 2:
                    on_b[x] |= bit
        touched |= one << np.uint64(s)
        if pins_left[e] == 0:
            closed |= one << np.uint64(s)
    return touched, closed, left, away, all_open


@inner
def close_nets(net_of, closed, away):
    """Free the slots of closed nets; return the bits of open nets with a pin outside."""
    one = np.uint64(1)
    for s in range(SLOTS):
        if net_of[s] >= 0 and (closed >> np.uint64(s)) & one:
            away &= ~(one << np.uint64(s))
            net_of[s] = -1
    return away
