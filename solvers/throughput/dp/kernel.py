"""The inner loops of the dynamic program over ideals."""

from __future__ import annotations

import numpy as np

from ....instances.model.kernel import inner, kernel

#: A sum that has fallen by this factor is added up again: what was subtracted has left its rounding
#: behind.
FALLEN = 1e3


@kernel
def windows(first, last, start, unit, to, weights, total, used, left, inside, alive):
    """Mark for ideals `first` … `last` − 1 the states that no plan within the limits can be in.

    Parameters
    ----------
    weights
        Shape (Q, U): weights of the units; `total` are their sums.
    used, left
        Shape (Q, S): the weight that the devices used in a state, and those left, can take.
    inside
        Shape (N, Q): weight of each ideal, filled in as far as ideals can be reached so far.
    alive
        Shape (N, S): set to False.
    """
    questions, states = used.shape
    for ideal in range(first, last):
        for step in range(start[ideal], start[ideal + 1]):
            for q in range(questions):
                inside[to[step], q] = inside[ideal, q] + weights[q, unit[step]]
        for s in range(states):
            for q in range(questions):
                weight = inside[ideal, q]
                if weight > used[q, s] or total[q] - weight > left[q, s]:
                    alive[ideal, s] = False
                    break


@kernel
def undominated(
    start, unit, to, row, value, origin, by, keep, state, stride, used, yields, incumbent, floor
):  # fmt: skip
    """Mark in `keep` the ideals whose best plan in `state` must be extended; return how many.

    Not those where fewer devices do as well, nor those where a larger ideal does as well that
    differs by units which may leave any stage without adding to its load. All values of the
    state must be final. Values up to `floor` count as equal.

    Parameters
    ----------
    used
        Shape (K,): devices used in the state.
    yields
        Shape (U,): whether a unit may leave any stage whose first units it belongs to.
    """
    size = len(start) - 1
    beyond = np.full(size, np.inf)  # least value of the larger ideals, and of the ideal itself
    kept = 0
    for ideal in range(size - 1, -1, -1):
        for step in range(start[ideal], start[ideal + 1]):
            if yields[unit[step]]:
                beyond[ideal] = min(beyond[ideal], beyond[to[step]])
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
                    by[mine, state] = k
        if origin[mine, state] >= 0:
            here = value[mine, state]
            keep[mine, state] = needed and here < incumbent and beyond[ideal] > max(here, floor)
            kept += keep[mine, state]
            beyond[ideal] = min(beyond[ideal], here)
    return kept


@kernel
def splits(
    members, start, unit, to, pin_start, pin, of_start, of, net_weight, split
):  # fmt: skip
    """Fill in, shape (N, C), the weight of the nets that each ideal splits."""
    one = np.uint64(1)
    known = np.zeros(len(members), np.bool_)
    most = np.zeros(split.shape)  # the greatest sum since it was added up
    held = np.zeros(len(net_weight), np.int64)
    none = np.zeros(len(net_weight), np.bool_)
    for ideal in range(len(members)):
        for step in range(start[ideal], start[ideal + 1]):
            reached, v = to[step], unit[step]
            if known[reached]:
                continue
            known[reached] = True
            for n in range(split.shape[1]):
                split[reached, n] = split[ideal, n]
                most[reached, n] = most[ideal, n]
            for a in range(of_start[v], of_start[v + 1]):
                e = of[a]
                inside = 0
                for p in range(pin_start[e], pin_start[e + 1]):
                    u = pin[p]
                    inside += (members[ideal, u >> 6] >> np.uint64(u & 63)) & one
                if inside == 0:
                    for n in range(split.shape[1]):
                        split[reached, n] += net_weight[e, n]
                        most[reached, n] = max(most[reached, n], split[reached, n])
                elif inside == pin_start[e + 1] - pin_start[e] - 1:
                    for n in range(split.shape[1]):
                        split[reached, n] -= net_weight[e, n]
            for n in range(split.shape[1]):
                if most[reached, n] > FALLEN * split[reached, n]:
                    for e in range(len(held)):
                        held[e] = 0
                        for p in range(pin_start[e], pin_start[e + 1]):
                            u = pin[p]
                            held[e] += (members[reached, u >> 6] >> np.uint64(u & 63)) & one
                    split[reached, n] = most[reached, n] = _open(
                        held, none, pin_start, net_weight, n
                    )


@inner
def _open(held, inside, pin_start, net_weight, n):
    """Return the weight in lane n of the nets not `inside` of which some pins are held."""
    total = 0.0
    for e in range(len(held)):
        if 0 < held[e] < pin_start[e + 1] - pin_start[e] and not inside[e]:
            total += net_weight[e, n]
    return total


@kernel
def relax(
    first, budget, members, start, unit, to,
    row, value, origin, by, keep, now, stride, may_use,
    lane_kind, lane_limit, lane_counts, unit_weight, net_weight,
    pin_start, pin, of_start, of, split,
):  # fmt: skip
    """Extend the plans of ideals `first`, … by one more stage; return the next ideal and the work.

    Stages S are grown from an ideal by adding units in increasing number, so that each is met
    once; its loads are kept up to date unit by unit. A net with a pin in the ideal is cut for
    good as soon as S has one; this part of a load and the time of the units only grow, and S is
    dropped as soon as they pass the limits on every kind.

    Parameters
    ----------
    budget
        Pairs of ideals after which to return.
    row
        Shape (N,): row of each ideal in `value`, `origin` and `by`; −1 for ideals out of reach.
    value, origin, by
        Shape (rows, S): least max-load; the ideal and the kind of device it came from. −1 where
        the state is out of reach.
    keep
        Shape (rows, S): whether to extend the plan.
    now
        States to extend.
    stride
        Shape (K,): what one more device of a kind adds to the number of a state.
    may_use
        Shape (S, K): whether a device of the kind is left.
    lane_kind, lane_limit, lane_counts
        Shape (L,): rows by kind, their limits, and whether they count for the max-load.
    unit_weight, net_weight
        Shape (U, L), and (E, C) for the first C lanes; the others do not pay for nets.
    pin_start, pin, of_start, of
        Units of each net, and nets of each unit.
    split
        Shape (N, C): what crosses the boundary behind each ideal, which the stages on both sides
        pay; there are no nets then. Of no rows if nothing is relayed.
    """
    size, units, nets = len(start) - 1, len(unit_weight), len(net_weight)
    relayed = len(split) > 0
    states, kinds, lanes = value.shape[1], len(stride), len(lane_kind)
    charged = net_weight.shape[1]
    one = np.uint64(1)
    held = np.zeros(nets, np.int64)  # pins in the stage
    inside = np.zeros(nets, np.bool_)  # whether a pin is in the ideal
    node = np.zeros(units + 1, np.int64)
    at = np.zeros(units + 1, np.int64)
    added = np.full(units + 1, -1, np.int64)
    fixed = np.zeros((units + 1, lanes))
    loose = np.zeros((units + 1, charged))
    most = np.zeros((units + 1, charged))  # the greatest `loose` since it was added up
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
        for e in range(nets):
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
