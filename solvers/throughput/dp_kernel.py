"""Kernels of the dynamic program over ideals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.common.kernel import inner, kernel

#: Factor by which a running sum may fall before it is summed anew, as subtraction leaves rounding
#: errors of the size of the greatest sum.
FALLEN = 1e3


class LatticeSteps(NamedTuple):
    """The lattice of N ideals of U units, as in `Lattice`."""

    members: NDArray[np.uint64]  # (N, words) bits
    start: Ints  # (N + 1,)
    unit: NDArray[np.int32]
    to: NDArray[np.int32]


class LatticeTable(NamedTuple):
    """Best plans that end at each of R reachable ideals, in S states."""

    row: Ints  # (N,) row of each ideal in the arrays below; −1: out of reach
    value: Floats  # (R, S) least max-load; −1: state out of reach
    origin: NDArray[np.int32]  # (R, S) the ideal before the last stage; −1: no plan
    by: NDArray[np.int8]  # (R, S) the kind of the last stage's device
    keep: Bools  # (R, S) whether to extend the plan


class LatticeLanes(NamedTuple):
    """Rows of the program by kind of device: L lanes, of which the first C pay for nets."""

    kind: Ints  # (L,)
    limit: Floats  # (L,)
    counts: Bools  # (L,) whether it is of the minimised criterion
    unit_weight: Floats  # (U, L)
    net_weight: Floats  # (E, C)


class OpenStates(NamedTuple):
    """States whose plans are extended by a stage on one more device."""

    now: Ints
    stride: Ints  # (K,) what one more device of a kind adds to the number of a state
    may_use: Bools  # (S, K) whether a device of the kind is left


@kernel
def undominated(steps, table, state, stride, used, yields, incumbent, floor):
    """Mark in `keep` the ideals whose best plan in `state` must be extended.

    An ideal need not be extended if a plan with fewer devices is as good, or if a larger ideal is
    as good that differs by units which may leave any stage without adding to its load (`yields`).
    All values of the state must be final. Values up to `floor` count as equal. `stride`, shape
    (K,), is what one more device of a kind adds to the number of a state.
    """
    row, value, origin = table.row, table.value, table.origin
    size = len(steps.start) - 1
    beyond = np.full(size, np.inf)  # least value of the larger ideals, and of the ideal itself
    for ideal in range(size - 1, -1, -1):
        for step in range(steps.start[ideal], steps.start[ideal + 1]):
            if yields[steps.unit[step]]:
                beyond[ideal] = min(beyond[ideal], beyond[steps.to[step]])
        mine = row[ideal]
        if mine < 0 or value[mine, state] < 0:
            continue
        needed = True
        for k in range(len(stride)):
            if used[k] > 0 and origin[mine, state - stride[k]] >= 0:
                fewer = value[mine, state - stride[k]]
                if fewer <= max(value[mine, state], floor):
                    needed = False
                if fewer < value[mine, state]:  # leave one device of the kind empty
                    value[mine, state] = fewer
                    origin[mine, state] = ideal
                    table.by[mine, state] = k
        if origin[mine, state] >= 0:
            here = value[mine, state]
            table.keep[mine, state] = (
                needed and here < incumbent and beyond[ideal] > max(here, floor)
            )
            beyond[ideal] = min(beyond[ideal], here)


@inner
def _open(held, inside, pin_start, net_weight, n):
    """Return the weight in lane n of the nets with some pins held, not all, and none `inside`."""
    total = 0.0
    for e in range(len(held)):
        if 0 < held[e] < pin_start[e + 1] - pin_start[e] and not inside[e]:
            total += net_weight[e, n]
    return total


@kernel
def relax(first, budget, steps, table, open_states, lanes, nets, split):
    """Extend the plans of ideals `first`, … by one more stage; return next ideal, pairs visited.

    It returns after `budget` pairs of ideals. Stages S grow from an ideal by units of increasing
    number, so each is visited once; its loads are updated unit by unit. A net with a pin in the
    ideal stays cut once S has one of its pins; this part of a load and the compute time only grow,
    and S is dropped as soon as they exceed the limits on every kind. `split`, shape (N, C), is the
    cost of what crosses the boundary behind each ideal, paid by the stages on both sides; it has
    no rows if nothing is relayed, otherwise there are no nets.

    It is a single function because its steps as functions of their own, which numba does not inline
    for so many arrays, take five times as long.
    """
    members, start, unit, to = steps
    row, value, origin, by, keep = table
    now, stride, may_use = open_states
    lane_kind, lane_limit, lane_counts, unit_weight, net_weight = lanes
    pin_start, pin, of_start, of = nets
    size, units = len(start) - 1, len(unit_weight)
    relayed = len(split) > 0
    states, kinds, lanes = value.shape[1], len(stride), len(lane_kind)
    charged = net_weight.shape[1]
    one = np.uint64(1)
    held = np.zeros(len(net_weight), np.int64)  # pins in the stage
    inside = np.zeros(len(net_weight), np.bool_)  # whether a pin is in the ideal
    node = np.zeros(units + 1, np.int64)
    at = np.zeros(units + 1, np.int64)
    added = np.full(units + 1, -1, np.int64)
    fixed = np.zeros((units + 1, lanes))
    loose = np.zeros((units + 1, charged))
    most = np.zeros((units + 1, charged))  # greatest `loose` since it was summed anew
    open_state = np.zeros(states, np.int64)
    open_value = np.zeros(states)
    fits = np.zeros(kinds, np.bool_)
    load = np.zeros(kinds)
    pairs = 0
    ideal = first
    while ideal < size and pairs < budget:
        mine = row[ideal]
        if mine < 0:
            ideal += 1
            continue
        many = 0
        for s in now:
            if keep[mine, s]:
                open_state[many] = s
                open_value[many] = value[mine, s]
                many += 1
        if many == 0:
            ideal += 1
            continue
        for e in range(len(net_weight)):
            inside[e] = False
            for p in range(pin_start[e], pin_start[e + 1]):
                v = pin[p]
                if (members[ideal, v >> 6] >> np.uint64(v & 63)) & one:
                    inside[e] = True
                    break
        for n in range(charged if relayed else 0):
            fixed[0, n] = split[ideal, n]
        depth = 0
        node[0] = ideal
        at[0] = start[ideal + 1] - 1
        while depth >= 0:
            step = at[depth]
            if step < start[node[depth]] or unit[step] <= added[depth]:
                if depth > 0:
                    v = added[depth]
                    for a in range(of_start[v], of_start[v + 1]):
                        held[of[a]] -= 1
                depth -= 1
                continue
            at[depth] = step - 1
            v = unit[step]
            reached = to[step]
            pairs += 1
            deep = depth + 1
            grows = False
            for n in range(lanes):
                fixed[deep, n] = fixed[depth, n] + unit_weight[v, n]
            for k in range(kinds):
                fits[k] = True
            for n in range(lanes):
                if fixed[deep, n] > lane_limit[n]:
                    fits[lane_kind[n]] = False
            for k in range(kinds):
                grows |= fits[k]
            if not grows:
                continue
            for n in range(charged):
                loose[deep, n] = loose[depth, n]
                most[deep, n] = most[depth, n]
            for a in range(of_start[v], of_start[v + 1]):
                e = of[a]
                held[e] += 1
                if held[e] == 1:
                    if inside[e]:
                        for n in range(charged):
                            fixed[deep, n] += net_weight[e, n]
                    else:
                        for n in range(charged):
                            loose[deep, n] += net_weight[e, n]
                            most[deep, n] = max(most[deep, n], loose[deep, n])
                elif held[e] == pin_start[e + 1] - pin_start[e]:
                    for n in range(charged):
                        loose[deep, n] -= net_weight[e, n]
            grows = False
            for n in range(charged):
                if most[deep, n] > FALLEN * (fixed[deep, n] + loose[deep, n]):
                    loose[deep, n] = most[deep, n] = _open(held, inside, pin_start, net_weight, n)
            for n in range(charged):
                if fixed[deep, n] > lane_limit[n]:
                    fits[lane_kind[n]] = False
            for k in range(kinds):
                load[k] = 0.0
                grows |= fits[k]
            if not grows:
                for a in range(of_start[v], of_start[v + 1]):
                    held[of[a]] -= 1
                continue
            theirs = row[reached]
            if theirs >= 0:
                for n in range(lanes):
                    k = lane_kind[n]
                    full = fixed[deep, n] + (loose[deep, n] if n < charged else 0.0)
                    if relayed and n < charged:
                        full += split[reached, n]
                    if full > lane_limit[n]:
                        fits[k] = False
                    elif lane_counts[n] and full > load[k]:
                        load[k] = full
                for k in range(kinds):
                    if fits[k]:
                        for i in range(many):
                            s = open_state[i]
                            if may_use[s, k]:
                                worst = max(open_value[i], load[k])
                                if worst < value[theirs, s + stride[k]]:
                                    value[theirs, s + stride[k]] = worst
                                    origin[theirs, s + stride[k]] = ideal
                                    by[theirs, s + stride[k]] = k
            node[deep] = reached
            added[deep] = v
            at[deep] = start[reached + 1] - 1
            depth = deep
        ideal += 1
    return ideal, pairs
