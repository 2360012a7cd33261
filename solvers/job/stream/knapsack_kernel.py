"""Multiple-choice knapsack: one option per item, least cost within a capacity, exactly.

Options come with real costs and sizes. Lists of undominated partial choices are extended item by
item; a partial choice whose linear relaxation is no better than the best known choice is cut, so
that only choices near the relaxation's survive. The number of them is exponential at worst, and
some dozens on layers of neural networks; beyond `MAX_CHOICES` the search gives up and says so.
"""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel

#: Relative slack of comparisons: rounding of sums.
ROUNDING = 1e-12


#: Partial choices kept at most.
MAX_CHOICES = 500_000


@kernel
def least_cost(start, cost, size, within, decide, out):
    """Return the least cost of one option per item, `inf` if none is within capacity and limit.

    Options of item i are start[i] … start[i + 1] − 1, each with a cost and a size. `within` is the
    capacity for sizes and the limit of the cost. With `decide`, any choice within the limit will
    do. `out` is filled: the options chosen, shape (items,), and 1, shape (1,), if the answer may
    not be the least (or not `inf`).
    """
    capacity, limit = within
    choice = out[0]
    items = len(start) - 1
    order = np.empty(start[items], np.int64)  # undominated options, by size
    head = np.zeros(items + 1, np.int64)
    count = 0
    light_size, light_cost, fast_size, fast_cost = 0.0, 0.0, 0.0, 0.0
    for i in range(items):
        count = _undominated(start[i], start[i + 1], cost, size, order, count)
        head[i + 1] = count
        light_size += size[order[head[i]]]
        light_cost += cost[order[head[i]]]
        fast_size += size[order[count - 1]]
        fast_cost += cost[order[count - 1]]
        choice[i] = order[count - 1]
    if light_size > capacity or fast_cost > limit * (1 + ROUNDING):
        return np.inf
    if fast_size <= capacity:
        return fast_cost

    step_item, step_size, step_gain, step_to, steps = _hull_steps(head, order, cost, size)
    bound, room = light_cost, capacity - light_size
    for p in range(steps):
        if step_size[p] > room:
            bound -= step_gain[p] * room / step_size[p]
            break
        bound -= step_gain[p]
        room -= step_size[p]
    if bound > limit * (1 + ROUNDING) + ROUNDING * light_cost:
        return np.inf
    room = capacity - light_size
    blocked = np.zeros(items, np.bool_)
    for i in range(items):
        choice[i] = order[head[i]]
    for p in range(steps):
        i = step_item[p]
        if step_size[p] <= room and not blocked[i]:
            room -= step_size[p]
            choice[i] = step_to[p]
        else:
            blocked[i] = True
    best = 0.0  # added up afresh: the lightest options may cost far more
    for i in range(items):
        best += cost[choice[i]]
    if best <= bound * (1 + ROUNDING) or (decide and best <= limit):
        return best if best <= limit * (1 + ROUNDING) else np.inf
    return _search(
        items, head, (order, cost, size), within, best, out, (light_size, light_cost),
        (step_item, step_size, step_gain, steps),
    )  # fmt: skip


@inner
def _undominated(low, high, cost, size, order, count):
    """Append the undominated options low … high − 1 to `order`, by increasing size."""
    begin = count
    for o in range(low, high):
        at = count
        while at > begin and (
            size[order[at - 1]] > size[o]
            or (size[order[at - 1]] == size[o] and cost[order[at - 1]] > cost[o])
        ):
            order[at] = order[at - 1]
            at -= 1
        order[at] = o
        count += 1
    kept = begin + 1
    for at in range(begin + 1, count):
        if cost[order[at]] < cost[order[kept - 1]]:
            order[kept] = order[at]
            kept += 1
    return kept


@inner
def _hull_steps(head, order, cost, size):
    """Return the steps of each item's convex hull, by decreasing gain per size."""
    items = len(head) - 1
    total = head[items]
    item = np.empty(total, np.int64)
    width = np.empty(total)
    gain = np.empty(total)
    to = np.empty(total, np.int64)
    hull = np.empty(total, np.int64)
    steps = 0
    for i in range(items):
        top = 0
        for at in range(head[i], head[i + 1]):
            o = order[at]
            while top >= 2:
                a, b = hull[top - 2], hull[top - 1]
                # b lies on or above the line from a to o
                if (cost[a] - cost[b]) * (size[o] - size[a]) <= (cost[a] - cost[o]) * (
                    size[b] - size[a]
                ):
                    top -= 1
                else:
                    break
            hull[top] = o
            top += 1
        for h in range(1, top):
            item[steps] = i
            width[steps] = size[hull[h]] - size[hull[h - 1]]
            gain[steps] = cost[hull[h - 1]] - cost[hull[h]]
            to[steps] = hull[h]
            steps += 1
    by = np.argsort(-gain[:steps] / width[:steps], kind="mergesort")
    return item[:steps][by], width[:steps][by], gain[:steps][by], to[:steps][by], steps


