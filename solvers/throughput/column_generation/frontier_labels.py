"""The inner loop of the frontier: labels of partial sets."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import kernel


@kernel
def hope(forward, ptr, source, taken, cost, price, load, allowed, charge, transfer_price, slope):
    """Return the most that the part of a set before each state (after, if not `forward`) is worth.

    Each unit of load takes `slope` from it. The other terms are as in `extend`; shape (S,).
    """
    states = len(ptr) - 1
    best = np.full(states, -np.inf)
    best[0 if forward else states - 1] = 0.0
    for i in range(1, states):
        x = i if forward else states - 1 - i
        for j in range(ptr[x], ptr[x + 1]):
            unit = taken[j]
            worth = best[source[j]] - (transfer_price + slope * charge) * cost[j]
            if unit >= 0:
                if not allowed[unit]:
                    continue
                worth += price[unit] - slope * load[unit]
            best[x] = max(best[x], worth)
    return best


@kernel
def extend(
    forward, ptr, source, taken, cost, price, load, allowed, charge, transfer_price, limit, floor,
    buckets, slopes, hopes,
    has_rest, rest_begin, rest_count, rest_value, rest_used,
    state, begin, count, value, used, origin, budget,
):  # fmt: skip
    """Extend labels of partial sets state by state, until the work `budget` is spent.

    A label is the value and the load of the part of a set before a state (after it, if not
    `forward`). Those of one state whose loads fall into one bucket become one with the greater
    value and the smaller load, and those of more load and no more value are dropped: this
    relaxes, so that every set within the load is represented by labels of at least its value and
    at most its load. A label is also dropped if no label of the other direction completes it to
    a value above `floor` within the load `limit`, or none can, as `hopes` tell.

    Parameters
    ----------
    ptr, source, taken, cost
        Steps, from `arcs_forward` or `arcs_backward`.
    price, load, allowed
        Shape (U,), in order: value and compute time of each unit, and whether it may be taken.
    charge, transfer_price
        Share of the transfers that counts as load (0 where they overlap), and what a unit of
        them takes from the value.
    slopes, hopes
        Shapes (R,) and (S, R): `hope` of the other direction at some slopes.
    has_rest, rest_begin, rest_count, rest_value, rest_used
        Labels of the other direction, in the same form, if there are any.
    state
        Shape (3,): states done, labels so far, 1 if the arrays must grow. Read and written.
    begin, count, value, used
        Labels: those of state x are begin[x] … begin[x] + count[x] − 1, by load, their values
        increasing. The first state has one label when this begins.
    origin
        For each label: 2·(label that it comes from) + (whether the unit between is taken).

    Returns
    -------
    bool
        Whether all states are done.
    """
    best_value = np.full(buckets + 2, -np.inf)
    best_used = np.empty(buckets + 2)
    best_from = np.empty(buckets + 2, np.int64)
    scale = buckets / limit if limit > 0 else 0.0
    states = len(ptr) - 1
    work = 0
    state[2] = 0
    while state[0] < states and work < budget:
        x = state[0] if forward else states - 1 - state[0]
        kept = state[1]
        room = 0
        for j in range(ptr[x], ptr[x + 1]):
            room += count[source[j]]
        if kept + min(room, buckets + 2) > len(value):
            state[2] = 1
            break
        low, high = buckets + 2, -1
        for j in range(ptr[x], ptr[x + 1]):
            unit = taken[j]
            more = charge * cost[j]
            plus = -transfer_price * cost[j]
            choice = 0
            if unit >= 0:
                if not allowed[unit]:
                    continue
                choice = 1
                more += load[unit]
                plus += price[unit]
            first = begin[source[j]]
            rest = 0
            if has_rest:
                rest = rest_begin[x] + rest_count[x] - 1
            for k in range(first, first + count[source[j]]):
                now = used[k] + more
                if now > limit:
                    break
                worth = value[k] + plus
                work += 1
                hopeless = False
                for r in range(len(slopes)):
                    if worth + hopes[x, r] + slopes[r] * (limit - now) <= floor:
                        hopeless = True
                        break
                if hopeless:
                    continue
                if has_rest:
                    while rest >= rest_begin[x] and now + rest_used[rest] > limit:
                        rest -= 1
                    if rest < rest_begin[x]:
                        break
                    if worth + rest_value[rest] <= floor:
                        continue
                at = int(now * scale)
                low = min(low, at)
                high = max(high, at)
                if best_value[at] == -np.inf:
                    best_value[at] = worth
                    best_used[at] = now
                    best_from[at] = 2 * k + choice
                else:
                    if worth > best_value[at]:
                        best_value[at] = worth
                        best_from[at] = 2 * k + choice
                    if now < best_used[at]:
                        best_used[at] = now
        begin[x] = kept
        most = -np.inf
        for at in range(low, high + 1):
            if best_value[at] > most:
                most = best_value[at]
                value[kept] = most
                used[kept] = best_used[at]
                origin[kept] = best_from[at]
                kept += 1
            best_value[at] = -np.inf
        count[x] = kept - begin[x]
        work += high - low + 10 if high >= low else 10
        state[0] += 1
        state[1] = kept
    return state[0] == states
