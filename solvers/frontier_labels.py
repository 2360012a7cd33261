"""Inner loops of the frontier: the set of the best price within a load, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def incoming(layer_ptr, step):  # type: ignore[no-untyped-def]
    """Return the steps that lead into each state, as compressed rows of 2·state + choice."""
    states = layer_ptr[-1]
    ptr = np.zeros(states + 1, np.int64)
    for x in range(len(step)):
        for choice in range(2):
            ptr[step[x, choice] + 1] += 1
    for x in range(states):
        ptr[x + 1] += ptr[x]
    fill = ptr[:-1].copy()
    source = np.empty(2 * len(step), np.int64)
    for x in range(len(step)):
        for choice in range(2):
            source[fill[step[x, choice]]] = 2 * x + choice
            fill[step[x, choice]] += 1
    return ptr, source


@njit(cache=True)
def complete(  # type: ignore[no-untyped-def]
    layer_ptr, step, cost, price, load, allowed, charge, toll, limit, buckets,
    state, begin, count, value, used, budget,
):  # fmt: skip
    """Carry labels of completions backward, layer by layer, until the work `budget` is spent.

    The labels of a state x are in `value` and `used` from begin[x] on, count[x] of them, by load;
    their values increase. Labels in one bucket of load become one with the greater value and the
    smaller load, so they bound every completion from above.

    Parameters
    ----------
    cost
        Shape (S, 2): transfer time that a step adds.
    price, load, allowed
        Shape (U,), in the order of the layers: value and compute time of the unit of each layer,
        and whether it may be taken.
    charge, toll
        Share of the transfers that counts as load (0 where they overlap), and what a unit of
        them takes from the value.
    state
        Shape (3,): states still to do, labels so far, 1 if the arrays must grow.

    Returns
    -------
    bool
        Whether all is done.
    """
    best_value = np.full(buckets + 1, -np.inf)
    best_used = np.empty(buckets + 1)
    scale = buckets / limit if limit > 0 else 0.0
    x, kept = state[0], state[1]
    layer = np.searchsorted(layer_ptr, x - 1, side="right") - 1 if x > 0 else 0
    work = 0
    state[2] = 0
    while x > 0 and work < budget:
        if kept + buckets + 1 > len(value):
            state[2] = 1
            break
        x -= 1
        while layer_ptr[layer] > x:
            layer -= 1
        low, high = buckets + 1, -1
        for choice in range(2):
            if choice == 1 and not allowed[layer]:
                continue
            more = charge * cost[x, choice]
            plus = -toll * cost[x, choice]
            if choice == 1:
                more += load[layer]
                plus += price[layer]
            target = step[x, choice]
            for k in range(begin[target], begin[target] + count[target]):
                now = used[k] + more
                if now > limit:
                    break
                worth = value[k] + plus
                at = int(now * scale)
                low = min(low, at)
                high = max(high, at)
                if best_value[at] == -np.inf:
                    best_value[at] = worth
                    best_used[at] = now
                else:
                    best_value[at] = max(worth, best_value[at])
                    best_used[at] = min(now, best_used[at])
        begin[x] = kept
        most = -np.inf
        for at in range(low, high + 1):
            if best_value[at] > most:
                most = best_value[at]
                value[kept] = most
                used[kept] = best_used[at]
                kept += 1
            best_value[at] = -np.inf
        count[x] = kept - begin[x]
        work += high - low + 10
    state[0], state[1] = x, kept
    return x == 0 and state[2] == 0


@njit(cache=True)
def advance(  # type: ignore[no-untyped-def]
    layer_ptr, step, cost, price, load, allowed, charge, toll, limit, floor, buckets,
    in_ptr, in_source, begin, count, rest_value, rest_used,
    state, first, value, used, next_first, next_value, next_used, origin, budget,
):  # fmt: skip
    """Carry labels of partial sets forward through one layer, until the work `budget` is spent.

    As `complete`, but a label is dropped if it cannot come to a value above `floor` within the
    load `limit`, as the labels of completions tell. The rest relaxes, so that what is left at
    the end has at least the value of the best set, if that is above `floor`.

    Parameters
    ----------
    begin, count, rest_value, rest_used
        Labels of completions.
    state
        Shape (4,): next state to fill, labels kept in all layers before this one, labels in this
        layer so far, 1 if the arrays must grow. Read and written.
    first, value, used
        Labels of the layer before: where those of each state begin, value, load; by load.
    next_first, next_value, next_used
        The same of the layer being filled.
    origin
        For each label of all layers: 2·(label in the layer before that it comes from) + choice.

    Returns
    -------
    bool
        Whether the layer is full.
    """
    best_value = np.full(buckets + 1, -np.inf)
    best_used = np.empty(buckets + 1)
    best_from = np.empty(buckets + 1, np.int64)
    scale = buckets / limit if limit > 0 else 0.0
    target = state[0]
    layer = np.searchsorted(layer_ptr, target, side="right") - 1
    here, end = layer_ptr[layer], layer_ptr[layer + 1]
    base, kept = state[1], state[2]
    before = layer_ptr[layer - 1]
    work = 0
    state[3] = 0
    while target < end and work < budget:
        if kept + buckets + 1 > len(next_value) or base + kept + buckets + 1 > len(origin):
            state[3] = 1
            break
        next_first[target - here] = kept
        low, high = buckets + 1, -1
        for j in range(in_ptr[target], in_ptr[target + 1]):
            source, choice = in_source[j] >> 1, in_source[j] & 1
            more = charge * cost[source, choice]
            plus = -toll * cost[source, choice]
            if choice == 1:
                if not allowed[layer - 1]:
                    continue
                more += load[layer - 1]
                plus += price[layer - 1]
            rest = begin[target] + count[target] - 1
            x = source - before
            for k in range(first[x], first[x + 1]):
                now = used[k] + more
                while rest >= begin[target] and now + rest_used[rest] > limit:
                    rest -= 1
                if rest < begin[target]:
                    break
                work += 1
                worth = value[k] + plus
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
        most = -np.inf
        for at in range(low, high + 1):
            if best_value[at] > most:
                most = best_value[at]
                next_value[kept] = most
                next_used[kept] = best_used[at]
                origin[base + kept] = best_from[at]
                kept += 1
            best_value[at] = -np.inf
        work += high - low + 1 if high >= low else 1
        target += 1
    if target == end:
        next_first[target - here] = kept
    state[0], state[2] = target, kept
    return target == end
