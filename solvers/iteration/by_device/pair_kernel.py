"""The inner loops that list pairs of stages of a device: states first, then pairs between them."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@kernel
def list_pairs(meet, target, stages, allowed, shared, limits, prices, tables, memory, out):
    """List the pairs of stages of each device, for chains that pass the ideal `meet` half way.

    What a chain up to each state costs at least is found from the first device on, without listing
    pairs; then, from the last one back, what it costs from there on. Most pairs fall away between.

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
        Rows to be filled in, shapes (T, 5), for the layer, the states, and the stages; and
        (T, 2, 2) for forward and backward time. The last layer comes first.

    Returns
    -------
    int
        Number of pairs; −1 if there are too many.
    """
    rows, times = out
    asked, devices, size = len(prices), len(limits.own), len(stages.first) - 1
    number = np.full(size * size, -1, np.int64)
    layers, state, spent = reach(
        meet, target, stages, allowed, shared, limits, prices, tables, memory, number
    )
    if len(state) == layers[devices]:
        return 0
    behind = np.full((len(state), asked), np.inf)
    place = np.full(len(state), -1, np.int64)
    behind[layers[devices]], place[layers[devices]] = 0.0, 0
    own, cost = np.zeros((2, 2)), np.zeros(asked)
    filled = 0
    for d in range(devices - 1, -1, -1):
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = s if place[s] >= 0 else -1
        live = 0
        for s in range(layers[d], layers[d + 1]):
            low, high = state[s]
            for a in range(stages.first[low], stages.first[low + 1]):
                if not allowed[d, a]:
                    continue
                to = stages.end[a]
                for b in range(stages.first[high], stages.first[high + 1]):
                    up = stages.end[b]
                    following = number[to * size + up]
                    if following < 0 or not allowed[devices + d, b]:
                        continue
                    pair_times(a, b, low, to, high, up, stages, shared, own)
                    set_costs(d, prices, spent[s], own, cost)
                    if (cost + behind[following]).max() >= target:
                        continue
                    if on_device(d, low, to, high, up, limits, own) >= target:
                        continue
                    if peak(d, a, b, stages, limits) > memory:
                        continue
                    if filled == len(rows):
                        return -1
                    if place[s] < 0:
                        place[s] = live
                        live += 1
                    for q in range(asked):
                        left = cost[q] - spent[s, q] + behind[following, q]
                        behind[s, q] = min(behind[s, q], left)
                    for column, value in enumerate((d, place[s], place[following], a, b)):
                        rows[filled, column] = value
                    times[filled] = own
                    filled += 1
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = -1
        if live == 0:
            return 0
    return filled


@inner
def reach(meet, target, stages, allowed, shared, limits, prices, tables, memory, number):
    """Return the states of chains below the target, by layer, and the least cost up to each.

    Parameters
    ----------
    number
        Shape (N²,): −1, and again so at the end.

    Returns
    -------
    tuple of arrays
        Where layers begin, (D + 2,); the ideals of each state, (S, 2); and costs, (S, Q).
    """
    asked, devices, size = len(prices), len(limits.own), len(stages.first) - 1
    state, spent = np.zeros((1024, 2), np.int64), np.zeros((1024, asked))
    state[0, 1] = meet
    layers = np.zeros(devices + 2, np.int64)
    layers[1] = 1
    own, cost = np.zeros((2, 2)), np.zeros(asked)
    states = 1
    for d in range(devices):
        for i in range(layers[d], layers[d + 1]):
            low, high = state[i]
            for a in range(stages.first[low], stages.first[low + 1]):
                to = stages.end[a]
                # `meet` must be reached in time.
                if not allowed[d, a] or not tables[0, d + 1, to] < np.inf:
                    continue
                least_times(a, low, to, meet, stages, shared, own)
                set_costs(d, prices, spent[i], own, cost)
                if whole(d + 1, to, devices + d + 1, high, tables, cost) >= target:
                    continue
                for b in range(stages.first[high], stages.first[high + 1]):
                    up = stages.end[b]
                    if not allowed[devices + d, b] or not tables[0, devices + d + 2, up] < np.inf:
                        continue
                    pair_times(a, b, low, to, high, up, stages, shared, own)
                    if on_device(d, low, to, high, up, limits, own) >= target:
                        continue
                    set_costs(d, prices, spent[i], own, cost)
                    if whole(d + 1, to, devices + d + 2, up, tables, cost) >= target:
                        continue
                    if peak(d, a, b, stages, limits) > memory:
                        continue
                    s = number[to * size + up]
                    if s < 0:
                        if states == len(state):
                            state = np.concatenate((state, state))
                            spent = np.concatenate((spent, spent))
                        s = states
                        number[to * size + up] = s
                        state[s, 0], state[s, 1] = to, up
                        spent[s] = cost
                        states += 1
                    for q in range(asked):
                        spent[s, q] = min(spent[s, q], cost[q])
        layers[d + 2] = states
        for s in range(layers[d + 1], states):
            number[state[s, 0] * size + state[s, 1]] = -1
    return layers, state[:states], spent[:states]


@inner
def whole(s, to, t, up, tables, cost):
    """Return what a chain costs at least, given the cost before rows s and t of the tables."""
    bound = -np.inf
    for q in range(len(cost)):
        bound = max(bound, cost[q] + tables[q, s, to] + tables[q, t, up])
    return bound


@inner
def set_costs(d, prices, spent, own, cost):
    """Set what a chain up to a pair costs at least, at each of the prices."""
    devices = prices.shape[1] // 2
    for q in range(len(prices)):
        cost[q] = spent[q]
        for k in range(2):
            cost[q] += prices[q, d, k] * own[0, k] + prices[q, devices + d, k] * own[1, k]


@inner
def least_times(a, low, to, meet, stages, shared, own):
    """Set the least times of a first stage, shape (2, 2), 0 for the second one."""
    own[:] = 0.0
    own[0, 0] = stages.forward[a]
    own[0, 1] = stages.backward[a]
    for n in range(len(shared.pins)):
        below = shared.held[to, n] - shared.held[low, n]
        if below > 0:
            own[0, 1] -= shared.weight[1, n]
            if below == shared.held[meet, n]:
                own[0, 0] -= shared.weight[0, n]


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
def peak(d, a, b, stages, limits):
    """Return the bytes that two stages of a device need."""
    held = 0.0
    for n in range(limits.held.shape[1]):
        own = limits.held[d, n, 0] * stages.activation[a]
        held = max(held, own + limits.held[d, n, 1] * stages.activation[b])
    return stages.resident[a] + stages.resident[b] + held