@inner
def _search(items, head, options, within, best, out, lightest, changes):
    """Extend the list of undominated partial choices item by item; see `least_cost`.

    `options` are their order, cost and size; `lightest` is Σ size and Σ cost of the lightest ones;
    `changes` are item, size and gain of those of `_hull_steps`, and how many.
    """
    order, cost, size = options
    capacity, limit = within
    choice, gave_up = out
    light_size, light_cost = lightest
    step_item, step_size, step_gain, steps = changes
    found = best <= limit * (1 + ROUNDING)
    cut = best * (1 - ROUNDING) if found else limit * (1 + ROUNDING)
    reach = cut + ROUNDING * light_cost
    sizes = np.zeros(64)
    costs = np.zeros(64)
    parent = np.full(64, -1, np.int64)
    option = np.full(64, -1, np.int64)
    low, high = 0, 1
    for i in range(items):
        width = head[i + 1] - head[i]
        light_size -= size[order[head[i]]]
        light_cost -= cost[order[head[i]]]
        fresh = (high - low) * width
        if high + fresh > MAX_CHOICES:
            gave_up[0] = 1
            return best if found else np.inf
        new_size = np.empty(fresh)
        new_cost = np.empty(fresh)
        for a in range(low, high):
            for b in range(width):
                o = order[head[i] + b]
                new_size[(a - low) * width + b] = sizes[a] + size[o]
                new_cost[(a - low) * width + b] = costs[a] + cost[o]
        by = np.argsort(new_size, kind="mergesort")
        kept = 0
        for at in range(fresh):
            f = by[at]
            if kept == 0 or new_cost[f] < new_cost[by[kept - 1]]:
                # of two equal sizes the cheaper one stays
                if kept > 0 and new_size[f] == new_size[by[kept - 1]]:
                    kept -= 1
                by[kept] = f
                kept += 1
        while high + kept > len(sizes):
            sizes = np.append(sizes, np.zeros(len(sizes)))
            costs = np.append(costs, np.zeros(len(costs)))
            parent = np.append(parent, np.full(len(parent), -1))
            option = np.append(option, np.full(len(option), -1))
        next_low = high
        p, used, gained = 0, 0.0, 0.0
        for at in range(kept - 1, -1, -1):
            f = by[at]
            room = capacity - light_size - new_size[f]
            if room < 0:
                continue
            while p < steps and (step_item[p] <= i or used + step_size[p] <= room):
                if step_item[p] > i:
                    used += step_size[p]
                    gained += step_gain[p]
                p += 1
            bound = new_cost[f] + light_cost - gained
            if p < steps:
                bound -= step_gain[p] * (room - used) / step_size[p]
            if bound <= reach:
                sizes[high] = new_size[f]
                costs[high] = new_cost[f]
                parent[high] = low + f // width
                option[high] = order[head[i] + f % width]
                high += 1
        low = next_low
    winner = -1
    for a in range(low, high):
        if costs[a] <= cut and (winner < 0 or costs[a] < costs[winner]):
            winner = a
    if winner < 0:
        return best if found else np.inf
    best = costs[winner]
    for i in range(items - 1, -1, -1):
        choice[i] = option[winner]
        winner = parent[winner]
    return best


@kernel
def ratio_rule(start, cost, size, within, choice):
    """Return the cost that a greedy rule finds; arguments as of `least_cost`.

    From the cheapest options on, the change of one item's option that saves most size per cost
    is made until all fits: the rule of Piper's authors.
    """
    capacity, limit = within
    items = len(start) - 1
    used = 0.0
    for i in range(items):
        best = start[i]
        for o in range(start[i] + 1, start[i + 1]):
            if cost[o] < cost[best] or (cost[o] == cost[best] and size[o] < size[best]):
                best = o
        choice[i] = best
        used += size[best]
    while used > capacity:
        item, to, ratio = -1, -1, -1.0
        for i in range(items):
            for o in range(start[i], start[i + 1]):
                saved = size[choice[i]] - size[o]
                if saved > 0:
                    worth = saved / max(cost[o] - cost[choice[i]], 1e-300)
                    if worth > ratio:
                        item, to, ratio = i, o, worth
        if item < 0:
            return np.inf
        used += size[to] - size[choice[item]]
        choice[item] = to
    total = 0.0
    for i in range(items):
        total += cost[choice[i]]
    return total if total <= limit * (1 + ROUNDING) else np.inf
