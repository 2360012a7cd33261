"""The inner loop that lists pairs of stages of a device."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@kernel
def list_pairs(meet, target, stages, allowed, shared, limits, prices, tables, memory, out):
    """List the pairs of stages of each device, for chains that pass the ideal `meet` half way.

    Parameters
    ----------
    meet
        Where the first D stages end and the last D begin.
    target, memory
        Pairs that no chain below the target has, and larger ones than that, are left out.
    stages, shared, limits
        `Stages`, `Shared` and `Limits` of `pairs`.
    allowed
        Shape (2D, R): which stages may be at each position.
    prices
        Shape (Q, 2D, 4).
    tables
        Shape (Q, 2D + 2, N): least cost, at these prices, of the stages from s on: from each ideal
        to `meet` for s ≤ D, and then, from s = D on, to the last ideal.
    out
        Rows to be filled in, shapes (T, 5), for the layer, the states, and the stages; (T, 2, 2)
        for forward and backward time; and where layers begin, (D + 1,).

    Returns
    -------
    int
        Number of pairs; −1 if there are too many.
    """
    rows, times, begin = out
    asked, devices = len(prices), len(begin) - 1
    size = len(stages.first) - 1
    number = np.full(size * size, -1, np.int64)
    found = np.array([[0, meet]])
    spent = np.zeros((1, asked))
    own, cost = np.zeros((2, 2)), np.zeros(asked)
    filled = 0
    for d in range(devices):
        begin[d] = filled
        states = 0
        reached = np.zeros((64, 2), np.int64)
        least = np.zeros((64, asked))
        for i in range(len(found)):
            low, high = found[i, 0], found[i, 1]
            for a in range(stages.first[low], stages.first[low + 1]):
                to = stages.end[a]
                # `meet` must be reached in time.
                if not allowed[d, a] or not tables[0, d + 1, to] < np.inf:
                    continue
                for b in range(stages.first[high], stages.first[high + 1]):
                    up = stages.end[b]
                    if not allowed[devices + d, b] or not tables[0, devices + d + 2, up] < np.inf:
                        continue
                    pair_times(a, b, low, to, high, up, stages, shared, own)
                    if on_device(d, low, to, high, up, limits, own) >= target:
                        continue
                    if at_prices(d, to, up, prices, tables, spent[i], own, cost) >= target:
                        continue
                    if peak(d, a, b, stages, limits) > memory:
                        continue
                    key = to * size + up
                    s = number[key]
                    if s < 0:
                        if states == len(reached):
                            reached = np.concatenate((reached, reached))
                            least = np.concatenate((least, least))
                        s = states
                        number[key] = s
                        reached[s, 0] = to
                        reached[s, 1] = up
                        least[s] = cost
                        states += 1
                    for q in range(asked):
                        least[s, q] = min(least[s, q], cost[q])
                    if filled == len(rows):
                        return -1
                    for column, value in enumerate((d, i, s, a, b)):
                        rows[filled, column] = value
                    times[filled] = own
                    filled += 1
        for s in range(states):
            number[reached[s, 0] * size + reached[s, 1]] = -1
        found, spent = reached[:states].copy(), least[:states].copy()
    begin[devices] = filled
    return filled if len(found) > 0 else 0


@inner
def pair_times(a, b, low, to, high, up, stages, shared, own):
    """Set the forward and backward times of two stages of a device, shape (2, 2).

    Forward data is paid for in the first stage of the device that has a pin, gradients in the last;
    neither if no pin is elsewhere.
    """
    own[0, 0] = stages.forward[a]
    own[0, 1] = stages.backward[a]
    own[1, 0] = stages.forward[b]
    own[1, 1] = stages.backward[b]
    for n in range(len(shared.pins)):
        below = shared.held[to, n] - shared.held[low, n]
        above = shared.held[up, n] - shared.held[high, n]
        if below > 0 and above > 0:
            own[1, 0] -= shared.weight[0, n]
            own[0, 1] -= shared.weight[1, n]
            if below + above == shared.pins[n]:
                own[0, 0] -= shared.weight[0, n]
                own[1, 1] -= shared.weight[1, n]


@inner
def on_device(d, low, to, high, up, limits, own):
    """Return what paths that stay on the device say, with the cheapest stages around these."""
    bound = 0.0
    for p in range(limits.own.shape[1]):
        total = limits.before[d, p, low] + limits.to_meet[d, p, to]
        total += limits.from_meet[d, p, high] + limits.behind[d, p, up]
        for k in range(2):
            total += limits.own[d, p, 0, k] * own[0, k] + limits.own[d, p, 1, k] * own[1, k]
        bound = max(bound, total)
    return bound


@inner
def at_prices(d, to, up, prices, tables, spent, own, cost):
    """Set what a chain up to the pair costs at least; return the same of the whole chain."""
    devices = prices.shape[1] // 2
    bound = -np.inf
    for q in range(len(prices)):
        cost[q] = spent[q]
        for k in range(2):
            cost[q] += prices[q, d, k] * own[0, k] + prices[q, devices + d, k] * own[1, k]
        left = tables[q, d + 1, to] + tables[q, devices + d + 2, up]
        bound = max(bound, cost[q] + left)
    return bound


@inner
def peak(d, a, b, stages, limits):
    """Return the bytes that two stages of a device need."""
    held = 0.0
    for n in range(limits.held.shape[1]):
        own = limits.held[d, n, 0] * stages.activation[a]
        held = max(held, own + limits.held[d, n, 1] * stages.activation[b])
    return stages.resident[a] + stages.resident[b] + held
