"""Slots of the frontier: a bit of the states for each open net, or for several that are alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.kernel import inner

#: Most slots: a bit each.
SLOTS = 62


class Nets(NamedTuple):
    """What `build` knows of nets; shape (E,) each.

    Parameters
    ----------
    pins_left
        Pins among the units to place.
    fixed
        Bits that a net has from the beginning: 1 for a pin on A, 2 for one on B.
    outside
        Whether a net has a pin that is on neither.
    weight_in, weight_out
        What a cut net costs A and B.
    """

    pins_left: Ints
    fixed: Ints
    outside: Bools
    weight_in: Floats
    weight_out: Floats


class Scratch(NamedTuple):
    """What `_build` works in."""

    slot_of: Ints  # of each net; −1: none, −2: given up
    net_of: Ints  # of each slot; any of them where nets share it
    users: Ints  # nets of each slot
    shared: Floats  # (3, SLOTS): what nets cost A and B that leave a slot and end; sum of weights
    bits_a: NDArray[np.uint64]  # of the states of two layers in turn, shape (2, 2·width)
    bits_b: NDArray[np.uint64]
    paid: Floats  # at least, to reach them
    table: Ints  # hash table of states
    merged: Ints  # number of each state after nets are given up


@inner
def open_nets(unit_nets, begin, end, nets, scratch, away, on_a, on_b):
    """Give each net of a unit a slot, if it has none; a net without a free one is given up.

    Returns the bits of its nets, of those that end with it, of slots that nets leave which end
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
    """Free the slots of nets that are closed; return the bits of open ones with a pin outside."""
    one = np.uint64(1)
    for s in range(SLOTS):
        if net_of[s] >= 0 and (closed >> np.uint64(s)) & one:
            away &= ~(one << np.uint64(s))
            net_of[s] = -1
    return away
